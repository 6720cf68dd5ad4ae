//! A file system as it can be seen.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use extant_ext4::{Attributes, FileType, InodeNumber, Node};
use extant_space::{ByteRange, ExtentState, Result, SpaceFile};

use crate::image::Commits;

/// Unit that is torn or lost as a whole.
pub const SECTOR: usize = 512;

/// Data past this offset is not read.
const LOOK_MAX: u64 = 1 << 40;

/// An inode, with the generation that distinguishes it from others of the same number.
pub type Id = (InodeNumber, u32);

pub type Sector = [u8; SECTOR];

/// Everything under one directory, and the open files without names.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// By path; `` is the directory itself.
    pub names: BTreeMap<String, Id>,
    pub inodes: BTreeMap<Id, Arc<Seen>>,
}

/// One inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub meta: Meta,
    /// The entries of a directory.
    pub children: BTreeMap<String, Id>,
    /// Those of written extents that are not all zeros, by number.
    pub sectors: BTreeMap<u64, Sector>,
}

/// Properties of an inode that a commit makes durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    pub attributes: Attributes,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub target: Option<Vec<u8>>,
    /// Allocated extents, neighbours merged, also past the end of the file.
    pub extents: Vec<(ByteRange, ExtentState)>,
}

impl View {
    /// Reads the tree under `root`; with `held`, nodes that may have no name.
    pub fn of(root: &Node, held: &[Node], commits: Commits) -> Result<Self> {
        let mut view = Self::default();
        view.add(root, String::new())?;
        for node in held {
            view.see(node)?;
        }
        if commits == Commits::Fast {
            view.forget_times_of_directories();
        }
        Ok(view)
    }

    fn add(&mut self, node: &Node, path: String) -> Result<()> {
        let id = self.see(node)?;
        let mut children = BTreeMap::new();
        if node.file_type() == FileType::Directory {
            let mut names = BTreeSet::new();
            node.list(0, &mut |listed| {
                if listed.name != b"." && listed.name != b".." {
                    names.insert(String::from_utf8_lossy(listed.name).into_owned());
                }
                ControlFlow::Continue(())
            })?;
            for name in names {
                let child = node.lookup(name.as_bytes())?;
                children.insert(name.clone(), id_of(&child));
                self.add(&child, format!("{path}/{name}"))?;
            }
            let seen = self.inodes.get_mut(&id).expect("just seen");
            Arc::make_mut(seen).children = children;
        }
        self.names.insert(path, id);
        Ok(())
    }

    fn forget_times_of_directories(&mut self) {
        for seen in self.inodes.values_mut() {
            let attributes = seen.meta.attributes;
            if attributes.file_type == FileType::Directory {
                let kept = &mut Arc::make_mut(seen).meta.attributes;
                kept.modified = attributes.accessed;
                kept.changed = attributes.accessed;
            }
        }
    }

    /// Whether there is data of 16 times this byte.
    pub fn shows(&self, byte: u8) -> bool {
        let mut sectors = self.inodes.values().flat_map(|seen| seen.sectors.values());
        sectors.any(|sector| sector.chunks(16).any(|part| part == [byte; 16]))
    }

    fn see(&mut self, node: &Node) -> Result<Id> {
        let id = id_of(node);
        if let Entry::Vacant(place) = self.inodes.entry(id) {
            place.insert(Arc::new(Seen::of(node)?));
        }
        Ok(id)
    }
}

fn id_of(node: &Node) -> Id {
    (node.number(), node.attributes().generation)
}

impl Seen {
    fn of(node: &Node) -> Result<Self> {
        let mut attributes = node.attributes();
        attributes.accessed = attributes.created.unwrap_or_default();
        let mut xattrs = BTreeMap::new();
        for name in node.xattr_names()? {
            let value = node.xattr(&name)?;
            xattrs.insert(name, value);
        }
        let target = match node.file_type() {
            FileType::SymbolicLink => Some(node.read_link()?),
            _ => None,
        };
        let (mut extents, mut sectors) = (Vec::new(), BTreeMap::new());
        if node.file_type() == FileType::Regular {
            let file = node.file()?;
            for extent in file.extents(ByteRange::new(0, LOOK_MAX))? {
                push_extent(&mut extents, extent.logical, extent.state);
                let end = extent.logical.end().min(attributes.size_bytes);
                if extent.state == ExtentState::Written && extent.logical.start() < end {
                    let range = ByteRange::new(extent.logical.start(), end);
                    read_sectors(&file, range, &mut sectors)?;
                }
            }
        }
        Ok(Self {
            meta: Meta {
                attributes,
                xattrs,
                target,
                extents,
            },
            children: BTreeMap::new(),
            sectors,
        })
    }

    /// A sector, with zeros behind the end.
    pub fn sector(&self, number: u64) -> &Sector {
        const ZEROS: Sector = [0; SECTOR];
        self.sectors.get(&number).unwrap_or(&ZEROS)
    }
}

fn push_extent(extents: &mut Vec<(ByteRange, ExtentState)>, range: ByteRange, state: ExtentState) {
    match extents.last_mut() {
        _ if state == ExtentState::Hole => {}
        Some((last, before)) if *before == state && last.end() == range.start() => {
            *last = ByteRange::new(last.start(), range.end());
        }
        _ => extents.push((range, state)),
    }
}

fn read_sectors(
    file: &dyn SpaceFile,
    range: ByteRange,
    sectors: &mut BTreeMap<u64, Sector>,
) -> Result<()> {
    let mut bytes = vec![0; range.len() as usize];
    let read = file.read_at(&mut bytes, range.start())?;
    assert_eq!(read, bytes.len(), "a short read inside the file");
    for (number, part) in (range.start() / SECTOR as u64..).zip(bytes.chunks(SECTOR)) {
        if part.iter().any(|&byte| byte != 0) {
            let mut sector = [0; SECTOR];
            sector[..part.len()].copy_from_slice(part);
            sectors.insert(number, sector);
        }
    }
    Ok(())
}

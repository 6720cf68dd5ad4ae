//! The engine as a target of operations.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use extant_blockdev::MemoryDevice;
use extant_ext4::{
    AttributeChange, FileType, Filesystem, InodeFlags, InodeNumber, NewKind, NewNode, Node, Times,
};
use extant_space::{ByteRange, Error, ErrorKind, ExtentState, FallocateMode, Result, SpaceFile};

use crate::image;
use crate::operation::{
    CURSORS, Data, HANDLES, Listed, Made, Operation, Outcome, Owner, Path, Place, Rest, Tooth,
};
use crate::reference::tooth_at;
use crate::tree::{Content, Seen, Tree, USER_FLAGS, push_state, settle_first_paths};

/// An open file system, or a directory of it that stands for one.
pub struct Engine {
    /// `None` where others use the file system as well: then it is not closed here.
    device: Option<Arc<MemoryDevice>>,
    filesystem: Option<Filesystem>,
    block_bytes: u32,
    root: Option<Node>,
    handles: [Option<Node>; HANDLES],
    cursors: [Option<Cursor>; CURSORS],
}

struct Cursor {
    directory: Node,
    cookie: u64,
}

impl Engine {
    /// Opens the file system on a device.
    pub fn open(device: Arc<MemoryDevice>) -> Self {
        let filesystem = image::open(&device);
        Self {
            block_bytes: filesystem.block_bytes(),
            root: Some(filesystem.root().unwrap()),
            filesystem: Some(filesystem),
            device: Some(device),
            handles: Default::default(),
            cursors: Default::default(),
        }
    }

    /// A directory that stands for a whole file system.
    pub fn within(filesystem: &Filesystem, root: Node) -> Self {
        Self {
            device: None,
            block_bytes: filesystem.block_bytes(),
            filesystem: Some(filesystem.clone()),
            root: Some(root),
            handles: Default::default(),
            cursors: Default::default(),
        }
    }

    pub fn filesystem(&self) -> &Filesystem {
        self.filesystem.as_ref().expect("open")
    }

    /// A copy of the device at this moment.
    #[allow(dead_code, reason = "the kernel test needs it")]
    pub fn snapshot(&self) -> Arc<MemoryDevice> {
        let device = self.device.as_ref().expect("a file system of its own");
        Arc::new(device.snapshot())
    }

    /// The device after the file system was closed.
    pub fn close(mut self) -> Arc<MemoryDevice> {
        self.shut().unwrap();
        self.device.take().expect("a file system of its own")
    }

    fn shut(&mut self) -> Result<()> {
        self.handles = Default::default();
        self.cursors = Default::default();
        self.root = None;
        self.filesystem.take().map_or(Ok(()), Filesystem::close)
    }

    /// Does one step.
    pub fn apply(&mut self, operation: &Operation) -> Outcome {
        match self.try_apply(operation) {
            Ok(outcome) => outcome,
            Err(error) => Outcome::Failed(error.kind()),
        }
    }

    fn try_apply(&mut self, operation: &Operation) -> Result<Outcome> {
        match operation {
            Operation::Create(name, made, owner) => {
                let target = made.target();
                let new = made.node(&target, *owner);
                self.find(&name.directory)?.create(&name.name, &new)?;
            }
            Operation::CreateUnnamed(near, owner, handle) => {
                let new = Made::Regular.node(&[], *owner);
                let node = self.find(near)?.create_unnamed(&new)?;
                self.handles[*handle] = Some(node);
            }
            Operation::Link(place, name) => {
                let node = self.find(place)?;
                self.find(&name.directory)?.link(&name.name, &node)?;
            }
            Operation::Unlink(name) => self.find(&name.directory)?.unlink(&name.name)?,
            Operation::RemoveDirectory(name) => {
                self.find(&name.directory)?.remove_directory(&name.name)?;
            }
            Operation::Rename(from, to, mode) => {
                let to_directory = self.find(&to.directory);
                let directory = self.find(&from.directory)?;
                directory.rename(&from.name, &to_directory?, &to.name, *mode)?;
            }
            Operation::Open(place, handle) => self.handles[*handle] = Some(self.find(place)?),
            Operation::Close(handle) => self.handles[*handle] = None,
            Operation::Write(place, offset, data) => self.write(place, *offset, *data)?,
            Operation::Read(place, offset, length) => {
                let mut bytes = vec![0xEE; *length];
                let read = self.find(place)?.file()?.read_at(&mut bytes, *offset)?;
                bytes.truncate(read);
                return Ok(Outcome::Bytes(bytes));
            }
            Operation::Resize(place, size) => self.find(place)?.file()?.resize(*size)?,
            Operation::Fallocate(place, mode, range) => {
                self.find(place)?.file()?.fallocate(*mode, *range)?;
            }
            Operation::Comb(place, first, count, tooth) => {
                for number in 0..*count {
                    self.comb(place, tooth_at(*first, number, self.block_bytes), *tooth)?;
                }
            }
            Operation::Extents(place, range) => {
                return Ok(Outcome::States(states(&self.find(place)?.file()?, *range)?));
            }
            Operation::SetAttributes(place, change) => {
                self.find(place)?.set_attributes(&AttributeChange {
                    permissions: change.permissions,
                    uid: change.uid,
                    gid: change.gid,
                    accessed: None,
                    modified: change.modified,
                    changed: None,
                    times: Times::Chosen,
                    flags: change.flags.map(InodeFlags::from_bits_retain),
                })?;
            }
            Operation::SetXattr(place, name, value, mode) => {
                self.find(place)?
                    .set_xattr(name.as_bytes(), &value.bytes(), *mode)?;
            }
            Operation::RemoveXattr(place, name) => {
                self.find(place)?.remove_xattr(name.as_bytes())?;
            }
            Operation::ListStart(place, cursor) => {
                self.cursors[*cursor] = None;
                let directory = self.find(place)?;
                if directory.file_type() != FileType::Directory {
                    return Err(Error::new(ErrorKind::NotDirectory));
                }
                self.cursors[*cursor] = Some(Cursor {
                    directory,
                    cookie: 0,
                });
            }
            Operation::ListNext(cursor, count) => return self.list_next(*cursor, *count),
            Operation::SyncFile(place, mode) => self.find(place)?.sync(*mode)?,
            Operation::Sync => self.filesystem().sync()?,
            Operation::Reopen => self.reopen()?,
            Operation::Crash => self.crash()?,
        }
        Ok(Outcome::Done)
    }

    fn reopen(&mut self) -> Result<()> {
        let Some(device) = self.device.clone() else {
            self.handles = Default::default();
            self.cursors = Default::default();
            return Ok(());
        };
        self.shut()?;
        image::assert_checked(&device);
        *self = Self::open(device);
        Ok(())
    }

    fn crash(&mut self) -> Result<()> {
        self.filesystem().sync()?;
        // Without one, a crash is e2fsck's.
        let has_journal = self.filesystem().superblock().journal().is_some();
        match &self.device {
            Some(device) if has_journal => {
                let after = Arc::new(device.snapshot());
                *self = Self::open(after);
                Ok(())
            }
            _ => self.reopen(),
        }
    }

    fn find(&self, place: &Place) -> Result<Node> {
        let path = match place {
            Place::At(path) => path,
            Place::Handle(handle) => {
                let node = self.handles[*handle].clone();
                return node.ok_or_else(|| Error::new(ErrorKind::NotFound));
            }
        };
        let root = self.root.clone().expect("open");
        path.0.iter().try_fold(root, |at, name| at.lookup(name))
    }

    fn write(&self, place: &Place, offset: u64, data: Data) -> Result<()> {
        self.find(place)?.file()?.write_at(&data.bytes(), offset)
    }

    fn comb(&self, place: &Place, at: (u64, ByteRange), tooth: Tooth) -> Result<()> {
        let (offset, range) = at;
        match tooth {
            Tooth::Written(seed) => {
                let length = range.len() as usize;
                self.write(place, offset, Data { length, seed })
            }
            Tooth::Punched => self
                .find(place)?
                .file()?
                .fallocate(FallocateMode::PunchHole, range),
        }
    }

    fn list_next(&mut self, cursor: usize, count: usize) -> Result<Outcome> {
        let Some(cursor) = &mut self.cursors[cursor] else {
            return Ok(Outcome::Done);
        };
        let mut names = Vec::new();
        let mut rest = Rest::Nothing;
        cursor.directory.list(cursor.cookie, &mut |listed| {
            if names.len() == count {
                rest = Rest::MayBeMore;
                return ControlFlow::Break(());
            }
            names.push((listed.name.to_vec(), listed.file_type));
            cursor.cookie = listed.cookie;
            ControlFlow::Continue(())
        })?;
        Ok(Outcome::Listed(Listed { names, rest }))
    }

    /// Everything that has a name.
    pub fn tree(&self) -> Result<Tree> {
        let mut tree = Tree::new();
        let mut first = BTreeMap::new();
        let root = self.root.as_ref().expect("open");
        add(
            root,
            Path::default(),
            self.block_bytes.into(),
            &mut tree,
            &mut first,
        )?;
        settle_first_paths(&mut tree);
        Ok(tree)
    }

    /// The data of a file.
    pub fn content(&self, place: &Place) -> Result<Content> {
        content(&self.find(place)?, self.block_bytes.into())
    }
}

fn add(
    node: &Node,
    path: Path,
    block_bytes: u64,
    tree: &mut Tree,
    first: &mut BTreeMap<InodeNumber, Path>,
) -> Result<()> {
    let same_as = first
        .entry(node.number())
        .or_insert_with(|| path.clone())
        .clone();
    tree.insert(path.clone(), see(node, block_bytes, same_as)?);
    if node.file_type() != FileType::Directory {
        return Ok(());
    }
    let mut children = Vec::new();
    node.list(0, &mut |listed| {
        if !matches!(listed.name, b"." | b"..") {
            children.push((listed.name.to_vec(), listed.inode, listed.file_type));
        }
        ControlFlow::Continue(())
    })?;
    for (name, inode, file_type) in children {
        let child = node.lookup(&name)?;
        assert_eq!(child.number(), inode, "{path}: {}", name.escape_ascii());
        assert!(file_type.is_none_or(|file_type| file_type == child.file_type()));
        add(&child, path.join(&name), block_bytes, tree, first)?;
    }
    Ok(())
}

fn see(node: &Node, block_bytes: u64, same_as: Path) -> Result<Seen> {
    let attributes = node.attributes();
    let file_type = attributes.file_type;
    let mut xattrs = BTreeMap::new();
    for name in node.xattr_names()? {
        let value = node.xattr(&name)?;
        xattrs.insert(name, value);
    }
    Ok(Seen {
        file_type,
        permissions: attributes.permissions,
        links: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        flags: attributes.flags & USER_FLAGS,
        device: attributes.device,
        target: match file_type {
            FileType::SymbolicLink => Some(node.read_link()?),
            _ => None,
        },
        xattrs,
        modified: Some(attributes.modified),
        data: match file_type {
            FileType::Regular => Some(content(node, block_bytes)?),
            _ => None,
        },
        same_as,
    })
}

fn content(node: &Node, block_bytes: u64) -> Result<Content> {
    let file = node.file()?;
    let size = file.size()?;
    let states = states(&file, ByteRange::new(0, u64::MAX))?;
    Content::read(size, states, block_bytes, |bytes, offset| {
        file.read_at(bytes, offset)
    })
}

fn states(file: &dyn SpaceFile, range: ByteRange) -> Result<Vec<(ByteRange, ExtentState)>> {
    let mut states = Vec::new();
    let size = file.size()?;
    let mut at = range.start();
    file.for_each_extent(range, &mut |extent| {
        // Holes past the end of the file are left out.
        let start = extent.logical.start();
        assert!(
            start == at || start > at && at >= size,
            "a gap in the map: {at} to {start}"
        );
        at = extent.logical.end();
        push_state(&mut states, extent.logical, extent.state);
        ControlFlow::Continue(())
    })?;
    Ok(states)
}

impl Made {
    fn node<'t>(&self, target: &'t [u8], owner: Owner) -> NewNode<'t> {
        NewNode {
            kind: match self {
                Self::Regular => NewKind::Regular,
                Self::Directory => NewKind::Directory,
                Self::Link { .. } => NewKind::SymbolicLink(target),
                Self::Fifo => NewKind::Fifo,
                Self::Socket => NewKind::Socket,
                Self::Character(device) => NewKind::CharacterDevice(*device),
                Self::Block(device) => NewKind::BlockDevice(*device),
            },
            permissions: owner.permissions,
            uid: owner.uid,
            gid: owner.gid,
            umask: owner.umask,
        }
    }
}

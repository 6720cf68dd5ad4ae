//! The visible state of a file system, for comparisons.

use std::collections::BTreeMap;
use std::fmt::Write;

use extant_ext4::{DeviceNumber, FileType, InodeFlags, Timestamp};
use extant_space::{ByteRange, ExtentState};

use crate::operation::Path;

/// Bytes at the start of a hole that are read.
const HOLE_SAMPLE: u64 = 64 << 10;

/// Flags that are compared.
pub const USER_FLAGS: InodeFlags = InodeFlags::SYNC
    .union(InodeFlags::IMMUTABLE)
    .union(InodeFlags::APPEND)
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::DIRSYNC)
    .union(InodeFlags::TOPDIR)
    .union(InodeFlags::PROJINHERIT);

/// Files by path.
pub type Tree = BTreeMap<Path, Seen>;

/// One file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub file_type: FileType,
    pub permissions: u16,
    pub links: u16,
    pub uid: u32,
    pub gid: u32,
    pub flags: InodeFlags,
    pub device: Option<DeviceNumber>,
    pub target: Option<Vec<u8>>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// `None` where anything is right.
    pub modified: Option<Timestamp>,
    pub data: Option<Content>,
    /// The first path of the same inode.
    pub same_as: Path,
}

/// The data of a regular file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    pub size: u64,
    /// Merged; a hole at the end is left out, so that blocks past the end of the file are seen.
    pub states: Vec<(ByteRange, ExtentState)>,
    /// Blocks that are not all zeros, within the size.
    pub blocks: BTreeMap<u64, Vec<u8>>,
}

/// Adds a range, and merges it with the one before. Holes are left out.
pub fn push_state(
    states: &mut Vec<(ByteRange, ExtentState)>,
    range: ByteRange,
    state: ExtentState,
) {
    if range.is_empty() || state == ExtentState::Hole {
        return;
    }
    match states.last_mut() {
        Some((last, before)) if *before == state && last.end() == range.start() => {
            *last = ByteRange::new(last.start(), range.end());
        }
        _ => states.push((range, state)),
    }
}

/// Makes the first path of an inode, in the order of paths, the one that all of its paths name.
pub fn settle_first_paths(tree: &mut Tree) {
    let mut first = BTreeMap::new();
    for (path, seen) in &*tree {
        first
            .entry(seen.same_as.clone())
            .or_insert_with(|| path.clone());
    }
    for seen in tree.values_mut() {
        seen.same_as = first[&seen.same_as].clone();
    }
}

/// The first difference between two trees, as text.
pub fn difference(wanted: &Tree, found: &Tree) -> Option<String> {
    for (path, seen) in wanted {
        let Some(other) = found.get(path) else {
            return Some(format!("{path} is missing: {seen:?}"));
        };
        if let Some(text) = seen.difference(other) {
            return Some(format!("{path} (also {}): {text}", seen.same_as));
        }
    }
    let extra = found.keys().find(|path| !wanted.contains_key(path));
    extra.map(|path| format!("{path} should not be there"))
}

impl Seen {
    fn difference(&self, found: &Self) -> Option<String> {
        let found = Self {
            modified: self.modified.and(found.modified),
            ..found.clone()
        };
        if *self == found {
            return None;
        }
        let mut text = String::new();
        let parts = [
            (
                "type",
                format!("{:?}", self.file_type),
                format!("{:?}", found.file_type),
            ),
            (
                "permissions",
                format!("{:o}", self.permissions),
                format!("{:o}", found.permissions),
            ),
            ("links", self.links.to_string(), found.links.to_string()),
            ("user", self.uid.to_string(), found.uid.to_string()),
            ("group", self.gid.to_string(), found.gid.to_string()),
            (
                "flags",
                format!("{:?}", self.flags),
                format!("{:?}", found.flags),
            ),
            (
                "device",
                format!("{:?}", self.device),
                format!("{:?}", found.device),
            ),
            (
                "target",
                format!("{:?}", self.target),
                format!("{:?}", found.target),
            ),
            (
                "xattrs",
                format!("{:?}", self.xattrs),
                format!("{:?}", found.xattrs),
            ),
            (
                "modified",
                format!("{:?}", self.modified),
                format!("{:?}", found.modified),
            ),
            (
                "first path",
                self.same_as.to_string(),
                found.same_as.to_string(),
            ),
        ];
        for (what, wanted, other) in parts {
            if wanted != other {
                let _ = write!(text, "{what} is {other}, not {wanted}; ");
            }
        }
        if let (Some(wanted), Some(found)) = (&self.data, &found.data) {
            text += &wanted.difference(found).unwrap_or_default();
        }
        Some(text)
    }
}

impl Content {
    /// Reads written parts, and samples of holes and unwritten parts. `read` fills a buffer from an
    /// offset on, up to the end of the file.
    pub fn read<E>(
        size: u64,
        states: Vec<(ByteRange, ExtentState)>,
        block_bytes: u64,
        mut read: impl FnMut(&mut [u8], u64) -> Result<usize, E>,
    ) -> Result<Self, E> {
        let mut looked_at = Vec::new();
        let mut at = 0;
        for (range, state) in &states {
            looked_at.push(ByteRange::new(at, range.start().min(at + HOLE_SAMPLE)));
            let length = match state {
                ExtentState::Written => range.len(),
                _ => range.len().min(HOLE_SAMPLE),
            };
            looked_at.push(ByteRange::new(range.start(), range.start() + length));
            at = range.end();
        }
        looked_at.push(ByteRange::new(at, at + HOLE_SAMPLE));
        let mut blocks = BTreeMap::new();
        for range in looked_at {
            let mut bytes = vec![0xEE; range.len() as usize];
            let length = read(&mut bytes, range.start())?;
            let first = range.start() / block_bytes;
            for (number, block) in bytes[..length].chunks(block_bytes as usize).enumerate() {
                if block.iter().any(|&byte| byte != 0) {
                    blocks.insert(first + number as u64, block.to_vec());
                }
            }
        }
        Ok(Self {
            size,
            states,
            blocks,
        })
    }

    /// The first difference, as text.
    pub fn difference(&self, found: &Self) -> Option<String> {
        if self.size != found.size {
            return Some(format!("size is {}, not {}", found.size, self.size));
        }
        if self.states != found.states {
            return Some(format!(
                "extents are {:?}, not {:?}",
                found.states, self.states
            ));
        }
        let all = self.blocks.keys().chain(found.blocks.keys());
        let block = *all.min_by_key(|block| {
            if self.blocks.get(block) == found.blocks.get(block) {
                u64::MAX
            } else {
                **block
            }
        })?;
        let (wanted, found) = (self.blocks.get(&block), found.blocks.get(&block));
        if wanted == found {
            return None;
        }
        let byte_of = |bytes: Option<&Vec<u8>>, at: usize| {
            bytes.map_or(0, |bytes| bytes.get(at).copied().unwrap_or(0))
        };
        let length = wanted.or(found).map_or(0, Vec::len);
        let at = (0..length).find(|&at| byte_of(wanted, at) != byte_of(found, at))?;
        Some(format!(
            "byte {at} of block {block} is {}, not {}",
            byte_of(found, at),
            byte_of(wanted, at)
        ))
    }
}

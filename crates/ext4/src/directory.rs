//! Directories: the entries of one directory, over any store of its blocks.
//!
//! Model: a directory maps names to inodes. A *linear* directory is searched block by block. A
//! directory with a *tree* is searched by the hash of the name: the tree leads to the first block
//! (leaf) that may contain it, and an odd hash in the tree means that names with the even hash
//! below continue in the next leaf. When a linear directory of one block is full and the file
//! system has `dir_index`, it becomes indexed, as in the kernel. Blocks are never freed.
//!
//! A change consists of steps. Each step reads what it needs, then allocates at most one new block,
//! then changes; after every step the directory is valid. An operation that fails with `NoSpace` or
//! because a block cannot be read has not inserted, removed or retargeted the name. It may have
//! split nodes of the tree, which is invisible to readers.
//!
//! Invariants, checked by `tests/verify.rs`:
//! - a leaf holds only names whose hashes are between its entry in the tree and the next;
//! - every block is in the tree once: the root, a node or a leaf;
//! - every block is sealed (its checksum is valid).
//!
//! There are no locks here: the caller holds the lock of the inode, shared for reading and
//! exclusive for changes. The engine refuses `casefold`, `encrypt` and `inline_data` directories
//! beforehand, but for the entries `.` and `..` of the first two.
//!
//! Format: docs/formats/ext4.md, "Directory".

mod blocks;
mod context;
mod grow;
mod insert;
mod list;
mod tree;

use extant_ondisk::ext4::directory::{self as disk, BlockKind, Entry, check_name};
use extant_ondisk::ext4::inode::FileType;
use extant_ondisk::ext4::{InodeNumber, LogicalBlock};
use extant_space::{Error, ErrorKind, Result};

pub(crate) use blocks::{DirectoryBlocks, DirectoryBlocksMut};
pub(crate) use context::{DirectoryContext, Shape, TreeRules};
pub(crate) use list::{After, Listed};

/// The block with `.` and `..`, and the root of the tree.
const FIRST: LogicalBlock = LogicalBlock(0);

/// One directory.
pub(crate) struct Directory<B> {
    context: DirectoryContext,
    blocks: B,
}

/// Inode and type that a name refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirectoryEntry {
    /// The inode.
    pub(crate) inode: InodeNumber,
    /// Its type, if the entry has one.
    pub(crate) file_type: Option<FileType>,
}

impl From<Entry<'_>> for DirectoryEntry {
    fn from(entry: Entry<'_>) -> Self {
        Self {
            inode: entry.inode,
            file_type: entry.file_type,
        }
    }
}

/// Position of an entry; valid until the next change.
struct EntryPosition {
    block: LogicalBlock,
    kind: BlockKind,
    /// First byte of the record.
    offset: usize,
    entry: DirectoryEntry,
}

impl EntryPosition {
    fn new(block: LogicalBlock, kind: BlockKind, entry: Entry<'_>) -> Self {
        Self {
            block,
            kind,
            offset: entry.offset,
            entry: entry.into(),
        }
    }
}

impl<B: DirectoryBlocks> Directory<B> {
    /// The directory in `blocks`.
    ///
    /// # Errors
    /// `Corrupt` if the inode has a hash tree and the file system has no `dir_index`.
    pub(crate) fn new(context: DirectoryContext, blocks: B) -> Result<Self> {
        context.check()?;
        Ok(Self { context, blocks })
    }

    /// The entry of `name`; `None` if there is none. `.` and `..` are names too.
    ///
    /// # Errors
    /// `InvalidArgument` for an invalid name; `Corrupt` with the block; errors of the store.
    pub(crate) fn lookup(&self, name: &[u8]) -> Result<Option<DirectoryEntry>> {
        Ok(self.find(name)?.map(|place| place.entry))
    }

    /// Whether there are no names but `.` and `..`. Reads every block, also blocks that a damaged
    /// tree does not reference.
    ///
    /// # Errors
    /// `Corrupt` with the block; errors of the store.
    pub(crate) fn is_empty(&self) -> Result<bool> {
        self.check_has_blocks()?;
        for index in (0..self.blocks.blocks()).map(LogicalBlock) {
            let (kind, block) = self.any(index)?;
            if kind != BlockKind::Records {
                continue;
            }
            for entry in disk::entries(&block, &self.context.format) {
                let entry = entry.map_err(|error| self.at(index, error))?;
                let is_own = index == FIRST && matches!(entry.name, b"." | b"..");
                if !is_own {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn find(&self, name: &[u8]) -> Result<Option<EntryPosition>> {
        if matches!(name, b"." | b"..") {
            return self.find_own(name).map(Some);
        }
        check_name(name)?;
        match self.shape() {
            Shape::Linear => self.find_linear(name),
            Shape::Tree => {
                let root = self.root()?;
                let hash = root.hash(name);
                let path = self.descend(&root, hash.major)?;
                let leaf = self.leaf(path.leaf())?;
                self.find_from(&path, &leaf, name, hash)
            }
        }
    }

    /// `.` or `..`, which are the first two entries in either shape.
    fn find_own(&self, name: &[u8]) -> Result<EntryPosition> {
        let format = &self.context.format;
        if self.shape() == Shape::Tree {
            let root = self.root()?;
            let entry = self.dots(&root).into_iter().find(|dot| dot.name == name);
            let entry = entry.expect("a root begins with both");
            return Ok(EntryPosition::new(FIRST, BlockKind::Root, entry));
        }
        let block = self.leaf(FIRST)?;
        let found = disk::find(&block, format, name).map_err(|error| self.at(FIRST, error))?;
        match found {
            Some(entry) => Ok(EntryPosition::new(FIRST, BlockKind::Records, entry)),
            None => {
                let name = name.escape_ascii();
                Err(self.corrupt(FIRST, format_args!("no entry {name}")))
            }
        }
    }

    fn find_linear(&self, name: &[u8]) -> Result<Option<EntryPosition>> {
        for index in (0..self.blocks.blocks()).map(LogicalBlock) {
            if let Some(place) = self.find_in(index, name)? {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    /// The entry among the records of one block.
    fn find_in(&self, index: LogicalBlock, name: &[u8]) -> Result<Option<EntryPosition>> {
        let block = self.leaf(index)?;
        self.find_among(index, &block, name)
    }

    /// The same, in `block`, whose number is `index`.
    fn find_among(
        &self,
        index: LogicalBlock,
        block: &[u8],
        name: &[u8],
    ) -> Result<Option<EntryPosition>> {
        let found = disk::find(block, &self.context.format, name);
        let found = found.map_err(|error| self.at(index, error))?;
        Ok(found.map(|entry| EntryPosition::new(index, BlockKind::Records, entry)))
    }

    /// A removed directory has no blocks, and no names; no other is like that.
    fn check_has_blocks(&self) -> Result<()> {
        match self.blocks.blocks() {
            0 => Err(self.corrupt(FIRST, "there are no blocks")),
            _ => Ok(()),
        }
    }

    fn shape(&self) -> Shape {
        self.context.shape()
    }
}

impl<B: DirectoryBlocksMut> Directory<B> {
    /// Makes the first block of a new directory, with `.` and `..`.
    ///
    /// # Errors
    /// Errors of the store; the directory then still has no block, or is in a file system that has
    /// failed.
    ///
    /// # Panics
    /// If there is a block already.
    pub(crate) fn init(&mut self, own: InodeNumber, parent: InodeNumber) -> Result<()> {
        assert_eq!(self.blocks.blocks(), 0, "a new directory has no blocks");
        let index = self.blocks.append()?;
        let format = self.context.format;
        self.change(index, BlockKind::Records, |block| {
            disk::init_first(block, &format, own, parent);
            Ok(())
        })
    }

    /// Removes `name` and returns its inode.
    ///
    /// # Errors
    /// `NotFound`; `InvalidArgument` for `.`, `..` and invalid names; `Corrupt` with the block;
    /// an error of the store. The name still exists then.
    pub(crate) fn remove(&mut self, name: &[u8]) -> Result<DirectoryEntry> {
        check_name(name)?;
        let place = self
            .find(name)?
            .ok_or_else(|| Error::new(ErrorKind::NotFound))?;
        let format = self.context.format;
        self.change(place.block, BlockKind::Records, |block| {
            disk::remove(block, &format, place.offset)
        })?;
        Ok(place.entry)
    }

    /// Points `name`, which may be `..`, to another inode, and returns the previous one.
    ///
    /// # Errors
    /// As [`remove`](Self::remove); the name refers to the same inode as before.
    pub(crate) fn retarget(
        &mut self,
        name: &[u8],
        inode: InodeNumber,
        file_type: FileType,
    ) -> Result<DirectoryEntry> {
        if name != b".." {
            check_name(name)?;
        }
        let place = self
            .find(name)?
            .ok_or_else(|| Error::new(ErrorKind::NotFound))?;
        let format = self.context.format;
        self.change(place.block, place.kind, |block| {
            disk::retarget(block, &format, place.offset, inode, file_type);
            Ok(())
        })?;
        Ok(place.entry)
    }
}

#[cfg(test)]
mod tests;

//! Making and changing nodes of the hash tree. The creator of an [`IndexNodeMut`] has parsed the
//! node, or makes a new one; [`IndexNodeMut::seal`] writes the checksum at the end.

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::index::{
    ENTRY_BYTES, INFO_OFFSET, RawDxCountLimit, RawDxEntry, RawDxRootInfo, RawDxTail, sums,
};
use super::record::{RawDirEntry, encode_length};
use super::{DirectoryFormat, DxEntry, HashKind, IndexShape, Tail, TypeField, record_bytes};
use crate::ext4::inode::FileType;
use crate::ext4::{InodeNumber, InodeSeed, LogicalBlock};
use crate::narrow::{fit8, fit16};

/// A node's block, to be changed.
#[derive(Debug)]
pub struct IndexNodeMut<'a> {
    block: &'a mut [u8],
    shape: IndexShape,
}

impl<'a> IndexNodeMut<'a> {
    /// A node that was parsed.
    ///
    /// # Panics
    /// When it cannot have been.
    pub fn new(block: &'a mut [u8], shape: IndexShape, format: &DirectoryFormat) -> Self {
        let node = Self { block, shape };
        let capacity = shape.capacity(format);
        assert_eq!(usize::from(node.counts().limit.get()), capacity);
        assert!((1..=capacity).contains(&node.len()));
        node
    }

    /// Makes the first block of a directory the root of a tree with one block below, whose
    /// records are all but `.` and `..`.
    ///
    /// # Panics
    /// When `block` is not a whole block.
    pub fn init_root(
        block: &'a mut [u8],
        format: &DirectoryFormat,
        own: InodeNumber,
        parent: InodeNumber,
        kind: HashKind,
        below: LogicalBlock,
    ) -> Self {
        let bytes = format.block_bytes as usize;
        assert_eq!(block.len(), bytes);
        block.fill(0);
        let first = record_bytes(1);
        put_record(block, 0, own, b".", first, format);
        put_record(block, first, parent, b"..", bytes - first, format);
        let mut info = RawDxRootInfo::new_zeroed();
        info.hash_version = kind.raw();
        info.info_length = fit8(size_of::<RawDxRootInfo>());
        block[INFO_OFFSET..][..size_of_val(&info)].copy_from_slice(info.as_bytes());
        Self::with_one(block, IndexShape::Root, format, below)
    }

    /// Makes a block a node with one entry.
    ///
    /// # Panics
    /// When `block` is not a whole block.
    pub fn init_node(block: &'a mut [u8], format: &DirectoryFormat, below: LogicalBlock) -> Self {
        let bytes = format.block_bytes as usize;
        assert_eq!(block.len(), bytes);
        block.fill(0);
        let mut record = RawDirEntry::new_zeroed();
        record.rec_len.set(encode_length(bytes));
        block[..size_of_val(&record)].copy_from_slice(record.as_bytes());
        Self::with_one(block, IndexShape::Node, format, below)
    }

    fn with_one(
        block: &'a mut [u8],
        shape: IndexShape,
        format: &DirectoryFormat,
        below: LogicalBlock,
    ) -> Self {
        let mut node = Self { block, shape };
        let capacity = fit16(shape.capacity(format));
        node.counts_mut().limit.set(capacity);
        node.set_len(1);
        node.set_block(0, below);
        node
    }

    /// Number of entries.
    #[allow(clippy::len_without_is_empty, reason = "a node is never empty")]
    pub fn len(&self) -> usize {
        self.counts().count.get().into()
    }

    /// Whether no entry fits any more.
    pub fn is_full(&self) -> bool {
        self.len() == usize::from(self.counts().limit.get())
    }

    /// Sets the number of levels of nodes below a root.
    ///
    /// # Panics
    /// If it is not a root.
    pub fn set_levels(&mut self, levels: u8) {
        assert_eq!(self.shape, IndexShape::Root);
        let at = &mut self.block[INFO_OFFSET..];
        RawDxRootInfo::mut_from_prefix(at)
            .expect("a block")
            .0
            .indirect_levels = levels;
    }

    /// Inserts `entry` before entry `index`, which is not the first.
    ///
    /// # Panics
    /// When the node is full or there is no such place.
    pub fn insert(&mut self, index: usize, entry: DxEntry) {
        let count = self.len();
        assert!((1..=count).contains(&index) && !self.is_full());
        let (from, end) = (self.place(index), self.place(count));
        self.block.copy_within(from..end, from + ENTRY_BYTES);
        self.set_len(count + 1);
        let raw = RawDxEntry {
            hash: entry.hash.into(),
            block: entry.block.0.into(),
        };
        self.block[from..from + ENTRY_BYTES].copy_from_slice(raw.as_bytes());
    }

    /// Makes entry `index` lead to another block.
    ///
    /// # Panics
    /// When there is none.
    pub fn set_block(&mut self, index: usize, block: LogicalBlock) {
        assert!(index < self.len());
        let at = self.place(index);
        let (raw, _) = RawDxEntry::mut_from_prefix(&mut self.block[at..]).expect("an entry");
        raw.block.set(block.0);
    }

    /// Removes entry `index`, which is not the first.
    ///
    /// # Panics
    /// When there is none.
    pub fn remove(&mut self, index: usize) {
        let count = self.len();
        assert!((1..count).contains(&index));
        let (at, end) = (self.place(index), self.place(count));
        self.block.copy_within(at + ENTRY_BYTES..end, at);
        self.set_len(count - 1);
    }

    /// Moves the entries from `index` on into `block`, which becomes a node. The result is
    /// the hash that the node's reference in the parent has: that of the first entry moved.
    ///
    /// With `index` 0 everything moves, and one entry without a valid block remains: that is how a
    /// root gets a level.
    ///
    /// # Panics
    /// When there are not that many entries, or `block` is not a whole block.
    pub fn split_into(&mut self, index: usize, block: &mut [u8], format: &DirectoryFormat) -> u32 {
        let count = self.len();
        assert!(index < count);
        let (start, end) = (self.place(index), self.place(count));
        let (first, _) = RawDxEntry::read_from_prefix(&self.block[start..]).expect("an entry");
        let mut node = IndexNodeMut::init_node(block, format, LogicalBlock(first.block.get()));
        let rest = &self.block[start + ENTRY_BYTES..end];
        let at = node.place(1);
        node.block[at..at + rest.len()].copy_from_slice(rest);
        node.set_len(count - index);
        self.set_len(index.max(1));
        if index == 0 { 0 } else { first.hash.get() }
    }

    /// Writes the sum. Does nothing where blocks have none.
    pub fn seal(&mut self, format: &DirectoryFormat, seed: Option<InodeSeed>) {
        let (Some(seed), Tail::Checksum) = (seed, format.tail) else {
            return;
        };
        let (_, sum) = sums(self.block, self.shape, seed);
        let at = self.place(self.counts().limit.get().into());
        let (tail, _) = RawDxTail::mut_from_prefix(&mut self.block[at..]).expect("a tail");
        tail.dt_checksum.set(sum);
    }

    fn place(&self, index: usize) -> usize {
        self.shape.offset() + index * ENTRY_BYTES
    }

    fn counts(&self) -> &RawDxCountLimit {
        let at = &self.block[self.shape.offset()..];
        RawDxCountLimit::ref_from_prefix(at).expect("a block").0
    }

    fn counts_mut(&mut self) -> &mut RawDxCountLimit {
        let at = &mut self.block[self.shape.offset()..];
        RawDxCountLimit::mut_from_prefix(at).expect("a block").0
    }

    fn set_len(&mut self, count: usize) {
        self.counts_mut().count.set(fit16(count));
    }
}

fn put_record(
    block: &mut [u8],
    at: usize,
    inode: InodeNumber,
    name: &[u8],
    bytes: usize,
    format: &DirectoryFormat,
) {
    let record = RawDirEntry {
        inode: inode.0.into(),
        rec_len: encode_length(bytes).into(),
        name_len: fit8(name.len()),
        file_type: match format.types {
            TypeField::Present => FileType::Directory.directory_code(),
            TypeField::Absent => 0,
        },
    };
    let header = size_of_val(&record);
    block[at..at + header].copy_from_slice(record.as_bytes());
    block[at + header..at + header + name.len()].copy_from_slice(name);
}

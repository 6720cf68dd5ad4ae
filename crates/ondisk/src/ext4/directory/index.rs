//! Nodes of the hash tree, read and validated.
//!
//! Model: a node is a sorted list of hashes with the block that holds names from that hash on: a
//! block with records, or a node one level lower. The first entry has no hash: it covers everything
//! below the second. The root is after `.` and `..` in the directory's first block, other nodes
//! fill a block each; to readers that know no trees they look like one long free record.
//!
//! Invariants of a parsed node: the number of used entries is between one and the capacity; hashes
//! do not decrease; the number of levels is one that Linux accepts.

use extant_space::Result;
use zerocopy::FromBytes;
use zerocopy::little_endian::{U16, U32};

use super::record::{HEADER_BYTES, RawDirEntry, Records, decode_length};
use super::{DirectoryFormat, Entry, HashKind, Tail, record_bytes, unknown_hash};
use crate::ext4::{InodeSeed, LogicalBlock};
use crate::fault::{check_range, check_sum, corrupt};
use crate::structure::on_disk;

on_disk! {
    /// `struct dx_root_info`, behind `.` and `..`.
    pub struct RawDxRootInfo: 8 {
        0x0 reserved_zero: U32,
        0x4 hash_version: u8,
        0x5 info_length: u8,
        0x6 indirect_levels: u8,
        0x7 unused_flags: u8,
    }

    /// `struct dx_countlimit`, in the place of the first entry's hash.
    pub struct RawDxCountLimit: 4 {
        0x0 limit: U16,
        0x2 count: U16,
    }

    /// `struct dx_entry`.
    pub struct RawDxEntry: 8 {
        0x0 hash: U32,
        0x4 block: U32,
    }

    /// `struct dx_tail`, behind the last entry that there is room for.
    pub struct RawDxTail: 8 {
        0x0 dt_reserved: U32,
        0x4 dt_checksum: U32,
    }
}

pub(super) const ENTRY_BYTES: usize = size_of::<RawDxEntry>();
pub(super) const INFO_OFFSET: usize = record_bytes(1) + record_bytes(2);
pub(super) const ROOT_OFFSET: usize = INFO_OFFSET + size_of::<RawDxRootInfo>();
pub(super) const NODE_OFFSET: usize = HEADER_BYTES;
/// The records before a root.
const DOTS: [(usize, &[u8]); 2] = [(0, b"."), (record_bytes(1), b"..")];
/// The upper bits of a block number are not part of it.
const BLOCK_MASK: u32 = 0x0FFF_FFFF;

/// Kind of a block of an indexed directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// Records.
    Records,
    /// The root of the tree: block 0.
    Root,
    /// Another node.
    Node,
}

/// The probable kind of a block in a directory with a tree, for a walk over all blocks. It only
/// selects the check.
pub fn block_kind(block: &[u8], index: LogicalBlock, format: &DirectoryFormat) -> BlockKind {
    if index.0 == 0 {
        return BlockKind::Root;
    }
    let (first, _) = RawDirEntry::ref_from_prefix(block).expect("a block");
    let spans_block =
        decode_length(first.rec_len.get(), format.block_bytes) == format.block_bytes as usize;
    let looks_empty = spans_block && first.inode.get() == 0 && first.name_len == 0;
    if looks_empty && (format.tail == Tail::Checksum || has_count_limit(block, format)) {
        BlockKind::Node
    } else {
        BlockKind::Records
    }
}

/// Without checksums an empty block of records is identical up to here.
fn has_count_limit(block: &[u8], format: &DirectoryFormat) -> bool {
    let (counts, _) = RawDxCountLimit::ref_from_prefix(&block[NODE_OFFSET..]).expect("a block");
    usize::from(counts.limit.get()) == IndexShape::Node.capacity(format)
}

/// Form of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexShape {
    /// Behind `.` and `..`.
    Root,
    /// In a block of its own.
    Node,
}

impl IndexShape {
    /// In messages.
    const fn name(self) -> &'static str {
        match self {
            Self::Root => "hash tree root",
            Self::Node => "hash tree node",
        }
    }

    pub(super) fn offset(self) -> usize {
        match self {
            Self::Root => ROOT_OFFSET,
            Self::Node => NODE_OFFSET,
        }
    }

    /// Entries that fit.
    pub fn capacity(self, format: &DirectoryFormat) -> usize {
        let tail = match format.tail {
            Tail::Checksum => size_of::<RawDxTail>(),
            Tail::None => 0,
        };
        (format.block_bytes as usize - self.offset() - tail) / ENTRY_BYTES
    }
}

/// An entry of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DxEntry {
    /// The lowest hash of the names there; 0 for the first entry. An odd hash marks that names with
    /// the even one below continue there.
    pub hash: u32,
    /// The block of the directory.
    pub block: LogicalBlock,
}

/// A validated node.
#[derive(Clone, Copy, Debug)]
pub struct IndexNode<'a> {
    block: &'a [u8],
    shape: IndexShape,
}

impl<'a> IndexNode<'a> {
    /// The tree's root in block 0. `levels_max` is 1, or 2 with `large_dir`: the maximum number of
    /// levels of nodes below.
    ///
    /// # Errors
    /// `Corrupt` with the reason, also for a wrong checksum; `Unsupported` for an unknown hash
    /// function.
    ///
    /// # Panics
    /// If `block` is not a whole block.
    pub fn parse_root(
        block: &'a [u8],
        format: &DirectoryFormat,
        levels_max: u8,
        seed: Option<InodeSeed>,
    ) -> Result<Self> {
        Self::reread_root(block, format, levels_max)?.judged(format, seed)
    }

    /// A root that was parsed before: its checksum and the order of its hashes are not checked
    /// again, which takes long in a node of many entries.
    ///
    /// # Errors
    /// As [`parse_root`](Self::parse_root) for the rest, so that a block that was parsed as another
    /// structure does no harm.
    ///
    /// # Panics
    /// If `block` is not a whole block.
    pub fn reread_root(block: &'a [u8], format: &DirectoryFormat, levels_max: u8) -> Result<Self> {
        const NAME: &str = IndexShape::Root.name();
        for (record, (at, name)) in Records::of_root(block, format).zip(DOTS) {
            let entry = record?.entry(format)?;
            let found = entry.map(|entry| (entry.offset, entry.name));
            if found != Some((at, name)) {
                let name = name.escape_ascii();
                return Err(corrupt(
                    NAME,
                    format_args!("no record of {name} at byte {at}"),
                ));
            }
        }
        let (info, _) = RawDxRootInfo::ref_from_prefix(&block[INFO_OFFSET..]).expect("a block");
        for (field, value, only) in [
            ("reserved_zero", info.reserved_zero.get().into(), 0),
            (
                "info_length",
                info.info_length.into(),
                size_of::<RawDxRootInfo>() as u64,
            ),
            ("unused_flags", u64::from(info.unused_flags & 1), 0),
        ] {
            check_range(NAME, field, value, only..=only)?;
        }
        let levels = info.indirect_levels.into();
        check_range(NAME, "indirect_levels", levels, 0..=levels_max.into())?;
        if HashKind::from_raw(info.hash_version).is_none() {
            return Err(unknown_hash(NAME, "hash_version", info.hash_version));
        }
        Self::counted(block, IndexShape::Root, format)
    }

    /// A node in a block of its own.
    ///
    /// # Errors
    /// `Corrupt` with the invalid field, also for a wrong checksum.
    ///
    /// # Panics
    /// When `block` is not a whole block.
    pub fn parse_node(
        block: &'a [u8],
        format: &DirectoryFormat,
        seed: Option<InodeSeed>,
    ) -> Result<Self> {
        Self::reread_node(block, format)?.judged(format, seed)
    }

    /// Such a node that was parsed before, as [`reread_root`](Self::reread_root).
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// When `block` is not a whole block.
    pub fn reread_node(block: &'a [u8], format: &DirectoryFormat) -> Result<Self> {
        const NAME: &str = IndexShape::Node.name();
        let length = length_at(block, 0, format);
        if length != format.block_bytes as usize {
            return Err(corrupt(
                NAME,
                format_args!("a record of {length} bytes before it"),
            ));
        }
        Self::counted(block, IndexShape::Node, format)
    }

    fn counted(block: &'a [u8], shape: IndexShape, format: &DirectoryFormat) -> Result<Self> {
        assert_eq!(block.len(), format.block_bytes as usize);
        let node = Self { block, shape };
        let room = shape.capacity(format) as u64;
        check_range(shape.name(), "limit", node.capacity() as u64, room..=room)?;
        check_range(shape.name(), "count", node.len() as u64, 1..=room)?;
        Ok(node)
    }

    /// The node, once its sum and the order of its hashes are found right.
    fn judged(self, format: &DirectoryFormat, seed: Option<InodeSeed>) -> Result<Self> {
        let (block, shape) = (self.block, self.shape);
        if let (Some(seed), Tail::Checksum) = (seed, format.tail) {
            let (stored, computed) = sums(block, shape, seed);
            check_sum(shape.name(), stored, computed)?;
        }
        // The first entry has no hash.
        let mut least = 0;
        for (index, entry) in self.entries().enumerate().skip(1) {
            let hash = entry.hash;
            if hash < least {
                let problem = format_args!("entry {index} has hash {hash:#x} after {least:#x}");
                return Err(corrupt(shape.name(), problem));
            }
            least = hash;
        }
        Ok(self)
    }

    /// The entries `.` and `..` before a root.
    ///
    /// # Panics
    /// When it is not a root.
    pub fn dots(&self, format: &DirectoryFormat) -> [Entry<'a>; 2] {
        assert_eq!(self.shape, IndexShape::Root);
        let mut records = Records::of_root(self.block, format);
        [(); 2].map(|()| {
            let record = records.next().expect("parsed").expect("parsed");
            record.entry(format).expect("parsed").expect("parsed")
        })
    }

    /// The function that sorts the tree; of a root only.
    ///
    /// # Panics
    /// When it is not a root.
    pub fn hash_kind(&self) -> HashKind {
        HashKind::from_raw(self.info().hash_version).expect("parsed")
    }

    /// Levels of nodes below a root.
    ///
    /// # Panics
    /// When it is not a root.
    pub fn levels(&self) -> u8 {
        self.info().indirect_levels
    }

    /// Number of entries, at least 1.
    #[allow(clippy::len_without_is_empty, reason = "a node is never empty")]
    pub fn len(&self) -> usize {
        self.counts().count.get().into()
    }

    /// Number of entries that fit.
    pub fn capacity(&self) -> usize {
        self.counts().limit.get().into()
    }

    /// Entry `index`.
    ///
    /// # Panics
    /// When there is none.
    pub fn entry(&self, index: usize) -> DxEntry {
        assert!(index < self.len());
        let at = self.shape.offset() + index * ENTRY_BYTES;
        let (raw, _) = RawDxEntry::ref_from_prefix(&self.block[at..]).expect("an entry");
        DxEntry {
            hash: if index == 0 { 0 } else { raw.hash.get() },
            block: LogicalBlock(raw.block.get() & BLOCK_MASK),
        }
    }

    /// All entries.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = DxEntry> {
        let node = *self;
        (0..self.len()).map(move |index| node.entry(index))
    }

    /// The last entry whose hash is not above `hash`: names with it begin there.
    pub fn find(&self, hash: u32) -> usize {
        let (mut at, mut end) = (0, self.len());
        while end - at > 1 {
            let middle = at + (end - at) / 2;
            if self.entry(middle).hash <= hash {
                at = middle;
            } else {
                end = middle;
            }
        }
        at
    }

    fn info(&self) -> &'a RawDxRootInfo {
        assert_eq!(self.shape, IndexShape::Root);
        let (info, _) =
            RawDxRootInfo::ref_from_prefix(&self.block[INFO_OFFSET..]).expect("a block");
        info
    }

    fn counts(&self) -> &'a RawDxCountLimit {
        let at = &self.block[self.shape.offset()..];
        RawDxCountLimit::ref_from_prefix(at).expect("a block").0
    }
}

fn length_at(block: &[u8], at: usize, format: &DirectoryFormat) -> usize {
    let (raw, _) = RawDirEntry::ref_from_prefix(&block[at..]).expect("a block");
    decode_length(raw.rec_len.get(), format.block_bytes)
}

/// The stored and the computed sum of a node whose `limit` and `count` fit it.
pub(super) fn sums(block: &[u8], shape: IndexShape, seed: InodeSeed) -> (u32, u32) {
    let offset = shape.offset();
    let (counts, _) = RawDxCountLimit::ref_from_prefix(&block[offset..]).expect("a block");
    let used = offset + usize::from(counts.count.get()) * ENTRY_BYTES;
    let tail = offset + usize::from(counts.limit.get()) * ENTRY_BYTES;
    let (tail, _) = RawDxTail::ref_from_prefix(&block[tail..]).expect("a tail");
    let sum = seed
        .sum(&block[..used])
        .and(&tail.dt_reserved.to_bytes())
        .and(&[0; 4]);
    (tail.dt_checksum.get(), sum.value())
}

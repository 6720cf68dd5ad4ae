//! Numbers of blocks and groups, and runs of blocks.
//!
//! A *block* here is the unit of allocation: a cluster where the file system has clusters
//! (bigalloc).

use std::fmt;

use serde::Serialize;

/// A block of the file system, counted from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize)]
#[serde(transparent)]
pub struct Block(pub u64);

/// A block group, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize)]
#[serde(transparent)]
pub struct GroupNumber(pub u32);

/// Consecutive blocks; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct BlockRange {
    start: Block,
    count: u32,
}

impl BlockRange {
    /// `count` blocks from `start`.
    ///
    /// # Panics
    /// When `count` is 0 or the end does not fit 64 bits.
    pub fn new(start: Block, count: u32) -> Self {
        assert!(count > 0, "a range of no blocks at {start}");
        assert!(start.0.checked_add(count.into()).is_some());
        Self { start, count }
    }

    /// First block.
    pub fn start(self) -> Block {
        self.start
    }

    /// One past the last block.
    pub fn end(self) -> Block {
        Block(self.start.0 + u64::from(self.count))
    }

    /// Number of blocks, at least 1.
    pub fn count(self) -> u32 {
        self.count
    }

    /// Whether `block` is one of them.
    pub fn contains(self, block: Block) -> bool {
        self.start <= block && block < self.end()
    }

    /// Whether the two share a block.
    pub fn overlaps(self, other: Self) -> bool {
        self.start < other.end() && other.start < self.end()
    }

    /// The part before `block` and the part from it on, where there is any.
    pub fn split_at(self, block: Block) -> (Option<Self>, Option<Self>) {
        let block = block.clamp(self.start, self.end());
        (
            Self::between(self.start, block),
            Self::between(block, self.end()),
        )
    }

    /// Whether `next` follows at once, and both fit one range.
    pub(crate) fn can_join(self, next: Self) -> bool {
        self.end() == next.start && self.count.checked_add(next.count).is_some()
    }

    /// This range and `next`, which follows at once.
    pub(crate) fn joined(self, next: Self) -> Self {
        debug_assert_eq!(self.end(), next.start);
        Self::new(self.start, self.count + next.count)
    }

    /// From `start` up to, not including, `end`; `None` when that is no block.
    pub fn between(start: Block, end: Block) -> Option<Self> {
        let count = end.0.checked_sub(start.0)?;
        let count = u32::try_from(count).expect("a range of at most 2^32 blocks");
        (count > 0).then(|| Self::new(start, count))
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for GroupNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for BlockRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count {
            1 => write!(f, "block {}", self.start),
            count => write!(
                f,
                "blocks {} to {}",
                self.start,
                self.start.0 + u64::from(count) - 1
            ),
        }
    }
}

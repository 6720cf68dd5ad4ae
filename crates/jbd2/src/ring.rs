//! The ring of log blocks.

use std::ops::Range;

/// Blocks of the journal; the first block follows the last one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    first: u32,
    end: u32,
}

impl Ring {
    /// # Panics
    /// When the range is empty.
    pub(crate) fn new(blocks: Range<u32>) -> Self {
        assert!(!blocks.is_empty(), "a ring of {blocks:?}");
        Self {
            first: blocks.start,
            end: blocks.end,
        }
    }

    pub(crate) fn first(&self) -> u32 {
        self.first
    }

    pub(crate) fn blocks(&self) -> u32 {
        self.end - self.first
    }

    pub(crate) fn contains(&self, block: u32) -> bool {
        (self.first..self.end).contains(&block)
    }

    /// The block `count` behind `block`.
    pub(crate) fn after(&self, block: u32, count: u32) -> u32 {
        debug_assert!(self.contains(block));
        let offset = u64::from(block - self.first) + u64::from(count);
        self.first + (offset % u64::from(self.blocks())) as u32
    }

    /// `count` blocks from `first` on, in one part or, round the end, in two.
    ///
    /// # Panics
    /// When the ring has fewer.
    pub(crate) fn parts(&self, first: u32, count: u32) -> [Range<u32>; 2] {
        assert!(
            self.contains(first) && count <= self.blocks(),
            "{count} blocks from {first} in {self:?}"
        );
        let before_end = count.min(self.end - first);
        let rest = self.first..self.first + (count - before_end);
        [first..first + before_end, rest]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_behind_the_end_are_those_at_the_start() {
        let ring = Ring::new(3..10);
        assert_eq!(ring.after(3, 6), 9);
        assert_eq!(ring.after(3, 7), 3);
        assert_eq!(ring.after(9, 1), 3);
        // 2^32 - 1 is 3 more than a multiple of 7.
        assert_eq!(ring.after(5, u32::MAX), 8);
        assert_eq!(ring.parts(8, 5), [8..10, 3..6]);
        assert_eq!(ring.parts(3, 7), [3..10, 3..3]);
        assert_eq!(ring.parts(9, 7), [9..10, 3..9]);
    }
}

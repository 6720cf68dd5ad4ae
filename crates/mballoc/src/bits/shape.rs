//! The lengths and places of the levels, the same for every group.

use std::ops::Range;

use super::WORD_ORDER;

/// Orders 0 to 19: the largest group has 2^19 blocks.
pub(crate) const ORDERS: usize = 20;

/// The layout of a group's summary.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    blocks: u32,
    words: usize,
    top: usize,
    /// Begin of each level, and the end of the last.
    starts: [usize; ORDERS + 1],
}

impl Shape {
    /// For groups of `blocks` blocks.
    pub(crate) fn new(blocks: u32) -> Self {
        let words = (blocks as usize).div_ceil(64);
        let top = blocks.ilog2() as usize;
        let mut starts = [0; ORDERS + 1];
        let mut next = words;
        for (order, start) in starts.iter_mut().enumerate() {
            *start = next;
            if order <= top.max(WORD_ORDER) {
                next += Self::level_bits(words, order).div_ceil(64);
            }
        }
        Self {
            blocks,
            words,
            top,
            starts,
        }
    }

    /// Blocks of a group.
    pub(crate) fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Words of the bitmap.
    pub(crate) fn words(&self) -> usize {
        self.words
    }

    /// Words of the bitmap and all levels.
    pub(crate) fn total_words(&self) -> usize {
        self.starts[ORDERS]
    }

    /// The largest order that a chunk can have.
    pub(crate) fn top(&self) -> usize {
        self.top
    }

    /// The words of a level.
    pub(crate) fn level(&self, order: usize) -> Range<usize> {
        self.starts[order]..self.starts[order + 1]
    }

    /// Chunks of `order` (from 7 on) that a group may have.
    pub(crate) fn chunks(&self, order: usize) -> usize {
        Self::level_bits(self.words, order)
    }

    fn level_bits(words: usize, order: usize) -> usize {
        words >> order.saturating_sub(WORD_ORDER)
    }
}

#[cfg(feature = "ablation")]
/// The order of which every run has `count` blocks.
pub(crate) fn order_for(count: u32) -> usize {
    (u32::BITS - count.saturating_sub(1).leading_zeros()) as usize
}

/// The largest order of which every run of `count` blocks holds a chunk, wherever it begins.
pub(crate) fn order_within(count: u32) -> usize {
    // 2^(k+1) - 1 blocks hold an aligned 2^k.
    (count + 1).ilog2().saturating_sub(1) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_of_a_common_group_is_a_seventh_of_its_bitmap() {
        let shape = Shape::new(32_768);
        assert_eq!(shape.words(), 512);
        assert_eq!(shape.top(), 15);
        // 7 levels of 8 words, then 4, 2 and seven of 1.
        assert_eq!(shape.total_words(), 512 + 56 + 4 + 2 + 7);
    }

    #[test]
    fn run_of_any_place_holds_a_chunk_of_its_order_within() {
        for count in 1u32..300 {
            let order = order_within(count);
            for start in 0..512u32 {
                let chunk = start.next_multiple_of(1 << order);
                assert!(
                    chunk + (1 << order) <= start + count,
                    "{count} from {start}"
                );
            }
        }
    }
}

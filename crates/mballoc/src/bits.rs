//! The bitmap of one group, and a summary that finds free chunks without reading all of it.
//!
//! A set bit is a free block. A *chunk of order k* is 2^k free blocks that begin at a multiple of
//! 2^k. Above the bitmap there is one level for each order:
//! - orders 0 to 5: one bit a word of the bitmap, set when the word holds a chunk of the order;
//! - order 6: one bit a word, set when the whole word is free;
//! - orders 7 and up: one bit a chunk, set when the two chunks of the order below are.
//!
//! A buddy bitmap shows a free chunk only in its largest order. A level here shows every chunk of
//! its order, so a run of n blocks is found in the level of `order_within(n)`, also inside a longer
//! run.
//!
//! Invariant: the levels are a function of the bitmap (`check`).

mod search;
mod shape;
mod words;

pub(crate) use search::Run;
#[cfg(feature = "ablation")]
pub(crate) use shape::{ORDERS, order_for};
pub(crate) use shape::{Shape, order_within};

use words::{aligned_chunks, chunk_orders, fill, is_all, mask};

/// Words hold 64 blocks: the order of a whole one.
const WORD_ORDER: usize = 6;

/// Free blocks of one group. Methods take the [`Shape`] that all groups share.
#[derive(Clone)]
pub(crate) struct GroupBits {
    /// The bitmap, then the levels.
    words: Box<[u64]>,
}

impl GroupBits {
    /// A group that is free where `free` has a bit set.
    ///
    /// # Panics
    /// When `free` has another length than the shape's bitmap.
    pub(crate) fn new(shape: &Shape, free: &[u64]) -> Self {
        assert_eq!(free.len(), shape.words());
        let mut words = vec![0; shape.total_words()].into_boxed_slice();
        words[..free.len()].copy_from_slice(free);
        let mut bits = Self { words };
        bits.rebuild(shape);
        bits
    }

    /// The bitmap.
    pub(crate) fn bitmap(&self, shape: &Shape) -> &[u64] {
        &self.words[..shape.words()]
    }

    /// Whether block `at` is free.
    pub(crate) fn is_free(&self, at: u32) -> bool {
        self.words[at as usize / 64] >> (at % 64) & 1 == 1
    }

    /// Whether `count` blocks from `start` are all free, or all not.
    pub(crate) fn is_all(&self, start: u32, count: u32, free: bool) -> bool {
        is_all(&self.words, start as usize, (start + count) as usize, free)
    }

    /// Number of free blocks.
    pub(crate) fn count_free(&self, shape: &Shape) -> u32 {
        self.bitmap(shape)
            .iter()
            .map(|word| word.count_ones())
            .sum()
    }

    /// Free runs in order.
    pub(crate) fn runs(&self, shape: &Shape) -> impl Iterator<Item = Run> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let start = self.next_chunk(shape, 0, at, shape.blocks())?;
            let count = self.free_from(shape, start, shape.blocks());
            at = start + count;
            Some(Run { start, count })
        })
    }

    /// Marks `count` blocks from `start` on, which must all be in the other state. Returns the
    /// numbers of free blocks directly before and after them.
    pub(crate) fn mark(&mut self, shape: &Shape, start: u32, count: u32, free: bool) -> (u32, u32) {
        debug_assert!(self.is_all(start, count, !free));
        let end = start + count;
        let before = self.free_before(shape, start, 0);
        let after = self.free_from(shape, end, shape.blocks());
        self.mark_words(shape, start as usize, end as usize, free);
        (before, after)
    }

    /// Compares the levels with the bitmap.
    pub(crate) fn check(&self, shape: &Shape) -> Result<(), String> {
        let again = Self::new(shape, self.bitmap(shape));
        match self
            .words
            .iter()
            .zip(&again.words)
            .position(|(a, b)| a != b)
        {
            None => Ok(()),
            Some(at) => Err(format!("summary word {at} does not match the bitmap")),
        }
    }

    fn rebuild(&mut self, shape: &Shape) {
        for first in (0..shape.words()).step_by(64) {
            let last = shape.words().min(first + 64);
            let mut levels = [0; WORD_ORDER + 1];
            for word in first..last {
                let orders = chunk_orders(self.words[word]);
                for (order, level) in levels.iter_mut().enumerate() {
                    *level |= u64::from(orders >> order & 1) << (word - first);
                }
            }
            for (order, level) in levels.into_iter().enumerate() {
                self.words[shape.level(order)][first / 64] = level;
            }
        }
        for order in WORD_ORDER + 1..=shape.top() {
            for chunk in 0..shape.chunks(order) {
                let free = self.children_free(shape, order, chunk);
                self.set_bit(shape, order, chunk, free);
            }
        }
    }

    fn mark_words(&mut self, shape: &Shape, start: usize, end: usize, free: bool) {
        let (first, last) = (start / 64, (end - 1) / 64);
        let set = |word: &mut u64, mask: u64| {
            *word = if free { *word | mask } else { *word & !mask };
        };
        if first == last {
            set(&mut self.words[first], mask(start % 64, end - first * 64));
            return self.update(shape, first);
        }
        // Whole words between change all levels at once.
        let (mut whole_start, mut whole_end) = (first, last + 1);
        if !start.is_multiple_of(64) {
            set(&mut self.words[first], mask(start % 64, 64));
            self.update(shape, first);
            whole_start += 1;
        }
        if !end.is_multiple_of(64) {
            set(&mut self.words[last], mask(0, end % 64));
            self.update(shape, last);
            whole_end -= 1;
        }
        if whole_start < whole_end {
            let value = if free { u64::MAX } else { 0 };
            self.words[whole_start..whole_end].fill(value);
            for order in 0..=WORD_ORDER {
                fill(
                    &mut self.words[shape.level(order)],
                    whole_start,
                    whole_end,
                    free,
                );
            }
            self.update_above(shape, whole_start, whole_end, free);
        }
    }

    /// Brings the levels up to date with one changed word.
    fn update(&mut self, shape: &Shape, word: usize) {
        let was_whole = self.bit(shape, WORD_ORDER, word);
        self.summarise_word(shape, word);
        let whole = self.bit(shape, WORD_ORDER, word);
        if was_whole != whole {
            self.update_above(shape, word, word + 1, whole);
        }
    }

    fn summarise_word(&mut self, shape: &Shape, word: usize) {
        let orders = chunk_orders(self.words[word]);
        for order in 0..=WORD_ORDER {
            self.set_bit(shape, order, word, orders >> order & 1 == 1);
        }
    }

    /// Brings the levels above words up to date, after words `start..end` became wholly free or
    /// not.
    fn update_above(&mut self, shape: &Shape, mut start: usize, mut end: usize, free: bool) {
        for order in WORD_ORDER + 1..=shape.top() {
            start /= 2;
            end = end.div_ceil(2).min(shape.chunks(order));
            if start >= end {
                return;
            }
            if free {
                // Only the chunks at the edges may have a half that is not free.
                let first = self.children_free(shape, order, start);
                let last = self.children_free(shape, order, end - 1);
                fill(&mut self.words[shape.level(order)], start, end, true);
                self.set_bit(shape, order, start, first);
                self.set_bit(shape, order, end - 1, last);
            } else {
                fill(&mut self.words[shape.level(order)], start, end, false);
            }
        }
    }

    fn children_free(&self, shape: &Shape, order: usize, chunk: usize) -> bool {
        self.bit(shape, order - 1, 2 * chunk) && self.bit(shape, order - 1, 2 * chunk + 1)
    }

    fn bit(&self, shape: &Shape, order: usize, at: usize) -> bool {
        self.words[shape.level(order)][at / 64] >> (at % 64) & 1 == 1
    }

    fn set_bit(&mut self, shape: &Shape, order: usize, at: usize, value: bool) {
        let word = &mut self.words[shape.level(order)][at / 64];
        *word = *word & !(1 << (at % 64)) | u64::from(value) << (at % 64);
    }

    /// The chunks of `order` (at most 5) in bitmap word `word`.
    fn chunks_in_word(&self, word: usize, order: usize) -> u64 {
        aligned_chunks(self.words[word], order)
    }
}

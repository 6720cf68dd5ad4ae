//! Half-open ranges of bytes.

use std::fmt;

use serde::Serialize;

/// The bytes from `start` up to, not including, `end`. `start <= end` always holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize)]
pub struct ByteRange {
    start: u64,
    end: u64,
}

impl ByteRange {
    /// The range `start..end`.
    ///
    /// # Panics
    /// When `start > end`.
    pub fn new(start: u64, end: u64) -> Self {
        assert!(start <= end, "range starts at {start}, after its end {end}");
        Self { start, end }
    }

    /// `length` bytes from `start`; `None` when the end does not fit 64 bits.
    pub fn at(start: u64, length: u64) -> Option<Self> {
        Some(Self::new(start, start.checked_add(length)?))
    }

    /// First byte.
    pub fn start(self) -> u64 {
        self.start
    }

    /// One past the last byte.
    pub fn end(self) -> u64 {
        self.end
    }

    /// Number of bytes.
    pub fn len(self) -> u64 {
        self.end - self.start
    }

    /// True when the range holds no byte.
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// The bytes that both ranges hold, `None` when there are none.
    pub fn intersection(self, other: Self) -> Option<Self> {
        let start = self.start.max(other.start);
        let end = self.end.min(other.end);
        (start < end).then(|| Self::new(start, end))
    }

    /// Every byte of `other` is in `self`.
    pub fn contains(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// The largest range of whole `block`s inside this one (possibly empty).
    ///
    /// # Panics
    /// When `block` is not a power of two.
    pub fn shrink_to_blocks(self, block: u64) -> Self {
        assert!(block.is_power_of_two());
        let start = match self.start.checked_next_multiple_of(block) {
            Some(start) if start <= self.end => start,
            _ => return Self::new(self.start, self.start),
        };
        Self::new(start, (self.end & !(block - 1)).max(start))
    }

    /// `ranges` in order, without empty ones; those that overlap or touch are one.
    pub fn joined(mut ranges: Vec<Self>) -> Vec<Self> {
        ranges.retain(|range| !range.is_empty());
        ranges.sort_by_key(|range| range.start);
        let mut joined: Vec<Self> = Vec::new();
        for range in ranges {
            match joined.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => joined.push(range),
            }
        }
        joined
    }

    /// Consecutive pieces of at most `length` bytes, cut at multiples of `length`.
    ///
    /// # Panics
    /// When `length` is 0.
    pub fn chunks(self, length: u64) -> impl Iterator<Item = Self> {
        assert!(length > 0, "chunks of no bytes");
        let mut start = self.start;
        std::iter::from_fn(move || {
            if start >= self.end {
                return None;
            }
            let cut = (start - start % length).saturating_add(length);
            let piece = Self::new(start, cut.min(self.end));
            start = piece.end;
            Some(piece)
        })
    }
}

impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bytes {} to {}", self.start, self.end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn at_past_64_bits_is_none() {
        assert_eq!(ByteRange::at(u64::MAX, 1), None);
        assert_eq!(ByteRange::at(u64::MAX, 0).unwrap().len(), 0);
    }

    #[test]
    fn ranges_that_overlap_or_touch_are_joined() {
        let range = ByteRange::new;
        let parts = vec![
            range(40, 50),
            range(0, 10),
            range(5, 20),
            range(20, 30),
            range(7, 7),
        ];
        assert_eq!(ByteRange::joined(parts), [range(0, 30), range(40, 50)]);
    }

    #[test]
    fn shrink_to_blocks_of_a_range_inside_one_block_is_empty() {
        assert!(ByteRange::new(10, 4000).shrink_to_blocks(4096).is_empty());
        assert_eq!(
            ByteRange::new(10, 12_300).shrink_to_blocks(4096),
            ByteRange::new(4096, 12_288)
        );
    }

    proptest! {
        #[test]
        fn chunks_cover_the_range_in_order(start in 0u64..10_000, len in 0u64..10_000, size in 1u64..5_000) {
            let range = ByteRange::at(start, len).unwrap();
            let mut at = start;
            for piece in range.chunks(size) {
                prop_assert_eq!(piece.start(), at);
                prop_assert!(!piece.is_empty() && piece.len() <= size);
                prop_assert!(piece.end() == range.end() || piece.end() % size == 0);
                at = piece.end();
            }
            prop_assert_eq!(at, range.end());
        }
    }
}

//! A list that grows while others read it, and never moves an element.
//!
//! Segment 0 holds the initial elements of the list; each later one is as long as all before it,
//! but at least [`GROWTH_MIN`]. A segment is published as a whole, so that no reader sees a
//! half-made one.

use std::sync::OnceLock;

/// Elements of the first segment that is added.
const GROWTH_MIN: usize = 64;
/// Doublings: more than any list of ours grows.
const SEGMENTS: usize = 28;

pub(crate) struct Segments<T> {
    first: usize,
    segments: [OnceLock<Box<[T]>>; SEGMENTS],
}

impl<T> Segments<T> {
    /// A list of `length` elements.
    pub(crate) fn new(length: usize, make: impl FnMut(usize) -> T) -> Self {
        let segments = [const { OnceLock::new() }; SEGMENTS];
        let first: Box<[T]> = (0..length).map(make).collect();
        assert!(segments[0].set(first).is_ok());
        Self {
            first: length,
            segments,
        }
    }

    /// Makes room for at least `length` elements. Callers see to it that only one grows at a time.
    pub(crate) fn grow(&self, length: usize, mut make: impl FnMut(usize) -> T) {
        let mut capacity = self.first;
        for segment in 1..SEGMENTS {
            if capacity >= length {
                return;
            }
            let more = self.segment_length(segment);
            if self.segments[segment].get().is_none() {
                let made = (capacity..capacity + more).map(&mut make).collect();
                let new = self.segments[segment].set(made).is_ok();
                assert!(new, "two threads grew one list");
            }
            capacity += more;
        }
        assert!(capacity >= length, "a list of {length} elements");
    }

    /// The element, `None` beyond the present length.
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        let (segment, at) = self.locate(index);
        self.segments.get(segment)?.get()?.get(at)
    }

    /// First step of growth.
    fn step(&self) -> usize {
        self.first.next_power_of_two().max(GROWTH_MIN)
    }

    fn segment_length(&self, segment: usize) -> usize {
        match segment {
            0 => self.first,
            _ => self.step() << (segment - 1),
        }
    }

    fn locate(&self, index: usize) -> (usize, usize) {
        if index < self.first {
            return (0, index);
        }
        // Segment n > 0 begins `step * (2^(n-1) - 1)` after the first.
        let past = index - self.first;
        let step = self.step();
        let segment = (past / step + 1).ilog2() as usize;
        (segment + 1, past - step * ((1 << segment) - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_stays_where_it_is_while_the_list_grows() {
        for first in [0, 1, 7, 64, 1000] {
            let list = Segments::new(first, |index| index);
            let before = list.get(0).map(std::ptr::from_ref);
            for length in [first, first + 1, 100, 5000, 100_000] {
                list.grow(length, |index| index);
                for index in 0..length {
                    assert_eq!(list.get(index), Some(&index), "first {first}");
                }
            }
            if first > 0 {
                assert_eq!(list.get(0).map(std::ptr::from_ref), before);
            }
            assert_eq!(list.get(usize::MAX / 2), None);
        }
    }
}

//! Ranges of a file that have changed since the last commit, for a fast one.

use std::ops::Range;

use smallvec::SmallVec;

/// Ranges of one inode that are kept apart.
const RANGES_MAX: usize = 8;

/// Ranges of logical blocks, of which more than a few become one.
#[derive(Default)]
pub(crate) struct TouchedRanges(SmallVec<[Range<u64>; 1]>);

impl TouchedRanges {
    /// Adds a range; if there are too many, gaps between ranges are included.
    pub(crate) fn add(&mut self, range: Range<u64>) {
        let near = self
            .0
            .iter_mut()
            .find(|other| range.start <= other.end && other.start <= range.end);
        if let Some(near) = near {
            near.start = near.start.min(range.start);
            near.end = near.end.max(range.end);
            return;
        }
        if self.0.len() < RANGES_MAX {
            return self.0.push(range);
        }
        let all = self.0.drain(..).fold(range, |all, other| {
            all.start.min(other.start)..all.end.max(other.end)
        });
        self.0.push(all);
    }

    /// Takes them out, in order; they may be adjacent.
    pub(crate) fn take(&mut self) -> SmallVec<[Range<u64>; 1]> {
        let mut ranges = std::mem::take(&mut self.0);
        ranges.sort_unstable_by_key(|range| range.start);
        ranges
    }
}

//! Extents in order, of which neighbours that belong together are one.

use std::ops::Range;

use extant_ondisk::ext4::extent::{ExtentKind, LeafEntry};
use extant_ondisk::ext4::{LogicalBlock, PhysicalBlock};
use extant_space::Result;
use smallvec::SmallVec;

use super::corrupt;

/// The new entries of a leaf.
#[derive(Default)]
pub(super) struct Pieces(SmallVec<[LeafEntry; 6]>);

impl Pieces {
    /// Adds an extent; one that continues the last is joined with it, if there is room in its
    /// length.
    ///
    /// # Errors
    /// `Corrupt` when it begins before the end of the last.
    pub(super) fn push(&mut self, extent: LeafEntry) -> Result<()> {
        if let Some(last) = self.0.last_mut() {
            if u64::from(extent.logical.0) < last.logical_end() {
                return Err(corrupt(format!(
                    "extent tree: two extents hold block {}",
                    extent.logical
                )));
            }
            if continues(last, &extent) {
                last.blocks += extent.blocks;
                return Ok(());
            }
        }
        self.0.push(extent);
        Ok(())
    }

    /// Adds an extent as one of `kind`, in two if it is too long for one.
    pub(super) fn push_as(&mut self, extent: LeafEntry, kind: ExtentKind) -> Result<()> {
        let most = u64::from(kind.blocks_max());
        let start = u64::from(extent.logical.0);
        for part in [start..start + most, start + most..u64::MAX] {
            if let Some(part) = clip(&extent, &part) {
                self.push(LeafEntry { kind, ..part })?;
            }
        }
        Ok(())
    }

    pub(super) fn all(&self) -> &[LeafEntry] {
        &self.0
    }

    /// The pieces without those at both ends that exist already, and the part of `old`, the extents
    /// from `start` on, that the other pieces replace.
    pub(super) fn against(&self, old: &[LeafEntry], start: usize) -> (Range<usize>, &[LeafEntry]) {
        let new = &self.0[..];
        let common = new.len().min(old.len());
        let same = |(new, old): (&LeafEntry, &LeafEntry)| new == old;
        let before = new.iter().zip(old).take_while(|&pair| same(pair)).count();
        let behind = new.iter().rev().zip(old.iter().rev());
        let behind = behind
            .take(common - before)
            .take_while(|&pair| same(pair))
            .count();
        (
            start + before..start + old.len() - behind,
            &new[before..new.len() - behind],
        )
    }
}

/// Whether both can be one extent.
pub(super) fn continues(last: &LeafEntry, extent: &LeafEntry) -> bool {
    last.kind == extent.kind
        && last.logical_end() == u64::from(extent.logical.0)
        && last.physical.0 + u64::from(last.blocks) == extent.physical.0
        && u32::from(last.blocks) + u32::from(extent.blocks) <= u32::from(last.kind.blocks_max())
}

/// The part of an extent in `range`.
pub(super) fn clip(extent: &LeafEntry, range: &Range<u64>) -> Option<LeafEntry> {
    let first = u64::from(extent.logical.0);
    let start = first.max(range.start);
    let end = extent.logical_end().min(range.end);
    (start < end).then(|| LeafEntry {
        logical: LogicalBlock(start as u32),
        physical: PhysicalBlock(extent.physical.0 + (start - first)),
        blocks: (end - start) as u16,
        kind: extent.kind,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(logical: u32, blocks: u16, kind: ExtentKind) -> LeafEntry {
        LeafEntry {
            logical: LogicalBlock(logical),
            physical: PhysicalBlock(1000 + u64::from(logical)),
            blocks,
            kind,
        }
    }

    fn joined(extents: &[LeafEntry]) -> Vec<(u32, u16)> {
        let mut pieces = Pieces::default();
        for &extent in extents {
            pieces.push(extent).unwrap();
        }
        let flat = pieces.0.iter().map(|piece| (piece.logical.0, piece.blocks));
        flat.collect()
    }

    #[test]
    fn neighbours_are_joined_up_to_the_longest_of_their_kind() {
        use ExtentKind::{Unwritten, Written};
        for (kind, first, second, expected) in [
            (Written, 32_767, 1, &[(0, 32_768)][..]),
            (Written, 32_768, 1, &[(0, 32_768), (32_768, 1)]),
            (Unwritten, 32_766, 1, &[(0, 32_767)]),
            (Unwritten, 32_767, 1, &[(0, 32_767), (32_767, 1)]),
        ] {
            let pair = [extent(0, first, kind), extent(first.into(), second, kind)];
            assert_eq!(joined(&pair), expected, "{kind:?}");
        }
    }

    #[test]
    fn gap_elsewhere_and_another_kind_stay_apart() {
        let written = |logical| extent(logical, 2, ExtentKind::Written);
        let elsewhere = LeafEntry {
            physical: PhysicalBlock(5),
            ..written(2)
        };
        let unwritten = extent(2, 2, ExtentKind::Unwritten);
        for second in [written(3), elsewhere, unwritten] {
            assert_eq!(joined(&[written(0), second]).len(), 2, "{second:?}");
        }
    }

    #[test]
    fn overlap_is_refused() {
        let mut pieces = Pieces::default();
        pieces.push(extent(0, 2, ExtentKind::Written)).unwrap();
        let error = pieces.push(extent(1, 2, ExtentKind::Written)).unwrap_err();
        assert_eq!(error.to_string(), "extent tree: two extents hold block 1");
    }

    #[test]
    fn longest_written_extent_becomes_two_unwritten_ones() {
        let mut pieces = Pieces::default();
        let long = extent(0, 32_768, ExtentKind::Written);
        pieces.push_as(long, ExtentKind::Unwritten).unwrap();
        let lengths: Vec<_> = pieces.0.iter().map(|piece| piece.blocks).collect();
        assert_eq!(lengths, [32_767, 1]);
        assert_eq!(pieces.0[1].physical, PhysicalBlock(1000 + 32_767));
    }

    #[test]
    fn against_leaves_out_what_stands_there() {
        let at = |logical| extent(logical, 1, ExtentKind::Written);
        let mut pieces = Pieces::default();
        for logical in [0, 2, 4, 6] {
            pieces.push(at(logical)).unwrap();
        }
        let (range, new) = pieces.against(&[at(0), at(2), at(6)], 10);
        assert_eq!((range, new), (12..12, &[at(4)][..]));
        let (range, new) = pieces.against(&[at(0), at(2), at(3), at(4), at(6)], 10);
        assert_eq!((range, new), (12..13, &[][..]));
        let (range, new) = pieces.against(&[at(0), at(2), at(4), at(6)], 10);
        assert!(range.is_empty() && new.is_empty());
    }
}

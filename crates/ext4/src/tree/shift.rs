//! Moving extents to other logical blocks: collapse and insert range.
//!
//! Model: all extents from a block on move left into the hole before it, or right, which leaves a
//! hole. Moves to the left go in order from the first leaf on, moves to the right from the last one
//! back, so that the tree is valid after every step; the rest is a range of the old numbers.

use std::ops::{ControlFlow, Range};

use extant_ondisk::ext4::LogicalBlock;
use extant_ondisk::ext4::extent::{LOGICAL_END, LeafEntry};
use extant_space::{Error, ErrorKind, Result};
use smallvec::SmallVec;

use super::path::{Path, last_logical};
use super::pieces::{Pieces, clip};
use super::{Mapping, NodesMut, TreeMut};

/// Direction of the shift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// To lower blocks: collapse.
    Left,
    /// To higher blocks: insert.
    Right,
}

/// The rest to be moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shift {
    rest: Range<u64>,
    by: u64,
    direction: Direction,
}

impl<N: NodesMut> TreeMut<'_, N> {
    /// Prepares to move all extents from block `from` on by `by` blocks, and splits the one that
    /// contains `from`. One step. There is something to move unless it returns `None`.
    ///
    /// # Errors
    /// `InvalidArgument` if a move to the left has no hole to move into, or a move to the right
    /// would exceed the file size; `NoSpace` if the split needs a node. Nothing has changed then.
    pub(crate) fn shift(
        &mut self,
        from: u64,
        by: u64,
        direction: Direction,
    ) -> Result<Option<Shift>> {
        let Some(end) = self.end()?.filter(|&end| end > from && by > 0) else {
            return Ok(None);
        };
        let start = match direction {
            // From the start of the hole on, as an empty leaf there would be in the way.
            Direction::Left => self.check_hole(from, by)?,
            Direction::Right if by > LOGICAL_END - end => {
                // The same error as in the kernel.
                return Err(Error::new(ErrorKind::InvalidArgument)
                    .detail("extents behind would exceed the file's maximum size"));
            }
            Direction::Right => {
                self.split(from)?;
                from
            }
        };
        Ok(Some(Shift {
            rest: start..LOGICAL_END,
            by,
            direction,
        }))
    }

    /// Moves the extents of one leaf. One step. Returns the remaining range.
    ///
    /// # Errors
    /// `Corrupt`, or an error of the store. Nothing has changed then, and the step can be made
    /// again.
    pub(crate) fn shift_next(&mut self, shift: &Shift) -> Result<Option<Shift>> {
        let rest = shift.rest.clone();
        let at = match shift.direction {
            Direction::Left => rest.start,
            Direction::Right => rest.end - 1,
        };
        let root = *self.root;
        let path = self.descend(&root, last_logical(at))?;
        let leaf = path.last().expect("a path has a root");
        let place = leaf.place.logical.clone();
        let affected = leaf.extents_in(&rest, self.format)?;
        self.move_extents(path, affected, shift)?;
        let rest = match shift.direction {
            Direction::Left => place.end..rest.end,
            // Only the leftmost leaf is found for blocks before its first.
            Direction::Right if at < place.start => return Ok(None),
            Direction::Right => rest.start..place.start,
        };
        Ok((!rest.is_empty()).then(|| Shift {
            rest,
            ..shift.clone()
        }))
    }

    fn move_extents(
        &mut self,
        path: Path<'_>,
        affected: Range<usize>,
        shift: &Shift,
    ) -> Result<()> {
        let leaf = path.last().expect("a path has a root");
        // Extents moved left may become contiguous with existing ones.
        let first = affected.start.saturating_sub(1);
        let mut old: SmallVec<[LeafEntry; 4]> = SmallVec::new();
        let mut pieces = Pieces::default();
        for index in first..affected.end {
            let extent = leaf.extent(index, self.format)?;
            pieces.push(if affected.contains(&index) {
                moved(&extent, shift).ok_or_else(|| leaf.unsound(index))?
            } else {
                extent
            })?;
            old.push(extent);
        }
        let (replaced, new) = pieces.against(&old, first);
        self.splice(path, replaced, new)
    }

    /// One past the last block that is not a hole.
    fn end(&self) -> Result<Option<u64>> {
        let mut at = LOGICAL_END - 1;
        loop {
            let leaf = self.as_tree().leaf(last_logical(at))?;
            if let Some(last) = leaf.node().len().checked_sub(1) {
                return Ok(Some(leaf.extent(last, self.format)?.logical_end()));
            }
            // Others may leave an empty leaf behind.
            match leaf.place.logical.start.checked_sub(1) {
                Some(before) if before < at => at = before,
                _ => return Ok(None),
            }
        }
    }

    /// Start of the hole of `by` blocks before `from`.
    fn check_hole(&self, from: u64, by: u64) -> Result<u64> {
        let refused = |detail: String| Error::new(ErrorKind::InvalidArgument).detail(detail);
        let start = from
            .checked_sub(by)
            .ok_or_else(|| refused(format!("block {from} cannot move left by {by} blocks")))?;
        let found = self.as_tree().walk(start..from, |part| match part {
            Mapping::Hole(_) => ControlFlow::Continue(()),
            Mapping::Extent(extent) => ControlFlow::Break(extent.logical),
        })?;
        match found {
            ControlFlow::Continue(()) => Ok(start),
            ControlFlow::Break(block) => Err(refused(format!("block {block} is not a hole"))),
        }
    }

    /// Splits the extent across `from`, if there is one.
    fn split(&mut self, from: u64) -> Result<()> {
        let root = *self.root;
        let path = self.descend(&root, last_logical(from))?;
        let leaf = path.last().expect("a path has a root");
        let Some(index) = leaf.node().find(last_logical(from)) else {
            return Ok(());
        };
        let extent = leaf.extent(index, self.format)?;
        let parts = (
            clip(&extent, &(0..from)),
            clip(&extent, &(from..LOGICAL_END)),
        );
        match parts {
            (Some(before), Some(behind)) => self.splice(path, index..index + 1, &[before, behind]),
            _ => Ok(()),
        }
    }
}

/// The moved extent; `None` outside the file, which validated extents never are.
fn moved(extent: &LeafEntry, shift: &Shift) -> Option<LeafEntry> {
    let from = u64::from(extent.logical.0);
    let to = match shift.direction {
        Direction::Left => from.checked_sub(shift.by)?,
        Direction::Right => from + shift.by,
    };
    (to + u64::from(extent.blocks) <= LOGICAL_END).then_some(LeafEntry {
        logical: LogicalBlock(to as u32),
        ..*extent
    })
}

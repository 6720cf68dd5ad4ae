//! Conversion of extents: unwritten blocks become written when data reaches them, and written ones
//! unwritten when they are to read as zeros.

use std::ops::Range;

use extant_ondisk::ext4::extent::{ExtentKind, LOGICAL_END, LeafEntry};
use extant_space::Result;
use smallvec::SmallVec;

use super::path::last_logical;
use super::pieces::{Pieces, clip};
use super::{NodesMut, TreeMut};

impl<N: NodesMut> TreeMut<'_, N> {
    /// Converts some of the first blocks of `range` that are not of `kind`. One step. Returns the
    /// remaining range, which may still have to be converted.
    ///
    /// # Errors
    /// `NoSpace` when a node is needed for the parts of an extent; `Corrupt`, or an error of the
    /// store. Nothing has changed then.
    pub(crate) fn convert_next(
        &mut self,
        range: Range<u64>,
        kind: ExtentKind,
    ) -> Result<Option<Range<u64>>> {
        let range = range.start..range.end.min(LOGICAL_END);
        if range.is_empty() {
            return Ok(None);
        }
        let root = *self.root;
        let path = self.descend(&root, last_logical(range.start))?;
        let leaf = path.last().expect("a path has a root");
        let affected = leaf.extents_in(&range, self.format)?;
        let mut done = leaf.place.logical.end;
        // The neighbours take part, as they may be joined.
        let first = affected.start.saturating_sub(1);
        let mut old: SmallVec<[LeafEntry; 4]> = SmallVec::new();
        let mut pieces = Pieces::default();
        for index in first..(affected.end + 1).min(leaf.node().len()) {
            let extent = leaf.extent(index, self.format)?;
            if affected.contains(&index) {
                if pieces.all().len() > old.len() {
                    // The next one might add two more, for which a splice makes no room.
                    done = extent.logical.0.into();
                    old.push(extent);
                    pieces.push(extent)?;
                    break;
                }
                push_converted(&mut pieces, &extent, &range, kind)?;
            } else {
                pieces.push(extent)?;
            }
            old.push(extent);
        }
        let (replaced, new) = pieces.against(&old, first);
        self.splice(path, replaced, new)?;
        Ok((done < range.end).then_some(done..range.end))
    }
}

fn push_converted(
    pieces: &mut Pieces,
    extent: &LeafEntry,
    range: &Range<u64>,
    kind: ExtentKind,
) -> Result<()> {
    if extent.kind == kind {
        return pieces.push(*extent);
    }
    for part in [0..range.start, range.clone(), range.end..LOGICAL_END] {
        let Some(inside) = clip(extent, &part) else {
            continue;
        };
        if part == *range {
            pieces.push_as(inside, kind)?
        } else {
            pieces.push(inside)?
        }
    }
    Ok(())
}

//! Making holes: truncate and punch.

use std::ops::Range;

use extant_ondisk::ext4::extent::{LOGICAL_END, LeafEntry};
use extant_space::Result;
use smallvec::SmallVec;

use super::path::last_logical;
use super::pieces::{Pieces, clip};
use super::{NodesMut, TreeMut};

impl<N: NodesMut> TreeMut<'_, N> {
    /// Makes a hole of those blocks of `range` that its last leaf holds, of which there may be
    /// none. One step. `freed` receives the extents, clipped to the range, that lost their
    /// references. Returns the remaining range, which may still hold blocks.
    ///
    /// # Errors
    /// `NoSpace` if the range is inside one extent, whose two ends then need a node; `Corrupt`;
    /// errors of the store. Nothing has been removed then.
    pub(crate) fn remove_last(
        &mut self,
        range: Range<u64>,
        freed: &mut dyn FnMut(LeafEntry),
    ) -> Result<Option<Range<u64>>> {
        let range = range.start..range.end.min(LOGICAL_END);
        if range.is_empty() {
            return Ok(None);
        }
        let root = *self.root;
        let path = self.descend(&root, last_logical(range.end - 1))?;
        let leaf = path.last().expect("a path has a root");
        let affected = leaf.extents_in(&range, self.format)?;
        let begins = leaf.place.logical.start;
        let mut removed: SmallVec<[LeafEntry; 4]> = SmallVec::new();
        // It requires extents in order; these leave at most one extent more than before.
        let mut stays = Pieces::default();
        for index in affected.clone() {
            let extent = leaf.extent(index, self.format)?;
            removed.extend(clip(&extent, &range));
            for part in [0..range.start, range.end..LOGICAL_END] {
                if let Some(part) = clip(&extent, &part) {
                    stays.push(part)?;
                }
            }
        }
        self.splice(path, affected, stays.all())?;
        removed.into_iter().for_each(freed);
        Ok((begins > range.start && begins < range.end).then_some(range.start..begins))
    }
}

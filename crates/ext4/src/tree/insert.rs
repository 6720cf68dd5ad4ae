//! Filling holes.

use extant_ondisk::ext4::extent::{LOGICAL_END, LeafEntry};
use extant_space::{Error, ErrorKind, Result};

use super::lookup::Beside;
use super::pieces::continues;
use super::{NodesMut, TreeMut, corrupt};

impl<N: NodesMut> TreeMut<'_, N> {
    /// Puts an extent into a hole, joined with its neighbours where they continue each other. One
    /// step.
    ///
    /// # Errors
    /// `Corrupt` when the blocks are not a hole; `TooLarge` past the last block of a file, and when
    /// a tree of full depth is full; `NoSpace` when a node is needed and cannot be had. Nothing has
    /// changed then.
    ///
    /// # Panics
    /// When the extent cannot be stored: its length, or a place outside the file system.
    pub(crate) fn insert(&mut self, extent: LeafEntry) -> Result<()> {
        assert!(
            (1..=extent.kind.blocks_max()).contains(&extent.blocks)
                && self
                    .format
                    .layout
                    .holds(extent.physical, extent.blocks.into()),
            "{extent:?} cannot be stored"
        );
        if extent.logical_end() > LOGICAL_END {
            return Err(Error::new(ErrorKind::TooLarge));
        }
        let root = *self.root;
        let path = self.descend(&root, extent.logical)?;
        let leaf = path.last().expect("a path has a root");
        let beside = Beside::new(leaf, extent.logical, self.format)?;
        let after = beside.after(leaf, self.format)?;
        let hole = beside.hole(leaf, after.as_ref());
        if hole.start > extent.logical.0.into() || extent.logical_end() > hole.end {
            return Err(taken(&extent));
        }
        let mut range = beside.at..beside.at;
        let mut whole = extent;
        if let Some(before) = beside.before
            && continues(&before, &whole)
        {
            range.start -= 1;
            whole = LeafEntry {
                blocks: before.blocks + whole.blocks,
                ..before
            };
        }
        if let Some(after) = after
            && continues(&whole, &after)
        {
            range.end += 1;
            whole.blocks += after.blocks;
        }
        self.splice(path, range, &[whole])
    }
}

#[cold]
fn taken(extent: &LeafEntry) -> Error {
    corrupt(format!(
        "extent tree: blocks {} to {} are taken already",
        extent.logical,
        extent.logical_end()
    ))
}

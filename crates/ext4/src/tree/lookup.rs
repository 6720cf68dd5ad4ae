//! Lookup of blocks.
//!
//! A leaf begins with the first block of its parent's key, and ends where the next one begins. So
//! one leaf determines where a hole ends, and nothing else is read for it.

use std::ops::{ControlFlow, Range};

use extant_ondisk::ext4::LogicalBlock;
use extant_ondisk::ext4::extent::{LOGICAL_END, LeafEntry};
use extant_space::Result;

use super::path::{Level, last_logical};
use super::pieces::clip;
use super::{Mapping, Nodes, Tree, TreeFormat};

impl<'a, N: Nodes> Tree<'a, N> {
    /// Maps block `logical`: the whole extent, or the whole hole (in parts if there is an empty
    /// leaf, which other implementations leave). Block 2^32 - 1, which no file has, is a hole of
    /// its own.
    ///
    /// # Errors
    /// `Corrupt`; errors of the store.
    pub(crate) fn find(&self, logical: LogicalBlock) -> Result<Mapping> {
        if u64::from(logical.0) >= LOGICAL_END {
            return Ok(Mapping::Hole(LOGICAL_END..LOGICAL_END + 1));
        }
        let root = Level::root(self.root, self.format)?;
        match root.depth() {
            0 => self.find_in(&root, logical),
            _ => self.find_in(&self.leaf_below(root, logical)?, logical),
        }
    }

    fn find_in(&self, leaf: &Level<'_>, logical: LogicalBlock) -> Result<Mapping> {
        let beside = Beside::new(leaf, logical, self.format)?;
        Ok(match beside.before {
            Some(extent) if extent.logical_end() > logical.0.into() => Mapping::Extent(extent),
            _ => {
                let after = beside.after(leaf, self.format)?;
                Mapping::Hole(beside.hole(leaf, after.as_ref()))
            }
        })
    }

    /// Visits the extents and holes of `range`, clipped to it, in order, until `visit` breaks.
    ///
    /// # Errors
    /// As [`find`](Self::find); mappings before the error have been visited.
    pub(crate) fn walk<B>(
        &self,
        range: Range<u64>,
        mut visit: impl FnMut(Mapping) -> ControlFlow<B>,
    ) -> Result<ControlFlow<B>> {
        let mut at = range.start;
        let end = range.end.min(LOGICAL_END);
        while at < end {
            let leaf = self.leaf(last_logical(at))?;
            let within = leaf.place.logical.end.min(end);
            for index in leaf.extents_in(&(at..within), self.format)? {
                let extent = leaf.extent(index, self.format)?;
                let Some(part) = clip(&extent, &(at..within)) else {
                    continue;
                };
                let start = u64::from(part.logical.0);
                if start > at
                    && let ControlFlow::Break(value) = visit(Mapping::Hole(at..start))
                {
                    return Ok(ControlFlow::Break(value));
                }
                at = part.logical_end();
                if let ControlFlow::Break(value) = visit(Mapping::Extent(part)) {
                    return Ok(ControlFlow::Break(value));
                }
            }
            if at < within {
                if let ControlFlow::Break(value) = visit(Mapping::Hole(at..within)) {
                    return Ok(ControlFlow::Break(value));
                }
                at = within;
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    pub(super) fn leaf(&self, logical: LogicalBlock) -> Result<Level<'a>> {
        self.leaf_below(Level::root(self.root, self.format)?, logical)
    }

    fn leaf_below(&self, mut level: Level<'a>, logical: LogicalBlock) -> Result<Level<'a>> {
        while level.depth() > 0 {
            let index = level.way_to(logical)?;
            level = level.child(index, self.format, |block, validate| {
                self.nodes.read(block, validate)
            })?;
        }
        Ok(level)
    }
}

/// Position of a block in a leaf.
pub(super) struct Beside {
    logical: LogicalBlock,
    /// The index of the first extent after the block.
    pub(super) at: usize,
    /// The extent that begins at the block or before; it may hold it.
    pub(super) before: Option<LeafEntry>,
}

impl Beside {
    #[inline]
    pub(super) fn new(
        leaf: &Level<'_>,
        logical: LogicalBlock,
        format: TreeFormat<'_>,
    ) -> Result<Self> {
        let found = leaf.node().find(logical);
        Ok(Self {
            logical,
            at: found.map_or(0, |index| index + 1),
            before: match found {
                Some(index) => Some(leaf.extent(index, format)?),
                None => None,
            },
        })
    }

    /// The first extent after the block.
    #[inline]
    pub(super) fn after(
        &self,
        leaf: &Level<'_>,
        format: TreeFormat<'_>,
    ) -> Result<Option<LeafEntry>> {
        if self.at == leaf.node().len() {
            return Ok(None);
        }
        let after = leaf.extent(self.at, format)?;
        if after.logical > self.logical {
            Ok(Some(after))
        } else {
            Err(leaf.unsound(self.at))
        }
    }

    /// The hole that the block is in, unless the extent before holds it.
    #[inline]
    pub(super) fn hole(&self, leaf: &Level<'_>, after: Option<&LeafEntry>) -> Range<u64> {
        let leaf = &leaf.place.logical;
        let start = match &self.before {
            Some(extent) => extent.logical_end(),
            // Only the leftmost leaf is asked for blocks before its first.
            None if u64::from(self.logical.0) < leaf.start => 0,
            None => leaf.start,
        };
        let end = after.map_or(leaf.end, |extent| extent.logical.0.into());
        start..end
    }
}

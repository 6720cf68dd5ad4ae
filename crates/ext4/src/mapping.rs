//! Mapping of an inode: an extent tree or a block map, behind one interface.
//!
//! The kind is determined once, when a map is made for reading or changing.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use extant_ondisk::ext4::extent::LeafEntry;
use extant_ondisk::ext4::inode::InodeFlags;
use extant_ondisk::ext4::{Inode, LogicalBlock, PhysicalBlock};
use extant_space::Result;

use crate::block_map::{BlockMap, BlockMapMut};
use crate::cache::BlockCache;
use crate::inode_cell::InodeState;
use crate::tree::{Mapping, Nodes, NodesMut, Tree, TreeFormat, TreeMut, Validator};

impl Nodes for BlockCache {
    fn read(&self, block: PhysicalBlock, validate: Validator<'_>) -> Result<Arc<[u8]>> {
        BlockCache::read(self, block, validate)
    }
}

/// Maps block `logical`. A hole or extent may be returned in parts.
pub(crate) fn find(
    inode: &Inode,
    cache: &BlockCache,
    format: TreeFormat<'_>,
    logical: LogicalBlock,
) -> Result<Mapping> {
    if inode.flags().contains(InodeFlags::EXTENTS) {
        Tree::new(inode.block_area(), cache, format).find(logical)
    } else {
        BlockMap::new(inode.block_area(), cache, format).find(logical)
    }
}

/// Visits the extents in `range` of logical blocks, clipped to it, in order, until `visit` breaks.
pub(crate) fn walk<B>(
    inode: &Inode,
    cache: &BlockCache,
    format: TreeFormat<'_>,
    range: Range<u64>,
    visit: impl FnMut(Mapping) -> ControlFlow<B>,
) -> Result<ControlFlow<B>> {
    if inode.flags().contains(InodeFlags::EXTENTS) {
        Tree::new(inode.block_area(), cache, format).walk(range, visit)
    } else {
        BlockMap::new(inode.block_area(), cache, format).walk(range, visit)
    }
}

/// The map of an inode, to be changed in steps: the operations common to both kinds.
pub(crate) enum MapMut<'a, N> {
    Tree(TreeMut<'a, N>),
    Blocks(BlockMapMut<'a, N>),
}

impl<'a, N: NodesMut> MapMut<'a, N> {
    /// The map of the inode, whose nodes are in `nodes`.
    pub(crate) fn new(state: &'a mut InodeState, nodes: &'a mut N, format: TreeFormat<'a>) -> Self {
        if state.inode.flags().contains(InodeFlags::EXTENTS) {
            Self::Tree(TreeMut::new(state.tree_area(), nodes, format))
        } else {
            Self::Blocks(BlockMapMut::new(state.tree_area(), nodes, format))
        }
    }

    /// Inserts an extent into a hole. One step.
    ///
    /// # Errors
    /// Those of [`TreeMut::insert`] and [`BlockMapMut::insert`]. Nothing has changed then.
    pub(crate) fn insert(&mut self, extent: LeafEntry) -> Result<()> {
        match self {
            Self::Tree(tree) => tree.insert(extent),
            Self::Blocks(map) => map.insert(extent),
        }
    }

    /// Makes a hole of the last blocks of `range`, as many as one step can. `freed` receives the
    /// extents, clipped to the range, that lost their references. Returns the remaining range,
    /// which may still hold blocks.
    ///
    /// # Errors
    /// Those of [`TreeMut::remove_last`] and [`BlockMapMut::remove_last`]. Nothing has been removed
    /// then.
    pub(crate) fn remove_last(
        &mut self,
        range: Range<u64>,
        freed: &mut dyn FnMut(LeafEntry),
    ) -> Result<Option<Range<u64>>> {
        match self {
            Self::Tree(tree) => tree.remove_last(range, freed),
            Self::Blocks(map) => map.remove_last(range, freed),
        }
    }
}

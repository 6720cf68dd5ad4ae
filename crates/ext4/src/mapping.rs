//! Where the blocks of an inode are, whichever way it keeps them.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use extant_ondisk::ext4::inode::InodeFlags;
use extant_ondisk::ext4::{Inode, InodeSeed, Layout, LogicalBlock, PhysicalBlock};
use extant_space::Result;

use crate::block_map::BlockMap;
use crate::cache::BlockCache;
use crate::tree::{Judge, Mapping, Nodes, Tree, TreeFormat};

impl Nodes for BlockCache {
    fn read(&self, block: PhysicalBlock, judge: Judge<'_>) -> Result<Arc<[u8]>> {
        BlockCache::read(self, block, judge)
    }
}

/// What block `logical` belongs to. A hole or extent may be told in parts.
pub(crate) fn find(
    inode: &Inode,
    cache: &BlockCache,
    layout: &Layout,
    seed: Option<InodeSeed>,
    logical: LogicalBlock,
) -> Result<Mapping> {
    match inode.flags().contains(InodeFlags::EXTENTS) {
        true => Tree::new(inode.block_area(), cache, TreeFormat { layout, seed }).find(logical),
        false => BlockMap::new(inode.block_area(), cache, layout).find(logical),
    }
}

/// Visits what is in `range` of logical blocks, cut to it, in order, until `visit` breaks.
pub(crate) fn walk<B>(
    inode: &Inode,
    cache: &BlockCache,
    layout: &Layout,
    seed: Option<InodeSeed>,
    range: Range<u64>,
    visit: impl FnMut(Mapping) -> ControlFlow<B>,
) -> Result<ControlFlow<B>> {
    match inode.flags().contains(InodeFlags::EXTENTS) {
        true => {
            Tree::new(inode.block_area(), cache, TreeFormat { layout, seed }).walk(range, visit)
        }
        false => BlockMap::new(inode.block_area(), cache, layout).walk(range, visit),
    }
}

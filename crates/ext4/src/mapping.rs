//! Where the blocks of an inode are, whichever way it keeps them.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use extant_ondisk::ext4::inode::InodeFlags;
use extant_ondisk::ext4::{Inode, LogicalBlock, PhysicalBlock};
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
    format: TreeFormat<'_>,
    logical: LogicalBlock,
) -> Result<Mapping> {
    match inode.flags().contains(InodeFlags::EXTENTS) {
        true => Tree::new(inode.block_area(), cache, format).find(logical),
        false => BlockMap::new(inode.block_area(), cache, format).find(logical),
    }
}

/// Visits what is in `range` of logical blocks, cut to it, in order, until `visit` breaks.
pub(crate) fn walk<B>(
    inode: &Inode,
    cache: &BlockCache,
    format: TreeFormat<'_>,
    range: Range<u64>,
    visit: impl FnMut(Mapping) -> ControlFlow<B>,
) -> Result<ControlFlow<B>> {
    match inode.flags().contains(InodeFlags::EXTENTS) {
        true => Tree::new(inode.block_area(), cache, format).walk(range, visit),
        false => BlockMap::new(inode.block_area(), cache, format).walk(range, visit),
    }
}

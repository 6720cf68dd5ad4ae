//! The fast path for most new blocks: after all others of the file, where the last extent becomes
//! longer.
//!
//! Model: [`LastExtent`] is the last entry of a root that is a leaf, cached from the inode. It is a
//! hint next to the tree: any other change of the tree drops it ([`InodeState::tree_area`]), and it
//! is rebuilt when an extent is inserted at the end.

use extant_mballoc::{Block as AllocatorBlock, Goal};
use extant_ondisk::ext4::extent::{ExtentNode, ExtentNodeMut, LOGICAL_END, LeafEntry};
use extant_ondisk::ext4::inode::InodeFlags;
use extant_ondisk::ext4::{Layout, LogicalBlock};

use super::write::MapPosition;
use crate::inode_cell::{InodeState, LastExtent};
use crate::tree::Mapping;

impl InodeState {
    /// [`MapPosition`] after the last extent.
    pub(super) fn spot_at_end(&self, logical: LogicalBlock) -> Option<MapPosition> {
        let last = self.end?.extent;
        let end = last.logical_end();
        (end == u64::from(logical.0)).then(|| MapPosition {
            mapping: Mapping::Hole(end..LOGICAL_END),
            goal: Goal::Follow(AllocatorBlock(last.physical.0 + u64::from(last.blocks))),
            room: None,
            limit: None,
            depth: 0,
        })
    }

    /// Extends the last extent by a contiguous one, if possible; returns whether it did.
    pub(super) fn extend_last(&mut self, extent: &LeafEntry) -> bool {
        let Some(LastExtent {
            index,
            extent: mut last,
        }) = self.end
        else {
            return false;
        };
        let goes_on = last.logical_end() == u64::from(extent.logical.0)
            && last.physical.0 + u64::from(last.blocks) == extent.physical.0
            && last.kind == extent.kind
            && last.blocks <= last.kind.blocks_max() - extent.blocks;
        if !goes_on {
            return false;
        }
        last.blocks += extent.blocks;
        ExtentNodeMut::new(self.inode.block_area_mut()).set_leaf(index, &last);
        self.end = Some(LastExtent {
            index,
            extent: last,
        });
        true
    }

    /// Finds the end of the file after a change of its tree.
    pub(super) fn find_end(&mut self, layout: &Layout) {
        self.end = None;
        if !self.inode.flags().contains(InodeFlags::EXTENTS) {
            return;
        }
        if let Ok(root) = ExtentNode::parse_root(self.inode.block_area(), layout)
            && root.depth() == 0
            && let Some(index) = root.len().checked_sub(1)
        {
            self.end = Some(LastExtent {
                index,
                extent: root.leaf(index),
            });
        }
    }
}

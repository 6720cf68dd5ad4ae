//! The nodes of an extent tree, as they are.

use std::ops::ControlFlow;
use std::sync::Arc;

use extant_ondisk::ext4::PhysicalBlock;
use extant_ondisk::ext4::extent::{ExtentNode, IndexEntry, LeafEntry, NodePlace};
use extant_ondisk::ext4::inode::InodeFlags;
use extant_ondisk::ext4::{Inode, InodeSeed};
use extant_space::Result;

use crate::node::Node;
use crate::state::FsState;
use crate::sync::read;

/// A node of an extent tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeNode {
    /// Its block; `None` for the root, which is in the inode.
    pub block: Option<PhysicalBlock>,
    /// Nodes above it.
    pub level: u16,
    /// Levels below it: 0 when its entries are extents.
    pub depth: u16,
    /// Entries that it has.
    pub entries: u16,
    /// Entries that fit.
    pub capacity: u16,
}

/// An entry of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeEntry {
    /// A reference to a lower node; its entries follow.
    Index(IndexEntry),
    /// An extent.
    Extent(LeafEntry),
}

/// Receives each entry: its node, its index in it from 0, and the entry.
type Visit<'v> = dyn FnMut(&TreeNode, u16, TreeEntry) -> ControlFlow<()> + 'v;

impl Node {
    /// Visits the entries of the extent tree, each reference before its subtree, until `visit`
    /// breaks. Returns the root; `None` where there is no tree.
    ///
    /// # Errors
    /// `Corrupt` naming the node; those of the device.
    pub fn for_each_tree_entry(&self, visit: &mut Visit<'_>) -> Result<Option<TreeNode>> {
        let (inode, seed) = {
            let state = read(&self.cell.state);
            (state.inode, state.seed)
        };
        self.engine
            .record_corruption(self.engine.fs.tree_entries(&inode, seed, visit))
    }
}

impl FsState {
    fn tree_entries(
        &self,
        inode: &Inode,
        seed: Option<InodeSeed>,
        visit: &mut Visit<'_>,
    ) -> Result<Option<TreeNode>> {
        if !inode.flags().contains(InodeFlags::EXTENTS) {
            return Ok(None);
        }
        let node = ExtentNode::parse_root(inode.block_area(), &self.layout)?;
        let root = told(&node, None, 0);
        let _ = self.visit_node(&node, &root, seed, visit)?;
        Ok(Some(root))
    }

    fn visit_node(
        &self,
        node: &ExtentNode<'_>,
        told_as: &TreeNode,
        seed: Option<InodeSeed>,
        visit: &mut Visit<'_>,
    ) -> Result<ControlFlow<()>> {
        for index in 0..node.len() {
            let entry = match node.depth() {
                0 => TreeEntry::Extent(node.leaf(index)),
                _ => TreeEntry::Index(node.index(index)),
            };
            if visit(told_as, index as u16, entry).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            if node.depth() > 0 {
                let place = node.child(index);
                let bytes = self.node_bytes(&place, seed)?;
                // Bytes in the cache were validated once, perhaps as another structure.
                let child = ExtentNode::parse_block(&bytes, &place, &self.layout, seed)?;
                let child_told = told(&child, Some(place.block), told_as.level + 1);
                if self
                    .visit_node(&child, &child_told, seed, visit)?
                    .is_break()
                {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn node_bytes(&self, place: &NodePlace, seed: Option<InodeSeed>) -> Result<Arc<[u8]>> {
        self.cache.read(place.block, &|bytes| {
            ExtentNode::parse_block(bytes, place, &self.layout, seed).map(|_| ())
        })
    }
}

fn told(node: &ExtentNode<'_>, block: Option<PhysicalBlock>, level: u16) -> TreeNode {
    TreeNode {
        block,
        level,
        depth: node.depth(),
        entries: node.len() as u16,
        capacity: node.capacity() as u16,
    }
}

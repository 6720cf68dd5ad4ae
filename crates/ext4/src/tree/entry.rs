//! The interface common to extents and references: entries of nodes, sorted by their first logical
//! block.

use std::ops::Range;

use extant_ondisk::ext4::LogicalBlock;
use extant_ondisk::ext4::extent::{ExtentNode, ExtentNodeMut, IndexEntry, LeafEntry};

/// An entry of a leaf or of a node above.
pub(super) trait NodeEntry: Copy {
    /// The first logical block.
    fn logical(&self) -> LogicalBlock;
    /// NodeEntry `index` of a node.
    fn of(node: &ExtentNode<'_>, index: usize) -> Self;
    /// Replaces entry `index`.
    fn set(&self, node: &mut ExtentNodeMut<'_>, index: usize);
    /// Becomes entry `index`.
    fn insert(&self, node: &mut ExtentNodeMut<'_>, index: usize);
}

impl NodeEntry for LeafEntry {
    fn logical(&self) -> LogicalBlock {
        self.logical
    }

    fn of(node: &ExtentNode<'_>, index: usize) -> Self {
        node.leaf(index)
    }

    fn set(&self, node: &mut ExtentNodeMut<'_>, index: usize) {
        node.set_leaf(index, self);
    }

    fn insert(&self, node: &mut ExtentNodeMut<'_>, index: usize) {
        node.insert_leaf(index, self);
    }
}

impl NodeEntry for IndexEntry {
    fn logical(&self) -> LogicalBlock {
        self.logical
    }

    fn of(node: &ExtentNode<'_>, index: usize) -> Self {
        node.index(index)
    }

    fn set(&self, node: &mut ExtentNodeMut<'_>, index: usize) {
        node.set_index(index, self);
    }

    fn insert(&self, node: &mut ExtentNodeMut<'_>, index: usize) {
        node.insert_index(index, self);
    }
}

/// All entries of a node.
pub(super) fn all<E: NodeEntry>(node: &ExtentNode<'_>) -> Vec<E> {
    (0..node.len()).map(|index| E::of(node, index)).collect()
}

/// Appends `entries` to a node that has room.
pub(super) fn append<E: NodeEntry>(node: &mut ExtentNodeMut<'_>, entries: &[E]) {
    for entry in entries {
        entry.insert(node, node.len());
    }
}

/// Replaces the entries of `range` by `new`, which the node has room for.
pub(super) fn replace<E: NodeEntry>(node: &mut ExtentNodeMut<'_>, range: Range<usize>, new: &[E]) {
    let in_place = range.len().min(new.len());
    let (over, more) = new.split_at(in_place);
    let behind = range.start + in_place;
    for (index, entry) in (range.start..).zip(over) {
        entry.set(node, index);
    }
    if behind < range.end {
        node.remove(behind..range.end);
    }
    for (index, entry) in (behind..).zip(more) {
        entry.insert(node, index);
    }
}

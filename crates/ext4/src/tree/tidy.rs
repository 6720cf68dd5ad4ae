//! Keeping the tree small after extents were removed.
//!
//! Two neighbours of which one is at most a quarter full become one when both together fill at most
//! half a node, so that it does not have to be split again at once. A root with a single child is
//! replaced by it, if it fits. Both are worth doing and not needed: a node that cannot be read for
//! them is skipped, and the error is returned when the node is needed.

use extant_ondisk::ext4::extent::{ExtentNodeMut, IndexEntry, LeafEntry};
use extant_ondisk::ext4::{Compat, LogicalBlock};
use extant_space::Result;

use super::entry::{self, NodeEntry};
use super::path::Level;
use super::splice::{ROOT_ENTRIES, sparse};
use super::{NodesMut, TreeMut, Validator};

impl<N: NodesMut> TreeMut<'_, N> {
    /// Joins the nodes on the way to `near` with neighbours, from the leaf up, and then shortens
    /// the tree.
    ///
    /// # Errors
    /// Only when a node was changed by something else meanwhile.
    pub(super) fn tidy(&mut self, near: LogicalBlock) -> Result<()> {
        let features = self.format.layout.features();
        if !features.compat.contains(Compat::HAS_JOURNAL) {
            // An interruption could otherwise write the shorter index without the longer leaf.
            while self.pull_up() {}
            return Ok(());
        }
        let depth = Level::root(self.root, self.format).map_or(0, |root| root.depth());
        for height in 0..usize::from(depth) {
            self.join(near, height)?;
        }
        while self.pull_up() {}
        Ok(())
    }

    /// Joins the node at `height` above the leaf with the next or the previous of its parent's
    /// children.
    fn join(&mut self, near: LogicalBlock, height: usize) -> Result<()> {
        let root = *self.root;
        let Ok(mut path) = self.descend(&root, near) else {
            return Ok(());
        };
        path.truncate(path.len().saturating_sub(height));
        let (Some(node), Some(parent)) = (path.pop(), path.pop()) else {
            return Ok(());
        };
        if !sparse(node.node().len(), node.node().capacity()) {
            return Ok(());
        }
        let index = parent.index;
        if let Some(next) = self.room_beside(&node, &parent, index + 1) {
            return self.join_pair(parent, index, node, next);
        }
        match index.checked_sub(1) {
            Some(before) => match self.room_beside(&node, &parent, before) {
                Some(previous) => self.join_pair(parent, before, previous, node),
                None => Ok(()),
            },
            None => Ok(()),
        }
    }

    /// Child `index` of `parent`, if it fits into one node together with `node`.
    fn room_beside(
        &mut self,
        node: &Level<'_>,
        parent: &Level<'_>,
        index: usize,
    ) -> Option<Level<'static>> {
        if index >= parent.node().len() {
            return None;
        }
        let (format, nodes) = (self.format, &mut *self.nodes);
        let read = |block, validate: Validator<'_>| nodes.hold(block, validate);
        let beside = parent.child(index, format, read).ok()?;
        let together = node.node().len() + beside.node().len();
        let room = node.node().capacity().min(beside.node().capacity());
        // Two references to one block are not detected by validation.
        let apart = node.place.block != beside.place.block;
        let sound = || node.check(format).is_ok() && beside.check(format).is_ok();
        (apart && together <= room / 2 && sound()).then_some(beside)
    }

    /// Moves all entries of `right` into `left`, which is child `index` of `parent`.
    fn join_pair(
        &mut self,
        parent: Level<'_>,
        index: usize,
        left: Level<'_>,
        right: Level<'_>,
    ) -> Result<()> {
        let block = right.place.block;
        match left.depth() {
            0 => self.append::<LeafEntry>(left, &right)?,
            _ => self.append::<IndexEntry>(left, &right)?,
        }
        self.change(parent, |node| node.remove(index + 1..index + 2))?;
        self.nodes.remove(block);
        Ok(())
    }

    fn append<E: NodeEntry>(&mut self, left: Level<'_>, right: &Level<'_>) -> Result<()> {
        let entries: Vec<E> = entry::all(&right.node());
        self.change(left, |node| entry::append(node, &entries))
    }

    /// Puts the only child of the root in its place; whether that was done.
    fn pull_up(&mut self) -> bool {
        let root = *self.root;
        let Ok(root) = Level::root(&root, self.format) else {
            return false;
        };
        if root.depth() == 0 || root.node().len() != 1 {
            return false;
        }
        let (format, nodes) = (self.format, &mut *self.nodes);
        let Ok(child) = root.child(0, format, |block, validate| nodes.hold(block, validate)) else {
            return false;
        };
        if child.node().len() > ROOT_ENTRIES || child.check(format).is_err() {
            return false;
        }
        match child.depth() {
            0 => self.become_root::<LeafEntry>(&child),
            _ => self.become_root::<IndexEntry>(&child),
        }
        true
    }

    fn become_root<E: NodeEntry>(&mut self, child: &Level<'_>) {
        let entries: Vec<E> = entry::all(&child.node());
        let mut root = ExtentNodeMut::init(self.root, child.depth());
        entry::append(&mut root, &entries);
        self.nodes.remove(child.place.block);
    }
}

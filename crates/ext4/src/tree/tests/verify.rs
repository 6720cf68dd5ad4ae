//! Verification of every node and extent, and operations of many steps in one call.

use std::ops::Range;

use extant_ondisk::ext4::PhysicalBlock;
use extant_ondisk::ext4::extent::{ExtentKind, ExtentNode, LeafEntry};
use extant_space::Result;

use crate::tree::path::Level;
use crate::tree::{Nodes, NodesMut, Tree, TreeMut};

/// Counts of the nodes and extents of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::tree) struct Summary {
    /// Extents.
    pub extents: u64,
    /// Blocks of all extents.
    pub blocks: u64,
    /// Blocks of nodes; the root is none.
    pub nodes: u64,
    /// Levels above the leaves.
    pub depth: u16,
}

/// Something that owns blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tree) enum Part {
    /// A node in a block of its own.
    Node(PhysicalBlock),
    /// Blocks of the file.
    Extent(LeafEntry),
}

impl<N: Nodes> Tree<'_, N> {
    /// Verifies every node by all invariants of the format, including those the store has
    /// validated, and visits their blocks, in order; a node comes before its subtree. It terminates
    /// for every image: a node above the leaves is at one place only, because its first block is
    /// its key.
    ///
    /// # Errors
    /// The defect of the first defective node; errors of the store.
    pub(in crate::tree) fn verify(&self, mut visit: impl FnMut(Part)) -> Result<Summary> {
        let root = Level::root(self.root, self.format)?;
        let mut summary = Summary {
            depth: root.depth(),
            ..Summary::default()
        };
        let mut path = vec![root];
        while let Some(level) = path.last_mut() {
            let index = level.index;
            level.index += 1;
            if index == level.node().len() {
                path.pop();
            } else if level.depth() == 0 {
                let extent = level.node().leaf(index);
                summary.extents += 1;
                summary.blocks += u64::from(extent.blocks);
                visit(Part::Extent(extent));
            } else {
                let child = level.child(index, self.format, |block, validate| {
                    self.nodes.read(block, validate)
                })?;
                let (format, place) = (self.format, &child.place);
                ExtentNode::parse_block(child.bytes(), place, format.layout, format.seed)?;
                summary.nodes += 1;
                visit(Part::Node(child.place.block));
                path.push(child);
            }
        }
        Ok(summary)
    }
}

impl<N: NodesMut> TreeMut<'_, N> {
    /// Makes a hole of all blocks of `range`.
    pub(in crate::tree) fn remove(
        &mut self,
        range: Range<u64>,
        freed: &mut dyn FnMut(LeafEntry),
    ) -> Result<()> {
        let mut rest = Some(range);
        while let Some(range) = rest {
            rest = self.remove_last(range, freed)?;
        }
        Ok(())
    }

    /// Makes all blocks of `range` ones of `kind`.
    pub(in crate::tree) fn convert(&mut self, range: Range<u64>, kind: ExtentKind) -> Result<()> {
        let mut rest = Some(range);
        while let Some(range) = rest {
            rest = self.convert_next(range, kind)?;
        }
        Ok(())
    }
}

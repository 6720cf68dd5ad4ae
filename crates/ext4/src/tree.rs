//! The extent tree of one file: the map from blocks of the file to blocks of the device.
//!
//! Model: the root is the inode's `i_block`; the other nodes are blocks of a store ([`Nodes`]),
//! which is the cache and the journal in the engine and a map in the tests. A change is made in
//! *steps*. A step changes one leaf and its ancestors, so its cost is bounded ([`step_cost`]). A
//! longer change (a truncate of a hundred thousand extents) is a series of steps that the caller
//! may spread over transactions: the tree is valid after each of them.
//!
//! Invariants, after every step:
//! - those of the format (`extant_ondisk::ext4::extent`): above all, the key of a node in its
//!   parent is its first logical block, so that the leaf alone determines where a hole ends;
//! - every changed block is sealed (its checksum is valid);
//! - no step leaves a node empty but the root; an empty leaf, which older kernels left, is a hole.
//!
//! A step reads and creates all it needs before its first change: it fails without effect, or
//! completes. The one exception needs a malicious image in which two files share a node and are
//! changed concurrently: a step that finds a node changed fails with `Corrupt` and may leak blocks.
//!
//! The store validates nodes from the disk once; entries are checked again when they are used,
//! because such an image may use a block for two purposes.
//!
//! There are no locks here: the caller holds the lock of the inode, shared for [`Tree`] and
//! exclusive for [`TreeMut`]. Format: docs/formats/ext4.md, "Extent tree".

mod convert;
mod entry;
mod insert;
mod lookup;
mod path;
mod pieces;
mod remove;
mod shift;
mod splice;
#[cfg(test)]
mod tests;
mod tidy;

use std::ops::Range;
use std::sync::Arc;

use extant_ondisk::ext4::extent::{ExtentNodeMut, LeafEntry, ROOT_BYTES};
use extant_ondisk::ext4::{InodeSeed, Layout, PhysicalBlock};
use extant_space::{Corruption, Error, Result};

use crate::system_zone::OffLimits;

pub(crate) use shift::Direction;

/// Read access to nodes.
pub(crate) trait Nodes {
    /// The bytes of a block, as last changed; `validate` checks them when they are read from the
    /// disk.
    ///
    /// # Errors
    /// Those of the device and of `validate`.
    fn read(&self, block: PhysicalBlock, validate: Validator<'_>) -> Result<Arc<[u8]>>;
}

/// Write access to nodes, as part of one transaction.
pub(crate) trait NodesMut: Nodes {
    /// As [`read`](Nodes::read), of a block that may be changed: it stays pinned, so that
    /// [`change`](Self::change) cannot fail.
    ///
    /// # Errors
    /// As [`read`](Nodes::read).
    fn hold(&mut self, block: PhysicalBlock, validate: Validator<'_>) -> Result<Arc<[u8]>>;

    /// Changes a block that is pinned or was created. Its bytes have no other user then.
    fn change(&mut self, block: PhysicalBlock, change: &mut dyn FnMut(&mut [u8]));

    /// Takes a free block, near `goal` and below `limit`, and fills it with zeros.
    ///
    /// # Errors
    /// `NoSpace`, or an error of reading a bitmap.
    fn create(
        &mut self,
        goal: PhysicalBlock,
        limit: Option<PhysicalBlock>,
    ) -> Result<PhysicalBlock>;

    /// Frees a block without references. Errors of the bitmap are reported by the store: the tree
    /// is complete.
    fn remove(&mut self, block: PhysicalBlock);
}

/// Validates bytes read from the disk.
pub(crate) type Validator<'a> = &'a dyn Fn(&[u8]) -> Result<()>;

/// The constraints on all nodes of a tree.
#[derive(Clone, Copy)]
pub(crate) struct TreeFormat<'a> {
    /// The file system's geometry: blocks outside are refused.
    pub layout: &'a Layout,
    /// Seed of the checksums of the inode's nodes.
    pub seed: Option<InodeSeed>,
    /// Blocks that the inode cannot have, if known.
    pub off_limits: Option<OffLimits<'a>>,
}

/// A tree to be read.
pub(crate) struct Tree<'a, N> {
    root: &'a [u8; ROOT_BYTES],
    nodes: &'a N,
    format: TreeFormat<'a>,
}

/// A tree to be changed. The root changes in place; the inode is the caller's to write.
pub(crate) struct TreeMut<'a, N> {
    root: &'a mut [u8; ROOT_BYTES],
    nodes: &'a mut N,
    format: TreeFormat<'a>,
}

/// Mapping of a part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mapping {
    /// Blocks of the device.
    Extent(LeafEntry),
    /// No blocks; the range is of logical blocks.
    Hole(Range<u64>),
}

/// The most that a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepCost {
    /// Node blocks that it changes, creates or removes, each counted once; the inode is not among
    /// them.
    pub touched: u32,
    /// Node blocks among them that it creates.
    pub created: u32,
}

/// The most that a step does to a tree of `depth`, as long as it has that depth.
pub(crate) fn step_cost(depth: u16) -> StepCost {
    let depth = u32::from(depth);
    StepCost {
        // Growing splits a node on every level, which adds one to each and one below the root.
        // Shrinking touches the way down, joins a neighbour on every level, and may move the only
        // node below the root up into it.
        touched: 3 * depth + 1,
        created: depth + 1,
    }
}

/// Makes `root` that of a file without blocks.
pub(crate) fn init(root: &mut [u8; ROOT_BYTES]) {
    ExtentNodeMut::init(root, 0);
}

impl<'a, N: Nodes> Tree<'a, N> {
    /// The tree below `root`.
    pub(crate) fn new(root: &'a [u8; ROOT_BYTES], nodes: &'a N, format: TreeFormat<'a>) -> Self {
        Self {
            root,
            nodes,
            format,
        }
    }
}

impl<'a, N: NodesMut> TreeMut<'a, N> {
    /// The tree below `root`.
    pub(crate) fn new(
        root: &'a mut [u8; ROOT_BYTES],
        nodes: &'a mut N,
        format: TreeFormat<'a>,
    ) -> Self {
        Self {
            root,
            nodes,
            format,
        }
    }

    /// For lookups between changes.
    pub(crate) fn as_tree(&self) -> Tree<'_, N> {
        Tree::new(self.root, self.nodes, self.format)
    }
}

impl Mapping {
    /// The logical blocks.
    pub(crate) fn logical(&self) -> Range<u64> {
        match self {
            Self::Extent(extent) => u64::from(extent.logical.0)..extent.logical_end(),
            Self::Hole(range) => range.clone(),
        }
    }
}

fn corrupt(problem: impl Into<String>) -> Error {
    let problem = problem.into();
    Error::corrupt(Corruption::other("extent tree", problem.clone()), problem)
}

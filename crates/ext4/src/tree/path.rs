//! The path from the root to a leaf.
//!
//! Invariant: every node on it was validated by the store, and is at the address in its parent. Its
//! entries are checked one by one as they are used ([`Level::extent`], [`Level::reference`]): the
//! absence of panics must not depend on a block being used for one purpose only.

use std::ops::Range;
use std::sync::Arc;

use extant_ondisk::ext4::extent::{
    ExtentNode, IndexEntry, LOGICAL_END, LeafEntry, NodePlace, ROOT_BYTES,
};
use extant_ondisk::ext4::{LogicalBlock, PhysicalBlock};
use extant_space::{Error, Result};
use smallvec::SmallVec;

use super::{TreeFormat, Validator, corrupt};

/// The root first, the leaf last.
pub(super) type Path<'r> = SmallVec<[Level<'r>; 2]>;

/// A node on the path. For changes of the tree it is a copy of the root.
pub(super) struct Level<'r> {
    bytes: Bytes<'r>,
    pub(super) place: NodePlace,
    /// The reference that the path follows; in a leaf nothing.
    pub(super) index: usize,
}

enum Bytes<'r> {
    Root(&'r [u8; ROOT_BYTES]),
    Block(Arc<[u8]>),
}

impl<'r> Level<'r> {
    /// The root.
    #[inline]
    pub(super) fn root(bytes: &'r [u8; ROOT_BYTES], format: TreeFormat<'_>) -> Result<Self> {
        let node = ExtentNode::parse_root(bytes, format.layout)?;
        let first = match (node.is_empty(), node.depth()) {
            (true, _) => LogicalBlock(0),
            (false, 0) => node.leaf(0).logical,
            (false, _) => node.index(0).logical,
        };
        Ok(Self {
            place: NodePlace {
                block: PhysicalBlock(0),
                depth: node.depth(),
                logical: first.0.into()..LOGICAL_END,
            },
            bytes: Bytes::Root(bytes),
            index: 0,
        })
    }

    /// The node below reference `index`, read by `read`.
    pub(super) fn child(
        &self,
        index: usize,
        format: TreeFormat<'_>,
        read: impl FnOnce(PhysicalBlock, Validator<'_>) -> Result<Arc<[u8]>>,
    ) -> Result<Level<'static>> {
        self.reference(index, format)?;
        let place = self.node().child(index);
        let bytes = read(place.block, &|bytes| {
            let node = ExtentNode::parse_block(bytes, &place, format.layout, format.seed)?;
            match format.off_limits {
                Some(off_limits) => off_limits.check_node(&node),
                None => Ok(()),
            }
        })?;
        ExtentNode::trusted(&bytes, &place)?;
        Ok(Level {
            bytes: Bytes::Block(bytes),
            place,
            index: 0,
        })
    }

    /// The reference that covers `logical`, if any. The next one begins after `logical`, so a loop
    /// over references terminates.
    pub(super) fn way_to(&self, logical: LogicalBlock) -> Result<usize> {
        let node = self.node();
        let index = node.find(logical).unwrap_or(0);
        let next = index + 1;
        if next < node.len() && node.index(next).logical <= logical {
            Err(self.unsound(next))
        } else {
            Ok(index)
        }
    }

    #[inline]
    pub(super) fn node(&self) -> ExtentNode<'_> {
        ExtentNode::again(self.bytes(), &self.place)
    }

    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Root(bytes) => *bytes,
            Bytes::Block(bytes) => bytes,
        }
    }

    pub(super) fn is_root(&self) -> bool {
        matches!(self.bytes, Bytes::Root(_))
    }

    pub(super) fn depth(&self) -> u16 {
        self.place.depth
    }

    /// Extent `index` of a leaf.
    #[inline]
    pub(super) fn extent(&self, index: usize, format: TreeFormat<'_>) -> Result<LeafEntry> {
        let extent = self.node().leaf(index);
        let sound = extent.blocks > 0
            && extent.physical.0 > 0
            && extent.logical_end() <= self.place.logical.end
            && format.layout.holds(extent.physical, extent.blocks.into());
        if sound {
            Ok(extent)
        } else {
            Err(self.unsound(index))
        }
    }

    /// Reference `index` of a node above.
    pub(super) fn reference(&self, index: usize, format: TreeFormat<'_>) -> Result<IndexEntry> {
        let reference = self.node().index(index);
        if format.layout.holds(reference.child, 1) {
            Ok(reference)
        } else {
            Err(self.unsound(index))
        }
    }

    /// Validates all entries, before they are copied.
    pub(super) fn check(&self, format: TreeFormat<'_>) -> Result<()> {
        (0..self.node().len()).try_for_each(|index| match self.depth() {
            0 => self.extent(index, format).map(drop),
            _ => self.reference(index, format).map(drop),
        })
    }

    /// The extents of a leaf with blocks in `range`; the first and the last may extend outside.
    pub(super) fn extents_in(
        &self,
        range: &Range<u64>,
        format: TreeFormat<'_>,
    ) -> Result<Range<usize>> {
        let node = self.node();
        let end = match range.end.checked_sub(1) {
            Some(last) => node.find(last_logical(last)).map_or(0, |index| index + 1),
            None => 0,
        };
        let start = match node.find(last_logical(range.start)) {
            Some(index) if self.extent(index, format)?.logical_end() > range.start => index,
            Some(index) => index + 1,
            None => 0,
        };
        Ok(start.min(end)..end)
    }

    #[cold]
    pub(super) fn unsound(&self, index: usize) -> Error {
        corrupt(format!(
            "extent node in block {}: entry {index} is not one that was validated; something else uses the block as well",
            self.place.block
        ))
    }
}

/// The block of that number, or the last that there can be.
pub(super) fn last_logical(number: u64) -> LogicalBlock {
    LogicalBlock(number.min(LOGICAL_END - 1) as u32)
}

/// Follows the references to the leaf for `logical`.
pub(super) fn descend<'r>(
    root: &'r [u8; ROOT_BYTES],
    logical: LogicalBlock,
    format: TreeFormat<'_>,
    mut read: impl FnMut(PhysicalBlock, Validator<'_>) -> Result<Arc<[u8]>>,
) -> Result<Path<'r>> {
    let mut path = Path::new();
    let mut level = Level::root(root, format)?;
    while level.depth() > 0 {
        level.index = level.way_to(logical)?;
        let child = level.child(level.index, format, &mut read)?;
        path.push(level);
        level = child;
    }
    path.push(level);
    Ok(path)
}

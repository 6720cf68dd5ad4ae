//! Entries of a node.

use zerocopy::FromZeros;

use super::{RawExtent, RawExtentIndex, UNWRITTEN_BLOCKS_MAX, WRITTEN_BLOCKS_MAX};
use crate::ext4::{LogicalBlock, PhysicalBlock};
use crate::narrow::{low16, low32};

/// Physical blocks have 48 bits in a tree.
const PHYSICAL_END: u64 = 1 << 48;

/// Whether the blocks of an extent hold data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExtentKind {
    /// They do.
    Written,
    /// They are taken and read as zeros.
    Unwritten,
}

impl ExtentKind {
    /// Blocks of the longest extent of this kind.
    #[inline]
    pub fn blocks_max(self) -> u16 {
        match self {
            Self::Written => WRITTEN_BLOCKS_MAX,
            Self::Unwritten => UNWRITTEN_BLOCKS_MAX,
        }
    }
}

/// Consecutive blocks of a file that are consecutive on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeafEntry {
    /// First block in the file.
    pub logical: LogicalBlock,
    /// First block on the device, of 48 bits.
    pub physical: PhysicalBlock,
    /// How many: 1 to [`ExtentKind::blocks_max`].
    pub blocks: u16,
    /// Whether they hold data.
    pub kind: ExtentKind,
}

impl LeafEntry {
    /// One past the last logical block.
    #[inline]
    pub fn logical_end(&self) -> u64 {
        u64::from(self.logical.0) + u64::from(self.blocks)
    }

    /// The block on the device of a block in the file; `None` outside the extent.
    #[inline]
    pub fn map(&self, logical: LogicalBlock) -> Option<PhysicalBlock> {
        let offset = u64::from(logical.0.checked_sub(self.logical.0)?);
        (offset < u64::from(self.blocks)).then_some(PhysicalBlock(self.physical.0 + offset))
    }

    /// The meaning of a raw entry. A length of 0 remains 0.
    #[inline]
    pub fn decode(raw: &RawExtent) -> Self {
        let length = raw.ee_len.get();
        let (blocks, kind) = match length.checked_sub(WRITTEN_BLOCKS_MAX) {
            None | Some(0) => (length, ExtentKind::Written),
            Some(blocks) => (blocks, ExtentKind::Unwritten),
        };
        let high = u64::from(raw.ee_start_hi.get());
        Self {
            logical: LogicalBlock(raw.ee_block.get()),
            physical: PhysicalBlock(high << 32 | u64::from(raw.ee_start_lo.get())),
            blocks,
            kind,
        }
    }

    /// The raw entry.
    ///
    /// # Panics
    /// When length or place cannot be stored.
    #[inline]
    pub fn encode(&self) -> RawExtent {
        assert!(
            (1..=self.kind.blocks_max()).contains(&self.blocks) && self.physical.0 < PHYSICAL_END,
            "{self:?} cannot be stored"
        );
        let mark = match self.kind {
            ExtentKind::Written => 0,
            ExtentKind::Unwritten => WRITTEN_BLOCKS_MAX,
        };
        RawExtent {
            ee_block: self.logical.0.into(),
            ee_len: (self.blocks + mark).into(),
            ee_start_hi: low16((self.physical.0 >> 32) as u32).into(),
            ee_start_lo: low32(self.physical.0).into(),
        }
    }
}

/// A reference to the node that covers the blocks from `logical` up to the next reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IndexEntry {
    /// First block in the file.
    pub logical: LogicalBlock,
    /// The node's block on the device, of 48 bits.
    pub child: PhysicalBlock,
}

impl IndexEntry {
    /// The meaning of a raw entry.
    #[inline]
    pub fn decode(raw: &RawExtentIndex) -> Self {
        let high = u64::from(raw.ei_leaf_hi.get());
        Self {
            logical: LogicalBlock(raw.ei_block.get()),
            child: PhysicalBlock(high << 32 | u64::from(raw.ei_leaf_lo.get())),
        }
    }

    /// The raw entry.
    ///
    /// # Panics
    /// When the place cannot be stored.
    #[inline]
    pub fn encode(&self) -> RawExtentIndex {
        assert!(self.child.0 < PHYSICAL_END, "{self:?} cannot be stored");
        let mut raw = RawExtentIndex::new_zeroed();
        raw.ei_block.set(self.logical.0);
        raw.ei_leaf_lo.set(low32(self.child.0));
        raw.ei_leaf_hi.set(low16((self.child.0 >> 32) as u32));
        raw
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_at_the_edge_between_written_and_unwritten_come_back() {
        use ExtentKind::{Unwritten, Written};
        for (blocks, kind, length) in [
            (1, Written, 1),
            (32768, Written, 32768),
            (1, Unwritten, 32769),
            (32767, Unwritten, 65535),
        ] {
            let entry = LeafEntry {
                logical: LogicalBlock(7),
                physical: PhysicalBlock((1 << 48) - 40_000),
                blocks,
                kind,
            };
            let raw = entry.encode();
            assert_eq!(raw.ee_len.get(), length);
            assert_eq!(LeafEntry::decode(&raw), entry);
        }
    }

    #[test]
    fn map_ends_with_the_extent() {
        let entry = LeafEntry {
            logical: LogicalBlock(10),
            physical: PhysicalBlock(100),
            blocks: 5,
            kind: ExtentKind::Written,
        };
        let map = |logical| entry.map(LogicalBlock(logical)).map(|block| block.0);
        assert_eq!([9, 10, 14, 15].map(map), [None, Some(100), Some(104), None]);
    }
}

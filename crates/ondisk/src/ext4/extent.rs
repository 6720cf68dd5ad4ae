//! Extent trees: the map from blocks of a file to blocks of the device.
//!
//! Model: the root is in the inode's `i_block` and has room for 4 entries; other nodes fill a block
//! each. A node has a header and entries of 12 bytes: extents in a node of depth 0, and references
//! to nodes one level lower in the others. Entries are sorted by their first logical block; a
//! reference covers the blocks up to the next one. Blocks end with a checksum, if the file system
//! has those; the root is covered by that of the inode.
//!
//! Invariants of a parsed node (`node.rs`):
//! - its entries fit, are sorted, do not overlap, and are within the range of the parent's entry;
//! - its first entry begins where the parent's entry says (except in the root);
//! - every block it names is in the file system;
//! - its depth is one less than its parent's, so that a walk ends after at most 6 nodes.
//!
//! Format: docs/formats/ext4.md, "Extent tree".

mod edit;
mod entry;
mod node;

pub use edit::ExtentNodeMut;
pub use entry::{ExtentKind, IndexEntry, LeafEntry};
pub use node::{ExtentNode, NodePlace};

use zerocopy::little_endian::{U16, U32};

use crate::narrow::fit16;
use crate::structure::on_disk;

on_disk! {
    /// `struct ext4_extent_header`.
    pub struct RawExtentHeader: 12 {
        0x0 eh_magic: U16,
        0x2 eh_entries: U16,
        0x4 eh_max: U16,
        0x6 eh_depth: U16,
        0x8 eh_generation: U32,
    }

    /// `struct ext4_extent`: an entry of a node of depth 0.
    pub struct RawExtent: 12 {
        0x0 ee_block: U32,
        0x4 ee_len: U16,
        0x6 ee_start_hi: U16,
        0x8 ee_start_lo: U32,
    }

    /// `struct ext4_extent_idx`: an entry of a node above.
    pub struct RawExtentIndex: 12 {
        0x0 ei_block: U32,
        0x4 ei_leaf_lo: U32,
        0x8 ei_leaf_hi: U16,
        0xA ei_unused: U16,
    }
}

/// `eh_magic`.
pub const MAGIC: u16 = 0xF30A;
/// The largest `eh_depth`.
pub const DEPTH_MAX: u16 = 5;
/// Bytes of the header and of every entry.
pub const ENTRY_BYTES: usize = 12;
/// Bytes of a root, which is `i_block`.
pub const ROOT_BYTES: usize = 60;
/// One past the last logical block that a file can have.
pub const LOGICAL_END: u64 = u32::MAX as u64;
/// Blocks of the longest written extent.
pub const WRITTEN_BLOCKS_MAX: u16 = 32768;
/// Blocks of the longest unwritten extent.
pub const UNWRITTEN_BLOCKS_MAX: u16 = 32767;

/// Entries that fit a node of `bytes` bytes.
pub fn capacity(bytes: usize) -> u16 {
    fit16(bytes / ENTRY_BYTES - 1)
}

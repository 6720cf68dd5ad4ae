//! Attribute blocks and values that several inodes reference, with their reference counts.

use std::collections::{BTreeMap, BTreeSet};

use extant_ondisk::ext4::{InodeNumber, PhysicalBlock};

/// Attribute blocks and inodes with values, by number.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) blocks: BTreeMap<PhysicalBlock, SharedBlock>,
    pub(crate) values: BTreeMap<InodeNumber, References>,
    /// Values of the form without a reference count.
    pub(crate) lustre_values: BTreeSet<InodeNumber>,
}

/// A block with attributes.
pub(crate) struct SharedBlock {
    /// `None` when the block is wrong.
    pub(crate) references: Option<References>,
    /// Blocks of the values that are in inodes, which each owner of the block is charged for.
    pub(crate) value_blocks: u64,
}

#[derive(Clone, Copy)]
pub(crate) struct References {
    pub(crate) stored: u64,
    pub(crate) found: u64,
}

//! ext4, including the parts of ext2 and ext3 that it still reads: one module per structure.
//!
//! | module | on the disk |
//! |---|---|
//! | [`superblock`], [`features`] | byte 1024 and its backups |
//! | [`layout`] | nothing: arithmetic on the superblock's values |
//! | [`group_descriptor`], [`bitmap`] | the descriptor table, checksums of the bitmaps |
//! | [`inode`] | the inode tables |
//! | [`extent`], [`block_map`] | the blocks of a file: the tree, and the older indirect blocks |
//! | [`directory`] | linear blocks, hash trees, the hash functions |
//! | [`xattr`] | attributes in the inode and in a separate block |
//! | [`orphan`], [`mmp`], [`fast_commit`] | the orphan file, multiple-mount protection, fast commits |
//!
//! Integers are little-endian.

pub mod bitmap;
pub mod block_map;
pub mod directory;
pub mod extent;
pub mod fast_commit;
pub mod features;
pub mod group_descriptor;
pub mod inode;
pub mod layout;
pub mod mmp;
pub mod orphan;
pub mod seed;
pub mod superblock;
pub mod xattr;

pub use crate::address::{GroupNumber, InodeNumber, LogicalBlock, PhysicalBlock};
pub use features::{Access, Compat, Features, Incompat, RoCompat};
pub use group_descriptor::GroupDescriptor;
pub use inode::Inode;
pub use layout::Layout;
pub use seed::{InodeSeed, Seed};
pub use superblock::Superblock;

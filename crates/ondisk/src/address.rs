//! Numbers of blocks, groups and inodes, which the compiler keeps apart.

use std::fmt;

macro_rules! address {
    ($($(#[$attribute:meta])* $name:ident($type:ty))+) => {$(
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $type);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )+};
}

address! {
    /// A block of a file, counted from its start. A file has at most 2^32 - 1 blocks.
    LogicalBlock(u32)
    /// A block of the file system, counted from the start of the device.
    PhysicalBlock(u64)
    /// A block group, counted from 0.
    GroupNumber(u32)
    /// An inode, counted from 1; 0 on the disk stands for none.
    InodeNumber(u32)
}

impl InodeNumber {
    /// The root directory.
    pub const ROOT: Self = Self(2);
    /// Holds the reserved blocks of the descriptor table (`resize_inode`).
    pub const RESIZE: Self = Self(7);
    /// Inode of the journal in file systems of mke2fs; the superblock decides.
    pub const JOURNAL: Self = Self(8);

    /// The number on the disk, where 0 is none.
    pub fn new(number: u32) -> Option<Self> {
        (number != 0).then_some(Self(number))
    }
}

//! `i_flags`.

use bitflags::bitflags;

bitflags! {
    /// Flags of an inode.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct InodeFlags: u32 {
        /// To be overwritten when deleted (implemented by no system).
        const SECRM = 0x1;
        /// To be kept when deleted (implemented by no system).
        const UNRM = 0x2;
        /// Compressed (implemented by no system).
        const COMPR = 0x4;
        /// Writes are synchronous.
        const SYNC = 0x8;
        /// May not be changed.
        const IMMUTABLE = 0x10;
        /// May only grow.
        const APPEND = 0x20;
        /// Not to be dumped.
        const NODUMP = 0x40;
        /// The access time is not kept.
        const NOATIME = 0x80;
        /// Compressed and dirty (implemented by no system).
        const DIRTY = 0x100;
        /// Has compressed blocks (implemented by no system).
        const COMPRBLK = 0x200;
        /// Not to be compressed.
        const NOCOMPR = 0x400;
        /// Encrypted.
        const ENCRYPT = 0x800;
        /// A directory with a hash tree.
        const INDEX = 0x1000;
        /// AFS directory.
        const IMAGIC = 0x2000;
        /// Data is written through the journal.
        const JOURNAL_DATA = 0x4000;
        /// The tail is not to be merged (implemented by no system).
        const NOTAIL = 0x8000;
        /// Changes of the directory are synchronous.
        const DIRSYNC = 0x10000;
        /// Top of a hierarchy: subdirectories are spread over groups.
        const TOPDIR = 0x20000;
        /// `i_blocks` counts blocks of the file system.
        const HUGE_FILE = 0x40000;
        /// `i_block` holds an extent tree.
        const EXTENTS = 0x80000;
        /// Protected by fs-verity.
        const VERITY = 0x100000;
        /// Holds the value of an extended attribute.
        const EA_INODE = 0x200000;
        /// Has blocks past its size (old kernels only).
        const EOFBLOCKS = 0x400000;
        /// Mapped into memory past all caches.
        const DAX = 0x2000000;
        /// Data is kept in the inode.
        const INLINE_DATA = 0x10000000;
        /// New files in it belong to its project.
        const PROJINHERIT = 0x20000000;
        /// Names in it are compared without case.
        const CASEFOLD = 0x40000000;
        const _ = !0;
    }
}

impl InodeFlags {
    /// Flags visible to users (`FS_IOC_GETFLAGS`).
    pub const USER_VISIBLE: Self = Self::from_bits_retain(0x725B_DFFF);
    /// Flags that users may change (`FS_IOC_SETFLAGS`).
    pub const USER_MODIFIABLE: Self = Self::from_bits_retain(0x624B_C0FF);
    /// Flags that a new file inherits from its directory.
    pub const INHERITED: Self = Self::SECRM
        .union(Self::UNRM)
        .union(Self::COMPR)
        .union(Self::SYNC)
        .union(Self::NODUMP)
        .union(Self::NOATIME)
        .union(Self::NOCOMPR)
        .union(Self::JOURNAL_DATA)
        .union(Self::NOTAIL)
        .union(Self::DIRSYNC)
        .union(Self::PROJINHERIT)
        .union(Self::CASEFOLD)
        .union(Self::DAX);
}

//! Inode flags as `struct fsxattr`, which comes from XFS and is common to all file systems.

use extant_ext4::InodeFlags;
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use extant_fuse::operations::Result;

/// The bits of `fsx_xflags` that ext4 supports, and its inode flags.
const BITS: [(u32, InodeFlags); 6] = [
    (0x08, InodeFlags::IMMUTABLE),
    (0x10, InodeFlags::APPEND),
    (0x20, InodeFlags::SYNC),
    (0x40, InodeFlags::NOATIME),
    (0x80, InodeFlags::NODUMP),
    (0x200, InodeFlags::PROJINHERIT),
];

/// `struct fsxattr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct ExtendedFlags {
    flags: u32,
    extent_bytes: u32,
    extents: u32,
    project: u32,
    copy_extent_bytes: u32,
    unused: [u8; 8],
}

impl ExtendedFlags {
    pub(super) fn of(flags: InodeFlags) -> Self {
        let bits = BITS.iter().filter(|(_, flag)| flags.contains(*flag));
        Self {
            flags: bits.fold(0, |all, (bit, _)| all | bit),
            ..Self::default()
        }
    }

    /// The new flags of an inode.
    ///
    /// # Errors
    /// `OPNOTSUPP` for flags that ext4 does not have, and for projects.
    pub(super) fn applied_to(self, mut flags: InodeFlags) -> Result<InodeFlags> {
        let known = BITS.iter().fold(0, |all, (bit, _)| all | bit);
        let hints = self.extent_bytes | self.copy_extent_bytes | self.project;
        if self.flags & !known != 0 || hints != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        for (bit, flag) in BITS {
            flags.set(flag, self.flags & bit != 0);
        }
        Ok(flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_survive_the_way_there_and_back() {
        let known = InodeFlags::IMMUTABLE | InodeFlags::NODUMP | InodeFlags::PROJINHERIT;
        let shown = ExtendedFlags::of(known | InodeFlags::EXTENTS);
        assert_eq!(shown.flags, 0x288);
        let others = InodeFlags::EXTENTS | InodeFlags::SYNC;
        assert_eq!(shown.applied_to(others), Ok(known | InodeFlags::EXTENTS));
    }

    #[test]
    fn operation_unsupported_by_ext4_is_refused() {
        let refused = |change: fn(&mut ExtendedFlags)| {
            let mut flags = ExtendedFlags::default();
            change(&mut flags);
            flags.applied_to(InodeFlags::empty()) == Err(Errno::OPNOTSUPP)
        };
        assert!(refused(|flags| flags.flags = 0x1));
        assert!(refused(|flags| flags.extent_bytes = 4096));
        assert!(refused(|flags| flags.project = 5));
        assert!(!refused(|flags| flags.extents = 5));
    }
}

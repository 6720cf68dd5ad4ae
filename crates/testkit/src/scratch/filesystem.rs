//! The file systems that tests run on.

use std::fmt;

use crate::requires::{self, Requirement};

const MIB: u64 = 1 << 20;

/// A file system, with the options that make it interesting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Filesystem {
    /// ext4 with 4 KiB blocks, otherwise as mkfs makes it.
    Ext4,
    /// ext4 with 1 KiB blocks.
    Ext4SmallBlocks,
    /// ext4 that allocates in clusters of 64 KiB.
    Ext4Bigalloc,
    /// ext4 with fast commits.
    Ext4FastCommit,
    /// ext2: indirect blocks, no extents, hence no unwritten space.
    Ext2,
    /// xfs as mkfs makes it.
    Xfs,
    /// xfs whose files never share space.
    XfsNoReflink,
    /// btrfs: copy-on-write.
    Btrfs,
    /// Memory; no device.
    Tmpfs,
    /// An overlay whose upper directory is on ext4.
    Overlay,
}

impl Filesystem {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Ext4,
        Self::Ext4SmallBlocks,
        Self::Ext4Bigalloc,
        Self::Ext4FastCommit,
        Self::Ext2,
        Self::Xfs,
        Self::XfsNoReflink,
        Self::Btrfs,
        Self::Tmpfs,
        Self::Overlay,
    ];

    /// The word used in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Ext4SmallBlocks => "ext4 with 1k blocks",
            Self::Ext4Bigalloc => "ext4 with bigalloc",
            Self::Ext4FastCommit => "ext4 with fast_commit",
            Self::Ext2 => "ext2",
            Self::Xfs => "xfs",
            Self::XfsNoReflink => "xfs without reflink",
            Self::Btrfs => "btrfs",
            Self::Tmpfs => "tmpfs",
            Self::Overlay => "overlay on ext4",
        }
    }

    /// The type in `/proc/self/mounts`.
    pub fn kernel_type(self) -> &'static str {
        match self {
            Self::Overlay => "overlay",
            other => other.lower_type(),
        }
    }

    /// The type of the file system on the device.
    pub(super) fn lower_type(self) -> &'static str {
        match self {
            Self::Ext2 => "ext2",
            Self::Xfs | Self::XfsNoReflink => "xfs",
            Self::Btrfs => "btrfs",
            Self::Tmpfs => "tmpfs",
            _ => "ext4",
        }
    }

    /// It is ext4 with any features, and not an overlay.
    pub fn is_ext4(self) -> bool {
        self != Self::Overlay && self.lower_type() == "ext4"
    }

    /// `e2fsck` can check it.
    pub fn is_ext(self) -> bool {
        matches!(self.lower_type(), "ext2" | "ext4")
    }

    /// The least that its mkfs takes, rounded up to something usable.
    pub fn size_bytes_min(self) -> u64 {
        match self {
            Self::Xfs | Self::XfsNoReflink => 300 * MIB,
            Self::Btrfs => 128 * MIB,
            Self::Tmpfs => MIB,
            _ => 16 * MIB,
        }
    }

    pub(super) fn mkfs(self) -> &'static str {
        match self {
            Self::Ext2 => "mkfs.ext2",
            Self::Xfs | Self::XfsNoReflink => "mkfs.xfs",
            Self::Btrfs => "mkfs.btrfs",
            _ => "mkfs.ext4",
        }
    }

    /// Block sizes are named because mkfs would choose smaller ones for small devices;
    /// inode tables are made at once because a kernel thread would do it while we measure.
    pub(super) fn mkfs_arguments(self) -> Vec<&'static str> {
        let mut arguments = match self.lower_type() {
            "xfs" | "btrfs" => vec!["-q", "-f"],
            _ => vec![
                "-q",
                "-F",
                "-E",
                "lazy_itable_init=0,lazy_journal_init=0",
                "-b",
                if self == Self::Ext4SmallBlocks {
                    "1024"
                } else {
                    "4096"
                },
            ],
        };
        arguments.extend_from_slice(match self {
            Self::Ext4Bigalloc => &["-O", "bigalloc", "-C", "65536"],
            Self::Ext4FastCommit => &["-O", "fast_commit"],
            Self::XfsNoReflink => &["-m", "reflink=0"],
            _ => &[],
        });
        arguments
    }

    /// The requirement of a test that uses it, for [`require!`](crate::require).
    pub fn requirement(self) -> Requirement {
        let mut needs = vec![
            requires::root(),
            requires::tool("mount"),
            requires::kernel_filesystem(self.lower_type()),
            requires::kernel_filesystem(self.kernel_type()),
        ];
        if self != Self::Tmpfs {
            needs.extend([
                requires::tool("losetup"),
                requires::tool(self.mkfs()),
                requires::device("/dev/loop-control"),
            ]);
        }
        let missing: Vec<_> = needs.iter().filter(|need| !need.is_met()).collect();
        let what = missing.iter().map(|need| need.what()).collect::<Vec<_>>();
        Requirement::new(
            format!("{} (for {self})", what.join(", ")),
            missing.is_empty(),
        )
    }
}

impl fmt::Display for Filesystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

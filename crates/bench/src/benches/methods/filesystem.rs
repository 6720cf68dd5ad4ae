//! The file systems of `methods`, one after the other over the same file.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use extant_testkit::command::{run, tool};
use extant_testkit::scratch::{DirectIo, LoopDevice, Mount};

use crate::bench::Context;

/// Inode tables and journals are made at once, and no block is discarded.
const EXT: &[&str] = &["-q", "-F", "-b", "4096", "-E"];
const EXT3: &[&str] = &["nodiscard,lazy_itable_init=0"];
const EXT4: &[&str] = &["nodiscard,lazy_itable_init=0,lazy_journal_init=0"];

/// A file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Indirect blocks, no extents. The kernel mounts it by its ext4 driver.
    Ext3,
    Ext4,
    Xfs,
    /// Without copy-on-write for the measured files.
    Btrfs,
}

impl Kind {
    pub(super) const ALL: [Self; 4] = [Self::Ext3, Self::Ext4, Self::Xfs, Self::Btrfs];

    fn name(self) -> &'static str {
        match self {
            Self::Ext3 => "ext3",
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    fn mkfs_arguments(self) -> Vec<&'static str> {
        match self {
            Self::Ext3 => [EXT, EXT3].concat(),
            Self::Ext4 => [EXT, EXT4].concat(),
            Self::Xfs | Self::Btrfs => vec!["-q", "-f", "-K"],
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Btrfs => "btrfs, nodatacow",
            other => other.name(),
        })
    }
}

/// A mounted file system. Dropped from above.
pub(super) struct Mounted {
    pub(super) kind: Kind,
    /// Where files are made.
    pub(super) directory: PathBuf,
    _mount: Mount,
    _device: LoopDevice,
}

impl Mounted {
    /// A new one in the file `backing`.
    pub(super) fn new(kind: Kind, backing: &Path, context: &Context) -> Result<Self> {
        let device = LoopDevice::attach_with(backing, DirectIo::On, 4096);
        let mut mkfs = tool(&format!("mkfs.{}", kind.name()));
        run(mkfs.args(kind.mkfs_arguments()).arg(device.path()))?;
        let place = context.file(kind.name());
        fs::create_dir(&place)?;
        // btrfs discards by itself; ext3, ext4 and xfs do not.
        let options = match kind {
            Kind::Btrfs => "nodiscard",
            _ => "",
        };
        let mount = Mount::new(kind.name(), device.path(), &place, options);
        let directory = place.join("files");
        fs::create_dir(&directory)?;
        if kind == Kind::Btrfs {
            run(tool("chattr").arg("+C").arg(&directory))?;
        }
        Ok(Self {
            kind,
            directory,
            _mount: mount,
            _device: device,
        })
    }
}

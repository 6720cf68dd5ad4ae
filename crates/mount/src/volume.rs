//! The ext4 engine as a FUSE file system: [`Operations`](extant_fuse::Operations) on a
//! [`Filesystem`].
//!
//! Model: a node id is an inode number, except for the root, which is 1 in FUSE and 2 in ext4. A
//! node is in the table while the kernel has references to it (`nodes`), which also keeps an inode
//! without a name. The handle of a file encodes its open flags; that of a directory identifies the
//! position of its last listing (`handles`).
//!
//! The kernel checks permissions, sticky directories and limits of processes, and keeps locks.
//!
//! | module | operations |
//! |---|---|
//! | `names` | lookup, create, link, rename, unlink |
//! | `attributes` | `stat`, `chmod` and the like, `statvfs` |
//! | `data` | open, read, write, sync, copy |
//! | `space` | `fallocate`, holes |
//! | `directories` | listing |
//! | `xattrs` | extended attributes, access control lists |
//! | `control`, `trim`, `shutdown`, `statistics` | `ioctl` |
//!
//! No lock is held while the engine is called, except that of a directory handle.
//! `docs/semantics.md` lists the semantics for programs.

mod attributes;
mod caller;
mod control;
mod data;
mod directories;
mod error;
mod flags;
mod handles;
mod names;
mod nodes;
mod operations;
mod owners;
mod privileges;
mod shutdown;
mod space;
mod statistics;
mod trim;
mod xattrs;

use std::fmt;
use std::sync::OnceLock;

use extant_ext4::{AccessTime, ClockSource, Filesystem, InodeFlags, Node, Options};
use extant_fuse::Notifier;
use extant_fuse::operations::{NodeId, Result};
use extant_fuse::options::{AccessTimes, WriteCache};
use extant_space::{Error, SyncMode};
use rustix::mount::MountFlags;

use crate::options::MountOptions;
use handles::Directories;
use nodes::NodeTable;

pub use error::errno;
pub use owners::{IdMap, Owners};

/// A mounted ext4 file system.
pub struct Volume {
    filesystem: Filesystem,
    options: VolumeOptions,
    nodes: NodeTable,
    directories: Directories,
    notifier: OnceLock<Notifier>,
    report: Box<dyn Fn(&Error) + Send + Sync>,
}

/// How a volume behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeOptions {
    /// When a read updates the access time.
    pub access_times: AccessTimes,
    /// Mapping of owners between programs and the image.
    pub owners: Owners,
    /// Caching of written data; the kernel's cache may hold dirty data.
    pub write_cache: WriteCache,
    /// When changes of names are durable.
    pub names: NameDurability,
}

/// When changes of names are durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameDurability {
    /// On a sync, or with the next commit, except in directories with the flags SYNC and DIRSYNC.
    Later,
    /// When the call returns: the mount options `dirsync` and `sync`.
    AtOnce,
}

impl Default for VolumeOptions {
    fn default() -> Self {
        Self {
            access_times: AccessTimes::Relative,
            owners: Owners::default(),
            write_cache: WriteCache::Through,
            names: NameDurability::Later,
        }
    }
}

impl From<&MountOptions> for VolumeOptions {
    fn from(options: &MountOptions) -> Self {
        let at_once = MountFlags::DIRSYNC | MountFlags::SYNCHRONOUS;
        Self {
            access_times: options.fuse.access_times,
            owners: Owners {
                users: IdMap::root_as(options.uid.unwrap_or(0)),
                groups: IdMap::root_as(options.gid.unwrap_or(0)),
            },
            write_cache: options.fuse.write_cache,
            names: if options.fuse.flags.intersects(at_once) {
                NameDurability::AtOnce
            } else {
                NameDurability::Later
            },
        }
    }
}

/// The engine's options for mount options.
pub fn filesystem_options(options: &MountOptions) -> Options {
    let default = Options::default();
    Options {
        access: options.access(),
        on_error: options.on_error,
        commit_interval: options.commit_interval.unwrap_or(default.commit_interval),
        discard: options.discard,
        assign: options.assign,
        zeroes: options.zeroes,
        allocator: options.allocator.policy(),
        replay: options.replay,
        // With it the kernel stores the times of writes.
        clock: match options.fuse.write_cache {
            WriteCache::Back => ClockSource::FileSystems,
            WriteCache::Through => ClockSource::Tick,
        },
        ..default
    }
}

impl Volume {
    /// A volume over a file system, which
    /// [`Operations::destroy`](extant_fuse::Operations::destroy) closes.
    ///
    /// # Errors
    /// `Corrupt` if there is no root.
    pub fn new(filesystem: Filesystem, options: VolumeOptions) -> extant_space::Result<Self> {
        let root = filesystem.root()?;
        Ok(Self {
            nodes: NodeTable::new(root)?,
            directories: Directories::default(),
            notifier: OnceLock::new(),
            report: Box::new(|_| ()),
            filesystem,
            options,
        })
    }

    /// Calls `report` with every error of the device or the on-disk structures, of which programs
    /// only get an errno.
    #[must_use]
    pub fn reporting(mut self, report: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        self.report = Box::new(report);
        self
    }

    /// The file system behind it.
    pub fn filesystem(&self) -> &Filesystem {
        &self.filesystem
    }

    /// Number of nodes with references of the kernel, without the root.
    pub fn known_nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Makes the kernel write back and drop its cache of a file, from `offset` on for `length`
    /// bytes (`None`: to the end). Other workers answer the WRITEs meanwhile.
    fn flush_cache(&self, node: NodeId, offset: u64, length: Option<u64>) -> Result<()> {
        match self.notifier.get() {
            Some(notifier) => notifier.data_changed(node, offset, length),
            None => Ok(()),
        }
    }

    /// Invalidates the kernel's attributes of a file.
    fn attributes_changed(&self, node: NodeId) -> Result<()> {
        match self.notifier.get() {
            Some(notifier) => notifier.attributes_changed(node),
            None => Ok(()),
        }
    }

    /// Updates the access time after a read.
    fn update_atime(&self, node: &Node) {
        let is_directory = node.file_type() == extant_ext4::FileType::Directory;
        node.touch_accessed(match self.options.access_times {
            AccessTimes::FilesOnly if is_directory => AccessTime::Never,
            AccessTimes::Relative | AccessTimes::FilesOnly => AccessTime::Relative,
            AccessTimes::Strict => AccessTime::Strict,
            AccessTimes::Never => AccessTime::Never,
        });
    }

    /// Makes changes of a directory durable if the mount or the directory requires that.
    fn names_changed(&self, directory: &Node) -> Result<()> {
        let wants = InodeFlags::SYNC | InodeFlags::DIRSYNC;
        let at_once = self.options.names == NameDurability::AtOnce
            || directory.attributes().flags.intersects(wants);
        if at_once {
            self.reply_errno(directory.sync(SyncMode::All))
        } else {
            Ok(())
        }
    }
}

impl fmt::Debug for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Volume")
            .field("filesystem", &self.filesystem)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

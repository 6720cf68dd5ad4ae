//! The ext4 engine as a file system that the kernel asks: [`Operations`](extant_fuse::Operations)
//! on a [`Filesystem`].
//!
//! Model: a node number is an inode number, but for the root, which is 1 for the kernel and 2 on
//! the disk. A node stays in the table as long as the kernel knows it (`nodes`), and with it the
//! inode, also without a name. The handle of a file says how it was opened and leads to nothing
//! (`handles`); that of a directory remembers a place between two names.
//!
//! What the kernel does itself is not done again here: permissions, sticky directories, limits of
//! processes, locks.
//!
//! | file | answers |
//! |---|---|
//! | `names` | looking up, making, linking, renaming, removing |
//! | `attributes` | `stat`, `chmod` and the like, `statvfs` |
//! | `data` | opening, reading, writing, syncing, copying |
//! | `space` | `fallocate`, holes |
//! | `directories` | listing |
//! | `xattrs` | extended attributes, access control lists |
//! | `control`, `trim`, `shutdown` | `ioctl` |
//!
//! No lock is held while the engine is called, but that of a directory handle. `docs/semantics.md`
//! says what programs may expect.

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
mod trim;
mod xattrs;

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use extant_ext4::{AccessTime, Filesystem, InodeFlags, Node, Options};
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

/// A file system of the engine, as the kernel sees it.
pub struct Volume {
    filesystem: Filesystem,
    options: VolumeOptions,
    nodes: NodeTable,
    directories: Directories,
    notifier: OnceLock<Notifier>,
    shut_down: AtomicBool,
    report: Box<dyn Fn(&Error) + Send + Sync>,
}

/// How a volume behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeOptions {
    /// When reading changes the time of access.
    pub access_times: AccessTimes,
    /// Whom files belong to, for programs and in the image.
    pub owners: Owners,
    /// The kernel's write cache mode: it may hold data that is not known here.
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

/// What mount options say about opening the file system.
pub fn filesystem_options(options: &MountOptions) -> Options {
    let default = Options::default();
    Options {
        access: options.access(),
        on_error: options.on_error,
        commit_interval: options.commit_interval.unwrap_or(default.commit_interval),
        discard: options.discard,
        assign: options.assign,
        replay: options.replay,
        ..default
    }
}

impl Volume {
    /// A volume over a file system. [`Operations::destroy`](extant_fuse::Operations::destroy)
    /// closes it.
    ///
    /// # Errors
    /// `Corrupt` when there is no root.
    pub fn new(filesystem: Filesystem, options: VolumeOptions) -> extant_space::Result<Self> {
        let root = filesystem.root()?;
        Ok(Self {
            nodes: NodeTable::new(root)?,
            directories: Directories::default(),
            notifier: OnceLock::new(),
            shut_down: AtomicBool::new(false),
            report: Box::new(|_| ()),
            filesystem,
            options,
        })
    }

    /// Has `report` called with every error of the device or the structures, of which programs only
    /// see a number.
    #[must_use]
    pub fn reporting(mut self, report: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        self.report = Box::new(report);
        self
    }

    /// The file system behind it.
    pub fn filesystem(&self) -> &Filesystem {
        &self.filesystem
    }

    /// Nodes that the kernel knows, besides the root.
    pub fn known_nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Has the kernel write back what it holds of a file, and forget the rest, from `offset` on for
    /// `length` bytes (`None`: to the end). Other threads answer what it asks meanwhile.
    fn empty_cache(&self, node: NodeId, offset: u64, length: Option<u64>) -> Result<()> {
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

    /// Notes that something was read.
    fn touch(&self, node: &Node) {
        let is_directory = node.file_type() == extant_ext4::FileType::Directory;
        node.touch_accessed(match self.options.access_times {
            AccessTimes::FilesOnly if is_directory => AccessTime::Never,
            AccessTimes::Relative | AccessTimes::FilesOnly => AccessTime::Relative,
            AccessTimes::Strict => AccessTime::Strict,
            AccessTimes::Never => AccessTime::Never,
        });
    }

    /// Makes changes of the names in a directory durable, where that is wanted.
    fn names_changed(&self, directory: &Node) -> Result<()> {
        let wants = InodeFlags::SYNC | InodeFlags::DIRSYNC;
        let at_once = self.options.names == NameDurability::AtOnce
            || directory.attributes().flags.intersects(wants);
        if at_once {
            self.told(directory.sync(SyncMode::All))
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

//! A file system with faults, for tests of the behaviour on a failing file system.
//!
//! It is a FUSE file system of the test's own process, with files in memory. Between it
//! and the test there is no page cache: reads return the stored data, and the counters count the
//! requests of programs. Blocks of zeros take no memory, so files of gigabytes are cheap.
//!
//! Faults can be changed while it is mounted: let a program begin, then break the disk.
//! Without any it supports the operations of ordinary programs; hard links, symbolic links and
//! unnamed files (`O_TMPFILE`) are refused, as simple file systems do.

mod blocks;
mod serve;
mod state;
mod store;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use extant_space::ErrorKind;
use fuser::{BackgroundSession, Config, MountOption, SessionACL};

use crate::fuse_watchdog::FuseWatchdog;
use crate::requires::{self, Requirement};
use crate::scratch::Mount;
use crate::workdir::Workdir;
use state::Shared;

/// Injected faults. The default is none.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// How `fallocate` is answered.
    pub fallocate: FallocateFault,
    /// How writes are answered.
    pub write: WriteFault,
    /// `fsync` and `fdatasync` fail in this way.
    pub fsync: Option<ErrorKind>,
    /// How renames are answered.
    pub rename: RenameFault,
    /// How opening with `O_DIRECT` is answered.
    pub direct_io: DirectIoFault,
    /// How long each read, write, `fallocate` and `fsync` takes at least. Ends early when
    /// the faults are changed.
    pub latency: Duration,
    /// How much longer `fsync` and `fdatasync` take. Ends early likewise.
    pub sync_latency: Duration,
}

/// Faults of `fallocate`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FallocateFault {
    /// Allocate, keep size, punch and zero range work.
    #[default]
    None,
    /// `EOPNOTSUPP`, always.
    Unsupported,
    /// Success; the size changes as it should, and nothing is allocated.
    FalseSuccess,
}

/// Faults of writes. Bytes count from the moment the faults are set, over all files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteFault {
    /// Writes are kept.
    #[default]
    None,
    /// After that number of bytes, writes succeed but are dropped: the file has the size, but
    /// neither the data nor the blocks.
    DroppedAfter(u64),
    /// After that number of bytes, writes fail with this error; the one that reaches it is short.
    FailsAfter(u64, ErrorKind),
}

/// Faults of renames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RenameFault {
    /// Plain, no-replace and exchange work.
    #[default]
    None,
    /// `renameat2` with a flag is `EINVAL`, as where it does not exist.
    NoFlags,
}

/// Faults of direct I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectIoFault {
    /// Works, with any alignment.
    #[default]
    None,
    /// Opening is `EINVAL`, as on file systems without it.
    Refused,
}

/// Counters of requests since the mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests of every kind.
    pub requests: u64,
    /// Reads.
    pub reads: u64,
    /// Writes, also those that failed.
    pub writes: u64,
    /// Bytes of writes that were acknowledged, also of those that were dropped.
    pub bytes_written: u64,
    /// `fallocate`s, also those that failed.
    pub fallocates: u64,
    /// `fsync`s and `fdatasync`s, also those that failed.
    pub fsyncs: u64,
}

/// The mounted file system. Unmounted when dropped.
#[derive(Debug)]
pub struct Faulty {
    shared: Arc<Shared>,
    session: Option<BackgroundSession>,
    place: PathBuf,
    watchdog: FuseWatchdog,
    _work: Workdir,
}

impl Faulty {
    /// Mounts one with room for `capacity_bytes`.
    ///
    /// # Panics
    /// When it cannot be mounted.
    #[track_caller]
    pub fn new(capacity_bytes: u64, faults: Faults) -> Self {
        let work = Workdir::new();
        let place = work.directory("fuse");
        let shared = Arc::new(Shared::new(capacity_bytes, faults));
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName("extant-faulty".into()),
            MountOption::DefaultPermissions,
        ];
        // Slow requests must not hold up the others.
        config.n_threads = Some(4);
        config.clone_fd = true;
        if requires::root().is_met() {
            config.acl = SessionACL::All;
        }
        let session = fuser::spawn_mount(serve::Server(Arc::clone(&shared)), &place, &config)
            .unwrap_or_else(|error| panic!("mount FUSE at {}: {error}", place.display()));
        Self {
            watchdog: FuseWatchdog::watch(&place),
            shared,
            session: Some(session),
            place,
            _work: work,
        }
    }

    /// The mount point. Reading it counts as progress of the test.
    pub fn path(&self) -> &Path {
        self.watchdog.progress();
        &self.place
    }

    /// Other faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.shared.set_faults(faults);
    }

    /// The counters so far. Reading them counts as progress of the test.
    pub fn counters(&self) -> Counters {
        self.watchdog.progress();
        self.shared.counters()
    }

    /// For [`require!`](crate::require): FUSE is available.
    pub fn requirement() -> Requirement {
        let needs = [
            requires::root(),
            requires::device("/dev/fuse"),
            requires::kernel_filesystem("fuse"),
        ];
        Requirement::new("root and FUSE", needs.iter().all(Requirement::is_met))
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        self.set_faults(Faults::default());
        // Taken out of the tree even when files in it are open; the threads end with the
        // last of them, so they are not waited for.
        drop(Mount::guard(&self.place));
        drop(self.session.take());
    }
}

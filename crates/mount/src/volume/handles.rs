//! Handles of open files and directories.
//!
//! The handle of a file needs no table: its bits encode the open flags, and the node of every
//! request identifies the file. The handle of a directory leads to the position of its last
//! listing.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bitflags::bitflags;
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::OFlags;

use extant_fuse::operations::{Handle, SyncScope};

bitflags! {
    /// How a file was opened.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct FileHandle: u64 {
        const WRITE = 1 << 0;
        /// Each change is made durable, with the metadata needed to read it. The kernel does that
        /// for writes to its cache alone.
        const SYNC_DATA = 1 << 1;
        /// As above, with all metadata.
        const SYNC_ALL = 1 << 2;
        /// Reads and writes bypass the kernel's cache.
        const DIRECT = 1 << 3;
        /// Copies from it leave the access time. The kernel sends the present flags with reads.
        const NO_ATIME = 1 << 4;
    }
}

impl FileHandle {
    pub(super) fn of(flags: OFlags) -> Self {
        let access = flags & OFlags::RWMODE;
        let mut handle = Self::empty();
        handle.set(
            Self::WRITE,
            access == OFlags::WRONLY || access == OFlags::RDWR,
        );
        handle.set(Self::NO_ATIME, flags.contains(OFlags::NOATIME));
        handle
    }

    pub(super) fn parse(handle: Handle) -> Self {
        Self::from_bits_truncate(handle.0)
    }

    /// Scope of what is durable when a change returns.
    pub(super) fn sync(self) -> Option<SyncScope> {
        if self.contains(Self::SYNC_ALL) {
            Some(SyncScope::All)
        } else if self.contains(Self::SYNC_DATA) {
            Some(SyncScope::Data)
        } else {
            None
        }
    }

    pub(super) fn handle(self) -> Handle {
        Handle(self.bits())
    }
}

const SHARDS: u64 = 16;

type Shard = Mutex<HashMap<u64, Arc<OpenDirectory>>>;

/// Open directories.
pub(super) struct Directories {
    shards: Box<[Shard]>,
    next: AtomicU64,
}

/// An open directory.
#[derive(Default)]
pub(super) struct OpenDirectory {
    /// It was opened with `O_NOATIME`.
    pub(super) keeps_atime: bool,
    /// The last name that was listed.
    pub(super) last: Mutex<LastName>,
}

/// Position of a listing: names may share a cookie.
#[derive(Default)]
pub(super) struct LastName {
    pub(super) cookie: u64,
    pub(super) name: Vec<u8>,
}

impl Directories {
    pub(super) fn open(&self, flags: OFlags) -> Handle {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let open = OpenDirectory {
            keeps_atime: flags.contains(OFlags::NOATIME),
            ..OpenDirectory::default()
        };
        lock(self.shard(number)).insert(number, Arc::new(open));
        Handle(number)
    }

    pub(super) fn get(&self, handle: Handle) -> Option<Arc<OpenDirectory>> {
        lock(self.shard(handle.0)).get(&handle.0).cloned()
    }

    pub(super) fn close(&self, handle: Handle) {
        lock(self.shard(handle.0)).remove(&handle.0);
    }

    fn shard(&self, number: u64) -> &Shard {
        &self.shards[(number % SHARDS) as usize]
    }
}

impl Default for Directories {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            // the kernel uses 0 if there is no handle.
            next: AtomicU64::new(1),
        }
    }
}

/// Locks `mutex`; a panic of another holder leaves the state usable.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

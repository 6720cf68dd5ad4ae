//! The state of owners, and the registry of all of them.
//!
//! When space runs out, the windows of all owners are reclaimed; the registry finds them. It is
//! sharded, because every inode that enters or leaves memory adds or removes an owner. It holds
//! weak references: an owner lives as long as its handle.

use std::collections::HashMap;

use crossbeam_utils::CachePadded;

use crate::BlockRange;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, Weak, lock};
use crate::uncommitted::UncommittedRuns;
use crate::windows::Windows;

const SHARDS: usize = 16;

/// An owner, as the registry and other threads see it.
pub(crate) struct OwnerShared {
    pub(crate) number: u64,
    pub(crate) state: Mutex<OwnerState>,
}

/// The state behind an owner's lock.
pub(crate) struct OwnerState {
    pub(crate) windows: Windows,
    pub(crate) uncommitted: UncommittedRuns,
    /// Blocks that the owner is known to have; they determine the size of its next window.
    pub(crate) blocks: u64,
    /// Whether the registry counts it among the owners with windows.
    pub(crate) has_windows: bool,
}

pub(crate) struct OwnerRegistry {
    shards: [Mutex<HashMap<usize, Weak<OwnerShared>>>; SHARDS],
    /// Number of owners that have windows.
    with_windows: CachePadded<AtomicU64>,
}

impl OwnerShared {
    /// An owner without windows.
    pub(crate) fn new(number: u64, blocks: u64) -> Self {
        Self {
            number,
            state: Mutex::new(OwnerState {
                windows: Windows::default(),
                uncommitted: UncommittedRuns::default(),
                blocks,
                has_windows: false,
            }),
        }
    }
}

impl OwnerRegistry {
    pub(crate) fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            with_windows: CachePadded::new(AtomicU64::new(0)),
        }
    }

    pub(crate) fn add(&self, owner: &Arc<OwnerShared>) {
        lock(self.shard(owner)).insert(key(owner), Arc::downgrade(owner));
    }

    pub(crate) fn remove(&self, owner: &Arc<OwnerShared>) {
        lock(self.shard(owner)).remove(&key(owner));
    }

    pub(crate) fn window_opened(&self) {
        self.with_windows.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn window_closed(&self) {
        self.with_windows.fetch_sub(1, Ordering::Relaxed);
    }

    /// Number of owners that have windows.
    pub(crate) fn with_windows(&self) -> u64 {
        self.with_windows.load(Ordering::Relaxed)
    }

    /// All windows.
    pub(crate) fn windows(&self) -> Vec<BlockRange> {
        let mut windows = Vec::new();
        self.for_each(|owner| windows.extend(lock(&owner.state).windows.iter()));
        windows
    }

    /// Visits the owners, with no shard locked.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(&OwnerShared)) {
        for shard in &self.shards {
            let owners: Vec<_> = lock(shard).values().filter_map(Weak::upgrade).collect();
            owners.iter().for_each(|owner| visit(owner));
        }
    }

    fn shard(&self, owner: &Arc<OwnerShared>) -> &Mutex<HashMap<usize, Weak<OwnerShared>>> {
        // The allocations of adjacent owners are two counters and a mutex apart.
        &self.shards[key(owner) / 64 % SHARDS]
    }
}

fn key(owner: &Arc<OwnerShared>) -> usize {
    Arc::as_ptr(owner).addr()
}

//! All owners, so that windows can be found when space runs out.

use std::collections::HashMap;

use crossbeam_utils::CachePadded;

use super::OwnerShared;
use crate::BlockRange;
use crate::counters::Count;
use crate::shared::Shared;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, Weak, lock};

const SHARDS: usize = 16;

pub(crate) struct Owners {
    shards: [Mutex<HashMap<usize, Weak<OwnerShared>>>; SHARDS],
    /// Owners that have windows.
    with_windows: CachePadded<AtomicU64>,
}

impl Owners {
    pub(crate) fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            with_windows: CachePadded::new(AtomicU64::new(0)),
        }
    }

    pub(super) fn add(&self, owner: &Arc<OwnerShared>) {
        lock(self.shard(owner)).insert(key(owner), Arc::downgrade(owner));
    }

    pub(super) fn remove(&self, owner: &Arc<OwnerShared>) {
        lock(self.shard(owner)).remove(&key(owner));
    }

    pub(super) fn window_opened(&self) {
        self.with_windows.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn window_closed(&self) {
        self.with_windows.fetch_sub(1, Ordering::Relaxed);
    }

    /// Number of owners that have windows.
    pub(crate) fn with_windows(&self) -> u64 {
        self.with_windows.load(Ordering::Relaxed)
    }

    /// Takes the windows back from all owners; how many blocks became free.
    pub(crate) fn reclaim(&self, shared: &Shared) -> u64 {
        let mut blocks = 0;
        self.for_each(|owner| {
            let released = owner.release_windows(shared);
            shared
                .counters
                .add(Count::WindowsReclaimed, u64::from(released > 0));
            blocks += released;
        });
        blocks
    }

    /// All windows.
    pub(crate) fn windows(&self) -> Vec<BlockRange> {
        let mut windows = Vec::new();
        self.for_each(|owner| windows.extend(lock(&owner.state).windows.iter()));
        windows
    }

    /// Visits the owners, without a lock of the registry.
    fn for_each(&self, mut visit: impl FnMut(&OwnerShared)) {
        for shard in &self.shards {
            let owners: Vec<_> = lock(shard).values().filter_map(Weak::upgrade).collect();
            owners.iter().for_each(|owner| visit(owner));
        }
    }

    fn shard(&self, owner: &Arc<OwnerShared>) -> &Mutex<HashMap<usize, Weak<OwnerShared>>> {
        // Neighbours in memory are two counters and a mutex apart.
        &self.shards[key(owner) / 64 % SHARDS]
    }
}

fn key(owner: &Arc<OwnerShared>) -> usize {
    Arc::as_ptr(owner).addr()
}

//! Blocks that become free when a transaction commits, and the gate of in-flight discards.
//!
//! The runs themselves are kept in their groups (`Loaded::pending`), merged with adjacent runs.
//! This list records only which groups have runs of which transaction, so that the shared lock is
//! taken once per group and transaction.
//!
//! A discard of free space takes free blocks out of the bitmap while it is in flight. An allocation
//! that finds no space meanwhile waits for the discard and searches again
//! ([`PendingList::wait_for_discard`]).
//! Lock order: the discard gate is taken with no other lock held.

use std::collections::{BTreeMap, BTreeSet};

use crossbeam_utils::CachePadded;

use crate::TransactionId;
use crate::counters::Counters;
use crate::goals::Goals;
#[cfg(feature = "ablation")]
use crate::options::{FreedExtents, Options};
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, lock, lock_timed};

pub(crate) struct PendingList {
    /// Whether every run is listed (`FreedExtents::InsertFirst`).
    #[cfg(feature = "ablation")]
    lists_every_run: bool,
    blocks: CachePadded<AtomicU64>,
    lists: Mutex<Lists>,
    /// Held while a discard of free blocks is in flight.
    discard_gate: Mutex<()>,
    /// Incremented when a discard of free blocks begins and when it ends: odd while one is in
    /// flight.
    discards: AtomicU64,
}

#[derive(Default)]
struct Lists {
    groups: BTreeMap<TransactionId, BTreeSet<u32>>,
    /// Each run, as before the scalability patches: group and first block.
    #[cfg(feature = "ablation")]
    runs: BTreeMap<TransactionId, Vec<(u32, u32)>>,
}

/// A run that was freed in a group, whose lock is held.
#[derive(Clone, Copy)]
pub(crate) struct FreedRun {
    pub(crate) group: u32,
    #[cfg(feature = "ablation")]
    pub(crate) start: u32,
    pub(crate) count: u32,
    pub(crate) transaction: TransactionId,
    /// The group had no run of the transaction before.
    pub(crate) is_first: bool,
}

impl PendingList {
    pub(crate) fn new(#[cfg(feature = "ablation")] options: &Options) -> Self {
        Self {
            #[cfg(feature = "ablation")]
            lists_every_run: options.freed_extents == FreedExtents::InsertFirst,
            blocks: CachePadded::new(AtomicU64::new(0)),
            lists: Mutex::default(),
            discard_gate: Mutex::new(()),
            discards: AtomicU64::new(0),
        }
    }

    /// Blocks that wait for a commit or for a discard.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }

    /// Counts blocks that begin to wait.
    pub(crate) fn add_blocks(&self, blocks: u64, goals: &Goals, counters: &Counters) {
        goals.under_lock(counters, || {
            self.blocks.fetch_add(blocks, Ordering::Relaxed);
        });
    }

    /// Counts blocks that were released.
    pub(crate) fn remove_blocks(&self, blocks: u64, goals: &Goals, counters: &Counters) {
        goals.under_lock(counters, || {
            self.blocks.fetch_sub(blocks, Ordering::Relaxed);
        });
    }

    /// Records a run that was added to its group.
    pub(crate) fn record(&self, run: FreedRun, goals: &Goals, counters: &Counters) {
        self.add_blocks(run.count.into(), goals, counters);
        #[cfg(feature = "ablation")]
        let is_listed = run.is_first || self.lists_every_run;
        #[cfg(not(feature = "ablation"))]
        let is_listed = run.is_first;
        if !is_listed {
            return;
        }
        let (mut lists, waited) = lock_timed(&self.lists);
        counters.lock_waited(waited);
        let groups = lists.groups.entry(run.transaction).or_default();
        groups.insert(run.group);
        #[cfg(feature = "ablation")]
        if self.lists_every_run {
            let runs = lists.runs.entry(run.transaction).or_default();
            runs.push((run.group, run.start));
        }
    }

    /// Removes a transaction that has committed and returns the groups that have runs of it.
    pub(crate) fn take_groups(
        &self,
        transaction: TransactionId,
        counters: &Counters,
    ) -> BTreeSet<u32> {
        let (mut lists, waited) = lock_timed(&self.lists);
        counters.lock_waited(waited);
        #[cfg(feature = "ablation")]
        lists.runs.remove(&transaction);
        lists.groups.remove(&transaction).unwrap_or_default()
    }

    /// Begins a discard of free blocks; waits for the one in flight.
    pub(crate) fn begin_discard(&self) -> DiscardGuard<'_> {
        let gate = lock(&self.discard_gate);
        self.discards.fetch_add(1, Ordering::AcqRel);
        DiscardGuard {
            list: self,
            _gate: gate,
        }
    }

    /// The sequence number for [`Self::wait_for_discard`], read before a search.
    pub(crate) fn discard_sequence(&self) -> u64 {
        self.discards.load(Ordering::Acquire)
    }

    /// Whether a failed search may succeed now, because a discard was in flight since `before`.
    /// Waits for a discard that still is.
    pub(crate) fn wait_for_discard(&self, before: u64) -> bool {
        let now = self.discards.load(Ordering::Acquire);
        if !now.is_multiple_of(2) {
            drop(lock(&self.discard_gate));
            return true;
        }
        now != before
    }
}

/// A discard of free blocks is in flight.
pub(crate) struct DiscardGuard<'a> {
    list: &'a PendingList,
    _gate: MutexGuard<'a, ()>,
}

impl Drop for DiscardGuard<'_> {
    fn drop(&mut self) {
        self.list.discards.fetch_add(1, Ordering::AcqRel);
    }
}

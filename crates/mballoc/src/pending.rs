//! Blocks that become free when a transaction has committed, and in-flight discards: free blocks
//! withheld for a while.
//!
//! The runs are stored in their groups (`Loaded::pending`), merged with their neighbours; here is
//! only which groups have some of a transaction, so that the shared lock is taken once per group
//! and transaction.
//!
//! A request that finds no space while free blocks are withheld waits until they are released and
//! searches again ([`PendingList::retry`]). Lock order: the gate is taken with no other lock held.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crossbeam_utils::CachePadded;

use crate::index::class_of;
use crate::options::FreedExtents;
use crate::shared::Shared;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, lock, lock_timed};
use crate::{Block, BlockRange, GroupNumber, TransactionId};

pub(crate) struct PendingList {
    freed_extents: FreedExtents,
    blocks: CachePadded<AtomicU64>,
    lists: Mutex<Lists>,
    /// Held while free blocks are withheld.
    gate: Mutex<()>,
    /// Number of withhold and release operations: odd while blocks are withheld.
    withheld: AtomicU64,
}

#[derive(Default)]
struct Lists {
    groups: BTreeMap<TransactionId, BTreeSet<u32>>,
    /// Every run separately, as in the kernel before the mballoc scalability patches: group and
    /// first block.
    runs: BTreeMap<TransactionId, Vec<(u32, u32)>>,
}

impl PendingList {
    pub(crate) fn new(freed_extents: FreedExtents) -> Self {
        Self {
            freed_extents,
            blocks: CachePadded::new(AtomicU64::new(0)),
            lists: Mutex::default(),
            gate: Mutex::new(()),
            withheld: AtomicU64::new(0),
        }
    }

    /// Blocks that wait for a commit, and blocks in use until their release.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }

    /// Notes a run that was added to a group, whose lock is held. `first`: the group had none of
    /// the transaction.
    pub(crate) fn note(
        &self,
        shared: &Shared,
        group: u32,
        start: u32,
        count: u32,
        transaction: TransactionId,
        first: bool,
    ) {
        shared.goals.under_lock(&shared.counters, || {
            self.blocks.fetch_add(count.into(), Ordering::Relaxed);
        });
        let old = self.freed_extents == FreedExtents::InsertFirst;
        if !first && !old {
            return;
        }
        let (mut lists, waited) = lock_timed(&self.lists);
        shared.counters.lock_waited(waited);
        lists.groups.entry(transaction).or_default().insert(group);
        if old {
            let runs = lists.runs.entry(transaction).or_default();
            runs.push((group, start));
        }
    }

    /// The runs of a committed transaction. They stay in their groups, and in use, until they are
    /// released, so that they cannot be freed twice.
    pub(crate) fn commit(&self, shared: &Shared, transaction: TransactionId) -> Vec<BlockRange> {
        let (mut lists, waited) = lock_timed(&self.lists);
        shared.counters.lock_waited(waited);
        let groups = lists.groups.remove(&transaction).unwrap_or_default();
        lists.runs.remove(&transaction);
        drop(lists);
        let mut freed = Vec::new();
        for number in groups {
            let mut group = shared.wait_group(number);
            let geometry = shared.geometry();
            if let Some(loaded) = group.load() {
                let runs = loaded.commit_pending(transaction);
                let ranges = runs
                    .into_iter()
                    .map(|(start, count)| geometry.range_in(GroupNumber(number), start, count));
                freed.extend(ranges);
            }
        }
        freed
    }

    /// Makes committed runs free.
    pub(crate) fn release(&self, shared: &Shared, ranges: &[BlockRange]) {
        let mut blocks = 0;
        for range in ranges {
            let (number, start) = (shared.geometry().locate(range.start()))
                .expect("no shrink cuts off blocks that are in use");
            let mut group = shared.wait_group(number.0);
            let loaded = group.load().expect("a group that has pending blocks");
            loaded.release_pending(start, range.count());
            group.mark(start, range.count(), true);
            blocks += u64::from(range.count());
        }
        shared.goals.under_lock(&shared.counters, || {
            self.blocks.fetch_sub(blocks, Ordering::Relaxed);
        });
    }

    /// Begins to withhold free blocks, when no other thread does.
    pub(crate) fn withhold(&self) -> Withholding<'_> {
        let gate = lock(&self.gate);
        self.withheld.fetch_add(1, Ordering::AcqRel);
        Withholding {
            list: self,
            _gate: gate,
        }
    }

    /// A number for [`retry`](Self::retry), from before a search.
    pub(crate) fn before_search(&self) -> u64 {
        self.withheld.load(Ordering::Acquire)
    }

    /// Whether a search that found nothing may find something now, as free blocks were withheld
    /// meanwhile. Waits until they are back.
    pub(crate) fn retry(&self, before: u64) -> bool {
        let now = self.withheld.load(Ordering::Acquire);
        if !now.is_multiple_of(2) {
            drop(lock(&self.gate));
            return true;
        }
        now != before
    }
}

/// Free blocks are withheld.
pub(crate) struct Withholding<'a> {
    list: &'a PendingList,
    _gate: MutexGuard<'a, ()>,
}

impl Withholding<'_> {
    /// Withholds up to `runs_max` free runs of at least `minimum` blocks from the blocks `between`
    /// of a group. They are in use until they are [released](PendingList::release).
    pub(crate) fn take(
        &self,
        shared: &Shared,
        group: u32,
        between: Range<Block>,
        minimum: u32,
        runs_max: usize,
    ) -> Vec<BlockRange> {
        let header = shared.group(group);
        if header.free() < minimum || !header.reaches(class_of(minimum)) {
            return Vec::new();
        }
        let mut group = shared.wait_group(group);
        let geometry = shared.geometry();
        let number = GroupNumber(group.number);
        let first = geometry.start_of(number).0;
        let bound = shared.open_length(group.number);
        let inside = |block: Block| block.0.saturating_sub(first).min(bound.into()) as u32;
        let (mut at, to) = (inside(between.start), inside(between.end));
        let mut taken = Vec::new();
        while taken.len() < runs_max
            && let Some(loaded) = group.load()
            && let Some(run) = loaded.bits.next_run(&shared.shape, minimum, at, to)
        {
            loaded.withhold(run.start, run.count);
            group.mark(run.start, run.count, false);
            taken.push(geometry.range_in(number, run.start, run.count));
            at = run.end();
        }
        let blocks = taken.iter().map(|range| u64::from(range.count())).sum();
        shared.goals.under_lock(&shared.counters, || {
            self.list.blocks.fetch_add(blocks, Ordering::Relaxed);
        });
        taken
    }
}

impl Drop for Withholding<'_> {
    fn drop(&mut self) {
        self.list.withheld.fetch_add(1, Ordering::AcqRel);
    }
}

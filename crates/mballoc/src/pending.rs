//! Blocks that are free once a transaction has committed.
//!
//! The runs lie in their groups (`Loaded::pending`), joined with their neighbours there; here is only which
//! groups have some of a transaction, so that the shared lock is taken once for a group and a transaction.

use std::collections::{BTreeMap, BTreeSet};

use crossbeam_utils::CachePadded;

use crate::options::FreedExtents;
use crate::shared::Shared;
use crate::sync::{AtomicU64, Mutex, Ordering, lock_timed};
use crate::{BlockRange, GroupNumber, TransactionId};

pub(crate) struct PendingList {
    freed_extents: FreedExtents,
    blocks: CachePadded<AtomicU64>,
    lists: Mutex<Lists>,
}

#[derive(Default)]
struct Lists {
    groups: BTreeMap<TransactionId, BTreeSet<u32>>,
    /// Every run on its own, as the kernel kept them before the series: group and first block.
    runs: BTreeMap<TransactionId, Vec<(u32, u32)>>,
}

impl PendingList {
    pub(crate) fn new(freed_extents: FreedExtents) -> Self {
        Self {
            freed_extents,
            blocks: CachePadded::new(AtomicU64::new(0)),
            lists: Mutex::default(),
        }
    }

    /// Blocks that wait for a commit, and blocks between a commit and their release.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }

    /// Notes a run that was added to a group, whose lock is held. `first`: the group had none of the transaction.
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

    /// The runs of a transaction that has committed. They stay in their groups, and in use, until they are
    /// released, so that nobody can free them a second time.
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
}

//! Counters like the kernel's `mb_stats`, one set per slot; threads are spread over the slots.
//!
//! This avoids a cache line that all threads write. A reader sums the slots. The scheduler pairs
//! threads at will: with as many slots as processors, two threads of one slot often run at the same
//! time. So every allocation counts in one of many slots; free blocks, which each search sums, are
//! spread over few.

use std::cell::Cell;
use std::time::Duration;

use crossbeam_utils::CachePadded;
use serde::Serialize;

use crate::sync::{AtomicI64, AtomicU64, Ordering};

/// Slots of the counters: a running thread shares its slot with another running one in one of 32
/// cases.
const SLOTS_PER_CPU: usize = 32;
const COUNTER_SLOTS_MAX: usize = 1024;
/// A search sums all of them.
const SUM_SLOTS_MAX: usize = 64;
/// Number of criteria of the search.
pub(crate) const CRITERIA: usize = 5;

/// The counters. The order is that of the slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    /// Requests not served from a window.
    Requests,
    Failures,
    /// Blocks allocated from groups, not from windows.
    GroupBlocks,
    WindowHits,
    /// Blocks added to windows.
    WindowBlocksAdded,
    /// Blocks allocated from windows.
    WindowBlocksTaken,
    /// Blocks of windows that were freed.
    WindowBlocksReleased,
    GoalHits,
    StreamGoalHits,
    GroupsBusy,
    GroupsLoaded,
    LockWaits,
    LockWaitNanos,
    FreedBlocks,
    ReusedBlocks,
    WindowsReclaimed,
    /// And one for each further criterion.
    CriterionHits,
    /// And one for each further criterion.
    GroupsScanned = Self::CriterionHits as isize + CRITERIA as isize,
    /// And one for each further criterion.
    GroupsPassed = Self::GroupsScanned as isize + CRITERIA as isize,
}

const COUNTS: usize = Count::GroupsPassed as usize + CRITERIA;

/// Counters of the allocator since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Statistics {
    /// Requests.
    pub requests: u64,
    /// Failed requests.
    pub failures: u64,
    /// Allocated blocks.
    pub blocks: u64,
    /// Requests served from the owner's window, without access to a group.
    pub window_hits: u64,
    /// Requests served at their goal.
    pub goal_hits: u64,
    /// Requests served in the group of their stream goal.
    pub stream_goal_hits: u64,
    /// Requests served by each criterion.
    pub hits: CriterionCounts,
    /// Groups that each criterion scanned.
    pub groups_scanned: CriterionCounts,
    /// Groups that the linear scan of each criterion passed over, because their runs are too short
    /// or their bitmap has not been read. The index does not visit such groups.
    pub groups_passed: CriterionCounts,
    /// Groups skipped because another thread held their lock.
    pub groups_busy: u64,
    /// Groups whose bitmap was read.
    pub groups_loaded: u64,
    /// Contended lock acquisitions.
    pub lock_waits: u64,
    /// Time spent waiting for them, in nanoseconds.
    pub lock_wait_nanos: u64,
    /// Blocks freed.
    pub freed_blocks: u64,
    /// Of these, blocks freed at once because their transaction had not committed.
    pub reused_blocks: u64,
    /// Windows reclaimed because no free space was left.
    pub windows_reclaimed: u64,
    /// Blocks that were added to windows.
    pub window_blocks_added: u64,
    /// Blocks of windows that were freed without having been used.
    pub window_blocks_released: u64,
}

/// A number for each criterion, in the order they are tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CriterionCounts {
    /// A length that is a power of two.
    pub power_of_two: u64,
    /// Any other length.
    pub goal_length_fast: u64,
    /// The length of the longest run in the index.
    pub best_available: u64,
    /// The requested length, in groups that may have it.
    pub goal_length_slow: u64,
    /// Anything.
    pub any_free: u64,
}

impl CriterionCounts {
    /// In the order that the criteria are tried.
    pub fn to_array(&self) -> [u64; CRITERIA] {
        [
            self.power_of_two,
            self.goal_length_fast,
            self.best_available,
            self.goal_length_slow,
            self.any_free,
        ]
    }

    /// The sum over all criteria.
    pub fn total(&self) -> u64 {
        self.to_array().iter().sum()
    }
}

impl From<[u64; CRITERIA]> for CriterionCounts {
    fn from(counts: [u64; CRITERIA]) -> Self {
        let [
            power_of_two,
            goal_length_fast,
            best_available,
            goal_length_slow,
            any_free,
        ] = counts;
        Self {
            power_of_two,
            goal_length_fast,
            best_available,
            goal_length_slow,
            any_free,
        }
    }
}

pub(crate) struct Counters {
    slots: Box<[CachePadded<[AtomicU64; COUNTS]>]>,
}

impl Counters {
    pub(crate) fn new(cpus: usize) -> Self {
        Self {
            slots: (0..slots(cpus * SLOTS_PER_CPU, COUNTER_SLOTS_MAX))
                .map(|_| CachePadded::new(std::array::from_fn(|_| AtomicU64::new(0))))
                .collect(),
        }
    }

    pub(crate) fn add(&self, count: Count, more: u64) {
        self.add_at(count as usize, more);
    }

    pub(crate) fn criterion_hit(&self, criterion: usize) {
        self.add_at(Count::CriterionHits as usize + criterion, 1);
    }

    pub(crate) fn group_scanned(&self, criterion: usize) {
        self.add_at(Count::GroupsScanned as usize + criterion, 1);
    }

    pub(crate) fn groups_passed(&self, criterion: usize, groups: u32) {
        self.add_at(Count::GroupsPassed as usize + criterion, groups.into());
    }

    pub(crate) fn lock_waited(&self, waited: Option<Duration>) {
        if let Some(waited) = waited {
            self.add(Count::LockWaits, 1);
            self.add(Count::LockWaitNanos, waited.as_nanos() as u64);
        }
    }

    /// A request of `blocks` was served from a window.
    pub(crate) fn window_hit(&self, blocks: u32) {
        let slot = self.slot();
        slot[Count::WindowHits as usize].fetch_add(1, Ordering::Relaxed);
        slot[Count::WindowBlocksTaken as usize].fetch_add(blocks.into(), Ordering::Relaxed);
    }

    /// Blocks in the windows of all owners. Exact when no thread changes them; never below 0.
    pub(crate) fn window_blocks(&self) -> u64 {
        let gone = self.get(Count::WindowBlocksTaken) + self.get(Count::WindowBlocksReleased);
        self.get(Count::WindowBlocksAdded).saturating_sub(gone)
    }

    pub(crate) fn sum(&self) -> Statistics {
        let of = |count: Count| self.get(count);
        let criteria = |first: Count| -> CriterionCounts {
            std::array::from_fn::<_, CRITERIA, _>(|at| self.get_at(first as usize + at)).into()
        };
        Statistics {
            requests: of(Count::Requests) + of(Count::WindowHits),
            failures: of(Count::Failures),
            blocks: of(Count::GroupBlocks) + of(Count::WindowBlocksTaken),
            window_hits: of(Count::WindowHits),
            goal_hits: of(Count::GoalHits),
            stream_goal_hits: of(Count::StreamGoalHits),
            hits: criteria(Count::CriterionHits),
            groups_scanned: criteria(Count::GroupsScanned),
            groups_passed: criteria(Count::GroupsPassed),
            groups_busy: of(Count::GroupsBusy),
            groups_loaded: of(Count::GroupsLoaded),
            lock_waits: of(Count::LockWaits),
            lock_wait_nanos: of(Count::LockWaitNanos),
            freed_blocks: of(Count::FreedBlocks),
            reused_blocks: of(Count::ReusedBlocks),
            windows_reclaimed: of(Count::WindowsReclaimed),
            window_blocks_added: of(Count::WindowBlocksAdded),
            window_blocks_released: of(Count::WindowBlocksReleased),
        }
    }

    fn get(&self, count: Count) -> u64 {
        self.get_at(count as usize)
    }

    fn get_at(&self, at: usize) -> u64 {
        let slots = self.slots.iter();
        slots.map(|slot| slot[at].load(Ordering::Relaxed)).sum()
    }

    fn add_at(&self, at: usize, more: u64) {
        self.slot()[at].fetch_add(more, Ordering::Relaxed);
    }

    fn slot(&self) -> &[AtomicU64; COUNTS] {
        &self.slots[thread_slot() % self.slots.len()]
    }
}

/// A signed sum, spread over slots as the counters are.
pub(crate) struct SpreadSum {
    slots: Box<[CachePadded<AtomicI64>]>,
}

impl SpreadSum {
    pub(crate) fn new(cpus: usize, value: u64) -> Self {
        let slots: Box<[_]> = (0..slots(cpus, SUM_SLOTS_MAX))
            .map(|_| CachePadded::new(AtomicI64::new(0)))
            .collect();
        slots[0].store(value as i64, Ordering::Relaxed);
        Self { slots }
    }

    pub(crate) fn add(&self, more: i64) {
        self.slots[thread_slot() % self.slots.len()].fetch_add(more, Ordering::Relaxed);
    }

    /// Exact when no thread changes it; never below 0.
    pub(crate) fn sum(&self) -> u64 {
        let slots = self.slots.iter();
        let sum: i64 = slots.map(|slot| slot.load(Ordering::Relaxed)).sum();
        sum.max(0) as u64
    }
}

fn slots(wanted: usize, max: usize) -> usize {
    wanted.next_power_of_two().clamp(2, max)
}

/// A small number that differs from one thread to the next.
fn thread_slot() -> usize {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static SLOT: Cell<usize> = Cell::new(THREADS.fetch_add(1, Ordering::Relaxed));
    }
    SLOT.get()
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn counters_have_many_more_slots_than_processors_and_the_sum_of_free_blocks_has_not() {
        for cpus in [1, 2, 64] {
            assert!(Counters::new(cpus).slots.len() >= 16 * cpus, "{cpus}");
            assert!(SpreadSum::new(cpus, 0).slots.len() <= 2 * cpus, "{cpus}");
        }
    }
}

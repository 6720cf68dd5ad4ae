//! will-it-scale's fallocate2 on the allocator alone: every thread repeatedly extends its file 128
//! times by 8 KiB, to 1 MiB, then truncates it.
//!
//! As in a file system, freed blocks belong to a transaction, and a transaction commits every
//! 100 ms, when no thread has a handle of it.
//!
//! A thread's counter and transaction have their own cache line, so that the measurement adds no
//! false sharing.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use crossbeam_utils::CachePadded;
use extant_mballoc::{Allocator, BlockRange, Free, Goal, Options, Owner, Request, TransactionId};

use super::append;
use super::disk::{self, Fresh};

/// Allocations between two truncates.
const ALLOCATIONS: u32 = 128;
/// Blocks of one.
const BLOCKS: u32 = 2;
/// Size of the disk, GiB.
pub(super) const DISK_GIB: u64 = 200;
const COMMIT_EVERY: Duration = Duration::from_millis(100);
/// Bitmaps are read and windows opened before the clock starts.
const WARM_UP: Duration = Duration::from_millis(50);
/// Every n-th allocation is timed; n is coprime to the round, so that all positions are sampled.
const TIMED_EVERY: u32 = 17;
/// Timed allocations of all threads together, at most.
const TIMED_MAX: usize = 1 << 21;

/// The timed allocations.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::benches) enum Timing {
    /// No times, only the number.
    Off,
    /// A sample of them.
    Sampled,
}

/// Result of a run.
pub(in crate::benches) struct Sample {
    /// Allocations a second, of all threads together.
    pub(in crate::benches) rate: f64,
    /// Time that threads waited for locks, nanoseconds for each allocation.
    pub(super) wait_nanos: f64,
    /// Locks that were not free at once, for each thousand allocations.
    pub(super) waits_per_thousand: f64,
    /// Groups passed over as another thread held them, for each thousand allocations.
    pub(super) busy_per_thousand: f64,
    /// Times of single allocations.
    pub(super) times: Vec<Duration>,
}

/// Per-thread state that other threads read.
struct Shown {
    allocations: AtomicU64,
    /// The transaction that it is in, or has been in last.
    transaction: AtomicU32,
}

/// State shared by all threads.
struct Stage<'a> {
    allocator: &'a Allocator,
    /// The transaction that runs.
    transaction: CachePadded<AtomicU32>,
    stop: CachePadded<AtomicBool>,
    shown: Vec<CachePadded<Shown>>,
}

/// Runs `threads` threads for about `window`.
pub(in crate::benches) fn run(
    options: &Options,
    threads: usize,
    window: Duration,
    timing: Timing,
) -> Result<Sample> {
    let geometry = disk::geometry(DISK_GIB);
    let allocator = Allocator::open(geometry, options.clone(), Fresh(geometry))?;
    let stage = Stage::new(&allocator, threads);
    let (rate, times) = thread::scope(|scope| {
        let stage = &stage;
        let workers: Vec<_> = (0..threads)
            .map(|number| scope.spawn(move || stage.work(number, timing)))
            .collect();
        let rate = stage.measure(window);
        stage.stop.store(true, Ordering::Relaxed);
        let mut times = Vec::new();
        for worker in workers {
            let worked = worker.join().map_err(|_| anyhow!("a thread panicked"))?;
            times.extend(worked?);
        }
        anyhow::Ok((rate, times))
    })?;
    // After the run: it takes every owner's lock, which a preempted thread may hold.
    let statistics = allocator.statistics();
    let each = |count: u64| count as f64 / statistics.requests.max(1) as f64;
    Ok(Sample {
        rate,
        wait_nanos: each(statistics.lock_wait_nanos),
        waits_per_thousand: each(statistics.lock_waits) * 1e3,
        busy_per_thousand: each(statistics.groups_busy) * 1e3,
        times,
    })
}

impl<'a> Stage<'a> {
    fn new(allocator: &'a Allocator, threads: usize) -> Self {
        let shown = || Shown {
            allocations: AtomicU64::new(0),
            transaction: AtomicU32::new(1),
        };
        Self {
            allocator,
            transaction: CachePadded::new(AtomicU32::new(1)),
            stop: CachePadded::new(AtomicBool::new(false)),
            shown: (0..threads).map(|_| CachePadded::new(shown())).collect(),
        }
    }

    /// One thread: rounds until the stop flag is set. Returns the sampled times, if any.
    fn work(&self, number: usize, timing: Timing) -> Result<Vec<Duration>> {
        let owner = self.allocator.owner(number as u64, 0);
        let shown = &self.shown[number];
        let mut times = match timing {
            Timing::Off => None,
            Timing::Sampled => Some(Times::new(TIMED_MAX / self.shown.len())),
        };
        let mut extents = Vec::new();
        loop {
            let transaction = self.transaction.load(Ordering::Acquire);
            shown.transaction.store(transaction, Ordering::Release);
            round(&owner, TransactionId(transaction), &mut extents, &mut times)?;
            let allocations = shown.allocations.load(Ordering::Relaxed);
            shown
                .allocations
                .store(allocations + u64::from(ALLOCATIONS), Ordering::Relaxed);
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
        }
        Ok(times.map_or_else(Vec::new, |times| times.samples))
    }

    /// Allocations a second, once warm.
    fn measure(&self, window: Duration) -> f64 {
        let mut committed = 0;
        self.commit_for(WARM_UP, &mut committed);
        let (before, start) = (self.done(), Instant::now());
        self.commit_for(window, &mut committed);
        (self.done() - before) as f64 / start.elapsed().as_secs_f64()
    }

    /// Commits every now and then, for so long; `committed` is the last transaction that is.
    fn commit_for(&self, time: Duration, committed: &mut u32) {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            thread::sleep(left.min(COMMIT_EVERY));
            self.commit(committed);
        }
    }

    /// Begins a transaction and commits all before it that every thread has left.
    fn commit(&self, committed: &mut u32) {
        self.transaction.fetch_add(1, Ordering::Release);
        let inside = self.shown.iter();
        let inside = inside.map(|shown| shown.transaction.load(Ordering::Acquire));
        let oldest = inside.min().unwrap_or(0);
        while *committed + 1 < oldest {
            *committed += 1;
            drop(self.allocator.committed(TransactionId(*committed)));
        }
    }

    fn done(&self) -> u64 {
        let shown = self.shown.iter();
        shown
            .map(|shown| shown.allocations.load(Ordering::Relaxed))
            .sum()
    }
}

/// Extends the file to 1 MiB and truncates it. `extents` is empty before and after.
fn round(
    owner: &Owner,
    transaction: TransactionId,
    extents: &mut Vec<BlockRange>,
    times: &mut Option<Times>,
) -> Result<()> {
    let mut request = Request::data(BLOCKS);
    request.transaction = Some(transaction);
    let mut blocks = 0;
    while blocks < ALLOCATIONS * BLOCKS {
        // The last run may have been shorter than wanted.
        request.wanted = BLOCKS.min(ALLOCATIONS * BLOCKS - blocks);
        let range = match times {
            None => owner.allocate(&request)?.keep(),
            Some(times) => times.take(|| Ok(owner.allocate(&request)?.keep()))?,
        };
        blocks += range.count();
        request.goal = Goal::Follow(range.end());
        append(extents, range);
    }
    for extent in extents.drain(..) {
        owner.free(extent, Free::AfterCommit(transaction))?;
    }
    Ok(())
}

/// The times of one allocation of every few.
struct Times {
    samples: Vec<Duration>,
    samples_max: usize,
    until_next: u32,
}

impl Times {
    fn new(samples_max: usize) -> Self {
        Self {
            samples: Vec::with_capacity(samples_max),
            samples_max,
            until_next: TIMED_EVERY,
        }
    }

    fn take<T>(&mut self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.until_next -= 1;
        if self.until_next > 0 {
            return work();
        }
        self.until_next = TIMED_EVERY;
        let start = Instant::now();
        let result = work();
        let elapsed = start.elapsed();
        if self.samples.len() < self.samples_max {
            self.samples.push(elapsed);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_allocates_a_mebibyte_and_leaves_nothing_behind() {
        let geometry = disk::geometry(1);
        let allocator = Allocator::open(geometry, Options::default(), Fresh(geometry)).unwrap();
        let free = allocator.free_blocks();
        let owner = allocator.owner(1, 0);
        let mut extents = Vec::new();
        let transaction = TransactionId(1);
        round(&owner, transaction, &mut extents, &mut None).unwrap();
        assert!(extents.is_empty());
        assert_eq!(allocator.statistics().blocks, 256);
        drop(owner);
        drop(allocator.committed(transaction));
        assert_eq!(allocator.free_blocks(), free);
    }

    #[test]
    fn every_seventeenth_allocation_is_timed_up_to_the_limit() {
        let mut times = Times::new(3);
        let mut work = |rounds: u32| {
            for _ in 0..rounds {
                times.take(|| Ok(())).unwrap();
            }
            times.samples.len()
        };
        assert_eq!((work(16), work(1), work(17), work(1000)), (0, 1, 2, 3));
    }

    #[test]
    fn every_thread_does_a_round_and_times_its_share_of_it() {
        let window = Duration::from_millis(1);
        let sample = run(&Options::default(), 3, window, Timing::Sampled).unwrap();
        assert!(sample.times.len() as u32 >= 3 * (ALLOCATIONS / TIMED_EVERY));
        let untimed = run(&Options::default(), 1, window, Timing::Off).unwrap();
        assert!(untimed.times.is_empty());
    }

    #[test]
    fn transaction_commits_when_every_thread_has_left_it() {
        let geometry = disk::geometry(1);
        let options = Options::before_scalability_patches();
        let allocator = Allocator::open(geometry, options, Fresh(geometry)).unwrap();
        let stage = Stage::new(&allocator, 2);
        let owner = allocator.owner(1, 0);
        for transaction in 1..=4 {
            let range = owner.allocate(&Request::data(10)).unwrap().keep();
            let when = Free::AfterCommit(TransactionId(transaction));
            owner.free(range, when).unwrap();
        }
        let mut committed = 0;
        let mut pending = |first: u32, second: u32| {
            stage.shown[0].transaction.store(first, Ordering::Relaxed);
            stage.shown[1].transaction.store(second, Ordering::Relaxed);
            stage.commit(&mut committed);
            allocator.pending_blocks()
        };
        assert_eq!((pending(1, 1), pending(4, 1), pending(4, 3)), (40, 40, 20));
        assert_eq!(pending(5, 5), 0);
    }
}

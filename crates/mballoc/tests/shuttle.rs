//! A random choice of the interleavings of a few threads: under the model
//! checker, which replaces the crate's locks and atomics (`sync.rs`).
//!
//! Each test is a small disk and two or three threads; in the end all blocks are owned or free, and
//! `check()` holds. A failure prints the schedule that repeats it.
//!
//!     cargo test -p extant-mballoc --features shuttle --test shuttle

#![cfg(feature = "shuttle")]

mod disk;

use std::num::NonZeroU32;
use std::ops::ControlFlow;

use extant_mballoc::{
    Allocator, Block, BlockRange, Free, FreedExtents, FullGroups, Geometry, GroupNumber, IndexKind,
    Options, Policy, Request, RequestFlags, Reservation, TransactionId,
};
use extant_space::ErrorKind;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, thread};

use disk::Disk;

const PER_GROUP: u64 = 8;
const T: TransactionId = TransactionId(1);

/// Runs the scenario under that many schedules of each kind.
fn explore(schedules: usize, scenario: fn(&Options)) {
    for options in [options(), old()] {
        let config = || {
            let mut config = Config::default();
            config.stack_size = 512 << 10;
            config
        };
        let of = |options: &Options| {
            let options = options.clone();
            move || scenario(&options)
        };
        Runner::new(RandomScheduler::new(schedules), config()).run(of(&options));
        Runner::new(PctScheduler::new(3, schedules), config()).run(of(&options));
    }
}

fn options() -> Options {
    Options {
        cpus: 2,
        reservation: Reservation::Windows {
            smallest: 2,
            largest: 6,
            growth: 1,
        },
        ..Options::default()
    }
}

/// The old parts that have locks of their own, but with windows.
fn old() -> Options {
    Options {
        reservation: options().reservation,
        cpus: 2,
        ..Options::before_scalability_patches()
    }
}

fn geometry(end: u64) -> Geometry {
    Geometry {
        first: Block(0),
        end: Block(end),
        blocks_per_group: PER_GROUP as u32,
    }
}

fn open(end: u64, options: &Options) -> (Allocator, Disk) {
    let disk = Disk::new(&geometry(end), |_| false);
    let allocator = Allocator::open(geometry(end), options.clone(), disk.clone()).unwrap();
    (allocator, disk)
}

fn blocks(ranges: &[BlockRange]) -> u64 {
    ranges.iter().map(|range| u64::from(range.count())).sum()
}

/// Up to `requests` results of up to `wanted` blocks.
fn take(allocator: &Allocator, number: u64, requests: usize, wanted: u32) -> Vec<BlockRange> {
    let owner = allocator.owner(number, 0);
    let mut taken: Vec<BlockRange> = Vec::new();
    for _ in 0..requests {
        let request = match taken.last() {
            Some(last) => Request::data(wanted).follow(last.end()),
            None => Request::data(wanted),
        };
        match owner.allocate(&request) {
            Ok(allocation) => taken.push(allocation.keep()),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace);
                break;
            }
        }
    }
    taken
}

/// All that was taken and all that is free is the whole disk, once.
fn settle(allocator: &Allocator, taken: &[BlockRange]) {
    assert_eq!(allocator.check(), Ok(()));
    assert!(
        allocator.corrupt_groups().is_empty(),
        "{:?}",
        allocator.corrupt_groups()
    );
    let mut all = taken.to_vec();
    allocator.release_windows();
    allocator.for_each_free(|run| {
        all.push(run);
        ControlFlow::Continue(())
    });
    all.sort_unstable();
    let mut end = Block(0);
    for range in &all {
        assert_eq!(range.start(), end, "{all:?}");
        end = range.end();
    }
    assert_eq!(end, allocator.geometry().end, "{all:?}");
    assert_eq!(allocator.free_blocks(), end.0 - blocks(taken));
    assert_eq!(allocator.check(), Ok(()));
}

#[test]
fn threads_that_fill_a_disk_get_all_of_it() {
    explore(150, |options| {
        let (allocator, _) = open(3 * PER_GROUP - 3, options);
        let taken: Vec<BlockRange> = thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|number| {
                    let allocator = &allocator;
                    scope.spawn(move || take(allocator, number, usize::MAX, 3))
                })
                .collect();
            threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap())
                .collect()
        });
        assert_eq!(blocks(&taken), 3 * PER_GROUP - 3);
        settle(&allocator, &taken);
    });
}

/// One group leaves a set of the index as another enters it: its word becomes empty and filled
/// again.
#[test]
fn index_is_consistent_after_concurrent_moves_of_groups() {
    explore(300, |options| {
        let (allocator, _) = open(2 * PER_GROUP, options);
        let exactly = |start, count| Request {
            flags: RequestFlags::NO_NORMALISE,
            ..Request::data(count).follow(Block(start))
        };
        let owners = [0, 1].map(|number| allocator.owner(number, 0));
        let runs = [0, PER_GROUP].map(|start| {
            let take = |start, count| owners[0].allocate(&exactly(start, count)).unwrap().keep();
            (take(start, 3), take(start + 3, 5))
        });
        let ours = runs.map(|(short, _)| short);
        owners[0].free(ours[0], Free::Now).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..3 {
                    let again = owners[0].allocate(&exactly(0, 3)).unwrap();
                    assert_eq!(again.range(), ours[0]);
                }
                owners[0].allocate(&exactly(0, 3)).unwrap().keep();
            });
            scope.spawn(|| {
                owners[1].free(ours[1], Free::Now).unwrap();
                for _ in 0..3 {
                    drop(owners[1].allocate(&exactly(PER_GROUP, 3)).unwrap());
                }
            });
        });
        settle(&allocator, &[ours[0], runs[0].1, runs[1].1]);
    });
}

#[test]
fn disk_that_grows_under_threads_is_filled_to_its_new_end() {
    explore(100, |options| {
        let (allocator, disk) = open(PER_GROUP + 3, options);
        let end = 4 * PER_GROUP - 2;
        let mut taken: Vec<BlockRange> = thread::scope(|scope| {
            let writers = [0, 1].map(|number| {
                let allocator = &allocator;
                scope.spawn(move || take(allocator, number, usize::MAX, 5))
            });
            disk.format(2..4, &geometry(end), |_| false);
            allocator.grow(Block(end)).unwrap();
            writers
                .into_iter()
                .flat_map(|writer| writer.join().unwrap())
                .collect()
        });
        taken.extend(take(&allocator, 2, usize::MAX, 5));
        assert_eq!(blocks(&taken), end);
        settle(&allocator, &taken);
    });
}

/// A search that began before a shrink meets groups that are cut off, and those initialised again
/// by a grow.
#[test]
fn disk_that_shrinks_and_grows_under_threads_stays_whole() {
    explore(100, |options| {
        let (allocator, disk) = open(3 * PER_GROUP, options);
        let taken: Vec<BlockRange> = thread::scope(|scope| {
            let writers = [0, 1].map(|number| {
                let allocator = &allocator;
                scope.spawn(move || take(allocator, number, 2, 4))
            });
            match allocator.shrink(Block(PER_GROUP + 4)) {
                Ok(()) => {
                    disk.format(2..4, &geometry(4 * PER_GROUP - 1), |_| false);
                    allocator.grow(Block(4 * PER_GROUP - 1)).unwrap();
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::InUse),
            }
            writers
                .into_iter()
                .flat_map(|writer| writer.join().unwrap())
                .collect()
        });
        settle(&allocator, &taken);
    });
}

#[test]
fn shrink_never_cuts_off_blocks_owned_by_a_thread() {
    explore(200, |options| {
        let (allocator, _) = open(2 * PER_GROUP, options);
        let taken: Vec<BlockRange> = thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let owner = allocator.owner(0, 0);
                let mut taken: Vec<BlockRange> = Vec::new();
                // The second from a possible window in the part that is cut off.
                for wanted in [2, 1] {
                    let goal = taken.last().map_or(Block(PER_GROUP + 2), |last| last.end());
                    let allocation = owner.allocate(&Request::data(wanted).follow(goal));
                    taken.extend(allocation.map(|allocation| allocation.keep()));
                }
                taken
            });
            let shrunk = allocator.shrink(Block(PER_GROUP + 1));
            let taken = writer.join().unwrap();
            let end = taken.iter().map(|range| range.end()).max();
            if shrunk.is_ok() {
                assert!(end <= Some(Block(PER_GROUP + 1)), "{taken:?}");
            }
            taken
        });
        settle(&allocator, &taken);
    });
}

#[test]
fn window_reclaimed_while_its_file_grows_has_one_owner() {
    explore(200, |options| {
        let (allocator, _) = open(2 * PER_GROUP, options);
        let taken: Vec<BlockRange> = thread::scope(|scope| {
            let grows = scope.spawn(|| take(&allocator, 0, 4, 1));
            let needs = scope.spawn(|| take(&allocator, 1, usize::MAX, 7));
            allocator.release_windows();
            let mut taken = grows.join().unwrap();
            taken.extend(needs.join().unwrap());
            taken
        });
        settle(&allocator, &taken);
    });
}

#[test]
fn owner_that_is_dropped_while_windows_are_taken_back_gives_them_once() {
    explore(200, |options| {
        let (allocator, _) = open(2 * PER_GROUP, options);
        let owner = allocator.owner(0, 0);
        let kept = owner.allocate(&Request::data(1)).unwrap().keep();
        thread::scope(|scope| {
            scope.spawn(move || drop(owner));
            scope.spawn(|| allocator.release_windows());
            // Read without a lock: a window on its way back may be counted twice, and no more
            // often.
            assert!(allocator.free_blocks() < 4 * PER_GROUP);
        });
        assert_eq!(allocator.free_blocks(), 2 * PER_GROUP - 1);
        settle(&allocator, &[kept]);
    });
}

#[test]
fn thread_that_fills_a_disk_gets_the_blocks_that_were_withheld() {
    explore(200, |options| {
        let (allocator, _) = open(2 * PER_GROUP, options);
        let taken = thread::scope(|scope| {
            let fills = scope.spawn(|| take(&allocator, 0, usize::MAX, 5));
            for group in [0, 1, 0] {
                let all = Block(0)..Block(2 * PER_GROUP);
                drop(allocator.take_for_discard(
                    GroupNumber(group),
                    all,
                    NonZeroU32::MIN,
                    usize::MAX,
                ));
            }
            fills.join().unwrap()
        });
        assert_eq!(blocks(&taken), 2 * PER_GROUP);
        settle(&allocator, &taken);
    });
}

#[test]
fn blocks_of_a_commit_are_free_once_and_not_before() {
    explore(200, |options| {
        let (allocator, _) = open(2 * PER_GROUP, options);
        let owner = allocator.owner(0, 0);
        let old = [0, PER_GROUP].map(|start| {
            let request = Request {
                flags: RequestFlags::NO_NORMALISE,
                ..Request::data(8).follow(Block(start))
            };
            owner.allocate(&request).unwrap().keep()
        });
        let (first, second) = old[0].split_at(Block(4));
        owner.free(first.unwrap(), Free::AfterCommit(T)).unwrap();
        let taken: Vec<BlockRange> = thread::scope(|scope| {
            // The next transaction frees the adjacent blocks while the first commits.
            let frees = scope.spawn(|| {
                for range in [second.unwrap(), old[1]] {
                    owner
                        .free(range, Free::AfterCommit(TransactionId(2)))
                        .unwrap();
                }
            });
            let takes = scope.spawn(|| take(&allocator, 1, 3, 3));
            let freed = allocator.committed(T);
            assert_eq!(freed.ranges(), [first.unwrap()]);
            assert!(
                allocator.free(first.unwrap(), Free::Now).is_err(),
                "a second time"
            );
            drop(freed);
            frees.join().unwrap();
            let taken = takes.join().unwrap();
            assert!(
                taken.iter().all(|range| range.end() <= Block(4)),
                "{taken:?}"
            );
            taken
        });
        assert_eq!(allocator.pending_blocks(), 12);
        drop(allocator.committed(TransactionId(2)));
        settle(&allocator, &taken);
    });
}

#[test]
fn blocks_of_the_running_transaction_are_reused_while_it_commits_others() {
    explore(150, |options| {
        let (allocator, _) = open(2 * PER_GROUP, options);
        let taken: Vec<BlockRange> = thread::scope(|scope| {
            let threads = [0, 1].map(|number| {
                let allocator = &allocator;
                scope.spawn(move || {
                    let owner = allocator.owner(number, 0);
                    let request = Request {
                        transaction: Some(T),
                        ..Request::data(3)
                    };
                    let range = owner.allocate(&request).unwrap().keep();
                    owner.free(range, Free::AfterCommit(T)).unwrap();
                    owner.allocate(&request).unwrap().keep()
                })
            });
            threads.map(|thread| thread.join().unwrap()).to_vec()
        });
        drop(allocator.committed(T));
        assert_eq!(allocator.pending_blocks(), 0);
        settle(&allocator, &taken);
    });
}

#[test]
fn policy_that_is_switched_under_threads_changes_where_and_not_what() {
    explore(150, |options| {
        let options = Options {
            full_groups: FullGroups::StayInIndex,
            index: IndexKind::Ordered,
            freed_extents: FreedExtents::MergeFirst,
            ..options.clone()
        };
        let (allocator, _) = open(3 * PER_GROUP, &options);
        let taken: Vec<BlockRange> = thread::scope(|scope| {
            let writers = [0, 1].map(|number| {
                let allocator = &allocator;
                scope.spawn(move || take(allocator, number, 4, 3))
            });
            allocator.set_policy(Policy::Linear);
            allocator.set_policy(Policy::Rotating);
            writers
                .into_iter()
                .flat_map(|writer| writer.join().unwrap())
                .collect()
        });
        settle(&allocator, &taken);
    });
}

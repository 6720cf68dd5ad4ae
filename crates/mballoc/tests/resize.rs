//! Growing and shrinking, alone and while others allocate.

#![cfg(not(feature = "shuttle"))]

mod claims;
mod disk;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use extant_mballoc::{
    Allocator, Block, BlockRange, Free, Geometry, Options, Owner, Policy, Request, RequestFlags,
    StreamGoals, TransactionId,
};
use extant_space::ErrorKind;

use claims::Claims;
use disk::Disk;

const PER_GROUP: u64 = 64;

fn geometry(end: u64) -> Geometry {
    Geometry {
        first: Block(0),
        end: Block(end),
        blocks_per_group: PER_GROUP as u32,
    }
}

/// An allocator of `end` blocks on a disk that has bitmaps for `end_max`.
fn open(end: u64, end_max: u64, options: Options) -> Allocator {
    let disk = Disk::new(&geometry(end), |_| false);
    disk.format(
        geometry(end).groups()..geometry(end_max).groups(),
        &geometry(end_max),
        |_| false,
    );
    Allocator::open(geometry(end), options, disk).unwrap()
}

fn take(owner: &Owner, start: u64, count: u32) -> BlockRange {
    let request = Request {
        flags: RequestFlags::NO_NORMALISE,
        minimum: count,
        ..Request::data(count).follow(Block(start))
    };
    let range = owner.allocate(&request).unwrap().keep();
    assert_eq!(range.start(), Block(start));
    range
}

fn free_runs(allocator: &Allocator) -> Vec<BlockRange> {
    let mut runs = Vec::new();
    allocator.for_each_free(|run| {
        runs.push(run);
        ControlFlow::Continue(())
    });
    runs
}

#[test]
fn grown_disk_has_the_rest_of_its_last_group_and_the_new_ones() {
    for end in [101, 128, 129, 200, 64 * 70, 64 * 5000] {
        let allocator = open(100, end, Options::default());
        allocator.grow(Block(end)).unwrap();
        assert_eq!(
            (allocator.geometry(), allocator.free_blocks()),
            (geometry(end), end)
        );
        assert_eq!(allocator.check(), Ok(()));
        let owner = allocator.owner(1, 0);
        take(&owner, end - 1, 1);
        assert_eq!(
            free_runs(&allocator),
            [BlockRange::new(Block(0), end as u32 - 1)]
        );
        assert_eq!(allocator.check(), Ok(()));
    }
}

#[test]
fn disk_that_grows_in_steps_keeps_blocks_in_use() {
    let disk = Disk::new(&geometry(100), |_| false);
    let allocator = Allocator::open(geometry(100), Options::default(), disk.clone()).unwrap();
    let owner = allocator.owner(1, 0);
    // In the last group, into the next, to the end of a group; there the last was never looked
    // into.
    for (end, used) in [
        (110, 109),
        (190, 150),
        (192, 191),
        (193, 192),
        (300, 299),
        (301, 10),
    ] {
        let before = allocator.geometry().groups();
        disk.format(before..geometry(end).groups(), &geometry(end), |_| false);
        allocator.grow(Block(end)).unwrap();
        take(&owner, used, 1);
        assert_eq!(allocator.check(), Ok(()));
    }
    let used = [10, 109, 150, 191, 192, 299];
    let mut free: Vec<bool> = vec![true; 301];
    used.iter().for_each(|&at| free[at] = false);
    for run in free_runs(&allocator) {
        free[run.start().0 as usize..run.end().0 as usize].fill(false);
    }
    assert!(!free.contains(&true));
    assert_eq!(allocator.free_blocks(), 301 - used.len() as u64);
}

#[test]
fn shrink_is_refused_with_the_first_block_in_use() {
    let allocator = open(640, 640, Options::default());
    let owner = allocator.owner(1, 0);
    let range = take(&owner, 300, 10);
    let error = allocator.shrink(Block(200)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert_eq!(error.to_string(), "shrink: block 300 is in use");
    owner
        .free(range, Free::AfterCommit(TransactionId(1)))
        .unwrap();
    let error = allocator.shrink(Block(309)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "shrink: block 309 is in use until a commit"
    );
    assert_eq!(
        (allocator.geometry(), allocator.free_blocks()),
        (geometry(640), 630)
    );
    assert_eq!(allocator.check(), Ok(()));
    // Nothing stays closed.
    owner.free(take(&owner, 639, 1), Free::Now).unwrap();
    let freed = allocator.committed(TransactionId(1));
    assert!(
        allocator.shrink(Block(309)).is_err(),
        "before they are discarded"
    );
    drop(freed);
    allocator.shrink(Block(200)).unwrap();
    assert_eq!(free_runs(&allocator), [BlockRange::new(Block(0), 200)]);
    assert_eq!(allocator.check(), Ok(()));
}

#[test]
fn shrink_takes_windows_back() {
    let allocator = open(640, 640, Options::default());
    let owner = allocator.owner(1, 0);
    let range = owner
        .allocate(&Request::data(1).follow(Block(600)))
        .unwrap();
    assert_ne!(owner.windows(), []);
    allocator.shrink(Block(601)).unwrap();
    assert_eq!(owner.windows(), []);
    assert!(allocator.shrink(Block(600)).is_err(), "{range:?}");
}

#[test]
fn end_that_is_none_is_an_invalid_argument() {
    let allocator = open(640, 640, Options::default());
    for resized in [
        allocator.grow(Block(640)),
        allocator.grow(Block(10)),
        allocator.grow(Block(u64::MAX)),
        allocator.shrink(Block(640)),
        allocator.shrink(Block(700)),
        allocator.shrink(Block(0)),
    ] {
        assert_eq!(resized.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    assert_eq!(allocator.geometry(), geometry(640));
    assert_eq!(allocator.check(), Ok(()));
}

#[test]
fn disk_that_shrank_and_grew_again_rereads_its_bitmaps() {
    for options in [Options::default(), Options::before_scalability_patches()] {
        let disk = Disk::new(&geometry(640), |_| false);
        let allocator = Allocator::open(geometry(640), options, disk.clone()).unwrap();
        allocator.shrink(Block(250)).unwrap();
        disk.format(4..10, &geometry(640), |block| block.0 == 500);
        allocator.grow(Block(640)).unwrap();
        assert_eq!(allocator.free_blocks(), 639);
        assert_eq!(allocator.check(), Ok(()));
        let runs = [
            BlockRange::new(Block(0), 500),
            BlockRange::new(Block(501), 139),
        ];
        assert_eq!(free_runs(&allocator), runs);
        assert_eq!(allocator.check(), Ok(()));
    }
}

/// The stored goal of a stream was past the end, in a bug of the kernel that was found after the
/// scalability patches.
#[test]
fn stored_goals_are_good_after_a_shrink() {
    let options = Options {
        stream_goals: StreamGoals::PerCpu,
        policy: Policy::Rotating,
        cpus: 2,
        ..Options::after_scalability_patches()
    };
    let allocator = open(640, 640, options);
    let owners = [0, 1].map(|number| allocator.owner(number, 0));
    let ranges = owners.each_ref().map(|owner| {
        let request = Request::data(60);
        let near = Request {
            goal: extant_mballoc::Goal::Near(Block(9 * PER_GROUP)),
            ..request.clone()
        };
        let first = owner.allocate(&near).map(|first| first.keep()).unwrap();
        [first, owner.allocate(&request).unwrap().keep()]
    });
    for (owner, ranges) in owners.iter().zip(ranges) {
        for range in ranges {
            owner.free(range, Free::Now).unwrap();
        }
    }
    allocator.shrink(Block(100)).unwrap();
    for policy in [Policy::Rotating, Policy::Optimised, Policy::Linear] {
        allocator.set_policy(policy);
        for owner in &owners {
            let range = owner.allocate(&Request::data(20)).unwrap().keep();
            assert!(range.end() <= Block(100), "{range}");
            assert_eq!(range.count(), 20);
            owner.free(range, Free::Now).unwrap();
        }
    }
    assert_eq!(allocator.check(), Ok(()));
}

/// Allocates and frees until `done`; a result is never beyond the size of the disk at the request
/// or now.
fn churn(allocator: &Allocator, claims: &Claims, done: &AtomicBool, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let owner = allocator.owner(seed, 0);
    let mut mine: Vec<BlockRange> = Vec::new();
    while !done.load(Ordering::Relaxed) {
        let goal = Block(random.u64(0..3000));
        let request = match random.u8(0..3) {
            0 => Request::data(random.u32(1..100)),
            1 => Request::data(random.u32(1..10)).follow(goal),
            _ => match mine.last() {
                Some(last) => Request::data(3).follow(last.end()),
                None => Request::data(3),
            },
        };
        match owner.allocate(&request) {
            Ok(allocation) => {
                claims.take(allocation.range());
                // Blocks in use cannot be cut off.
                assert!(allocation.range().end() <= allocator.geometry().end);
                mine.push(allocation.keep());
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::NoSpace),
        }
        while mine.len() > 6 {
            let range = mine.swap_remove(random.usize(..mine.len()));
            claims.give(range);
            let when = if random.bool() {
                Free::Now
            } else {
                Free::AfterCommit(TransactionId(1))
            };
            owner.free(range, when).unwrap();
        }
    }
    for range in mine {
        claims.give(range);
        owner.free(range, Free::Now).unwrap();
    }
}

#[test]
fn disk_that_is_resized_while_threads_allocate_loses_nothing() {
    const SMALL: u64 = 5 * PER_GROUP + 10;
    const LARGE: u64 = 40 * PER_GROUP + 30;
    for options in [Options::default(), Options::before_scalability_patches()] {
        let allocator = open(SMALL, LARGE, Options { cpus: 2, ..options });
        let claims = Claims::new(Block(LARGE));
        let done = AtomicBool::new(false);
        let mut shrunk = 0;
        thread::scope(|scope| {
            for seed in 0..3 {
                let (allocator, claims, done) = (&allocator, &claims, &done);
                scope.spawn(move || churn(allocator, claims, done, seed));
            }
            let _stop = Stop(&done);
            let mut random = fastrand::Rng::with_seed(9);
            for round in 0..10_000 {
                // The threads decide when a shrink finds its blocks free.
                if round >= 100 && shrunk > 0 {
                    break;
                }
                let end = allocator.geometry().end.0;
                let to = if end < LARGE {
                    LARGE
                } else if random.bool() {
                    // Often near the end, where the removed blocks are likely to be free.
                    random.u64(end - PER_GROUP..end)
                } else {
                    random.u64(SMALL..end)
                };
                if to > end {
                    allocator.grow(Block(to)).unwrap();
                } else {
                    match allocator.shrink(Block(to)) {
                        Ok(()) => shrunk += 1,
                        Err(error) => assert_eq!(error.kind(), ErrorKind::InUse),
                    }
                }
                drop(allocator.committed(TransactionId(1)));
                assert!(
                    allocator.corrupt_groups().is_empty(),
                    "{:?}",
                    allocator.corrupt_groups()
                );
                thread::yield_now();
            }
        });
        assert!(shrunk > 0, "not one shrink found its blocks free");
        drop(allocator.committed(TransactionId(1)));
        assert_eq!(allocator.check(), Ok(()));
        let end = allocator.geometry().end;
        assert_eq!(
            free_runs(&allocator),
            [BlockRange::new(Block(0), end.0 as u32)]
        );
    }
}

/// Ends the threads when it goes, also by a failed assertion: a waiter for them would wait without
/// end.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

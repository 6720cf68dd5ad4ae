//! Freeing: now, after a commit, inside a transaction; and blocks that cannot be freed.

#![cfg(not(feature = "shuttle"))]

mod disk;

use std::ops::ControlFlow;

use extant_mballoc::{
    Allocator, Block, BlockRange, Free, FreedExtents, Geometry, Options, Owner, Request,
    RequestFlags, Reservation, Reuse, SharedState, TransactionId,
};
use extant_space::{ErrorKind, Result};

use disk::Disk;

const PER_GROUP: u64 = 1000;
const FIRST: TransactionId = TransactionId(7);
const SECOND: TransactionId = TransactionId(8);

fn open(groups: u64, options: Options) -> Allocator {
    let geometry = Geometry {
        first: Block(0),
        end: Block(groups * PER_GROUP),
        blocks_per_group: PER_GROUP as u32,
    };
    Allocator::open(geometry, options, Disk::new(&geometry, |_| false)).unwrap()
}

/// Blocks from `start` on, without a window behind them.
fn take(owner: &Owner, start: u64, count: u32, transaction: Option<TransactionId>) -> BlockRange {
    let request = Request {
        transaction,
        minimum: count,
        flags: RequestFlags::NO_NORMALISE,
        ..Request::data(count).follow(Block(start))
    };
    let range = owner.allocate(&request).unwrap().keep();
    assert_eq!(range, blocks(start, count));
    range
}

fn blocks(start: u64, count: u32) -> BlockRange {
    BlockRange::new(Block(start), count)
}

fn free_runs(allocator: &Allocator) -> Vec<BlockRange> {
    let mut runs = Vec::new();
    allocator.for_each_free(|run| {
        runs.push(run);
        ControlFlow::Continue(())
    });
    runs
}

fn refused(freed: Result<()>, kind: ErrorKind, text: &str) {
    let error = freed.unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (kind, text));
}

#[test]
fn freed_blocks_are_free_once_committed_and_discarded() {
    let allocator = open(1, Options::default());
    let owner = allocator.owner(1, 0);
    let range = take(&owner, 0, 1000, None);
    owner.free(range, Free::AfterCommit(FIRST)).unwrap();
    let is_full = || {
        owner
            .allocate(&Request::data(1))
            .map(|_| ())
            .unwrap_err()
            .to_string()
    };
    let waiting = "allocate: no free block, 1000 more after a commit";
    assert_eq!(
        (is_full().as_str(), allocator.pending_blocks()),
        (waiting, 1000)
    );
    assert_eq!(allocator.committed(SECOND).ranges(), []);
    assert_eq!(is_full(), waiting);
    let freed = allocator.committed(FIRST);
    assert_eq!(freed.ranges(), [range]);
    assert_eq!(
        (is_full().as_str(), allocator.pending_blocks()),
        (waiting, 1000)
    );
    assert_eq!(allocator.check(), Ok(()));
    drop(freed);
    assert_eq!(
        (allocator.pending_blocks(), allocator.free_blocks()),
        (0, 1000)
    );
    assert_eq!(take(&owner, 0, 1000, None), range);
}

#[test]
fn freed_extents_of_a_transaction_are_merged_and_of_two_are_not() {
    for freed_extents in [FreedExtents::MergeFirst, FreedExtents::InsertFirst] {
        for shared_state in [SharedState::Atomics, SharedState::GlobalLock] {
            let options = Options {
                freed_extents,
                shared_state,
                ..Options::default()
            };
            let allocator = open(2, options);
            let owner = allocator.owner(1, 0);
            take(&owner, 0, 1000, None);
            take(&owner, 1000, 1000, None);
            let free = |start, count, transaction| {
                owner
                    .free(blocks(start, count), Free::AfterCommit(transaction))
                    .unwrap();
            };
            free(100, 10, FIRST);
            free(120, 10, FIRST);
            free(130, 5, SECOND);
            free(110, 10, FIRST);
            // Over the border of two groups.
            free(990, 20, FIRST);
            assert_eq!(allocator.pending_blocks(), 55);
            let first = allocator.committed(FIRST);
            assert_eq!(
                first.ranges(),
                [blocks(100, 30), blocks(990, 10), blocks(1000, 10)]
            );
            assert_eq!(allocator.committed(SECOND).ranges(), [blocks(130, 5)]);
            drop(first);
            assert_eq!(free_runs(&allocator), [blocks(100, 35), blocks(990, 20)]);
            assert_eq!(allocator.check(), Ok(()));
        }
    }
}

#[test]
fn blocks_of_the_running_transaction_are_free_at_once() {
    let allocator = open(1, Options::default());
    let owner = allocator.owner(1, 0);
    take(&owner, 0, 100, Some(FIRST));
    take(&owner, 100, 50, Some(SECOND));
    // Of the transaction before, then of the running one, half and half, then the rest.
    owner
        .free(blocks(0, 10), Free::AfterCommit(SECOND))
        .unwrap();
    assert_eq!(allocator.pending_blocks(), 10);
    owner
        .free(blocks(90, 20), Free::AfterCommit(SECOND))
        .unwrap();
    assert_eq!(allocator.pending_blocks(), 20);
    owner
        .free(blocks(110, 40), Free::AfterCommit(SECOND))
        .unwrap();
    assert_eq!(
        (allocator.pending_blocks(), allocator.free_blocks()),
        (20, 900)
    );
    let statistics = allocator.statistics();
    assert_eq!(
        (statistics.reused_blocks, statistics.freed_blocks),
        (50, 70)
    );
    assert_eq!(
        allocator.committed(SECOND).ranges(),
        [blocks(0, 10), blocks(90, 10)]
    );
}

#[test]
fn reuse_that_is_switched_off_waits_for_the_commit() {
    let options = Options {
        reuse: Reuse::AfterCommit,
        ..Options::default()
    };
    let allocator = open(1, options);
    let owner = allocator.owner(1, 0);
    let range = take(&owner, 0, 100, Some(FIRST));
    owner.free(range, Free::AfterCommit(FIRST)).unwrap();
    assert_eq!(
        (allocator.pending_blocks(), allocator.free_blocks()),
        (100, 900)
    );
}

#[test]
fn blocks_freed_after_the_owner_is_gone_wait_for_the_commit() {
    let allocator = open(1, Options::default());
    let range = take(&allocator.owner(1, 0), 0, 100, Some(FIRST));
    allocator.free(range, Free::AfterCommit(FIRST)).unwrap();
    assert_eq!(allocator.pending_blocks(), 100);
    assert_eq!(allocator.statistics().freed_blocks, 100);
    allocator.free(range, Free::Now).unwrap_err();
    drop(allocator.committed(FIRST));
    assert_eq!(allocator.free_blocks(), 1000);
}

#[test]
fn free_of_unused_blocks_is_refused_without_effect() {
    let allocator = open(2, Options::default());
    let owner = allocator.owner(1, 0);
    take(&owner, 0, 500, None);
    owner
        .free(blocks(10, 10), Free::AfterCommit(FIRST))
        .unwrap();
    owner
        .free(blocks(30, 10), Free::AfterCommit(SECOND))
        .unwrap();
    let freed = allocator.committed(SECOND);
    let advice = "; check the file system";
    for when in [
        Free::Now,
        Free::AfterCommit(FIRST),
        Free::AfterCommit(TransactionId(9)),
    ] {
        for (range, text) in [
            (blocks(500, 1), "free: block 500: free already"),
            (blocks(490, 20), "free: blocks 490 to 509: free already"),
            (
                blocks(19, 2),
                "free: blocks 19 to 20: freed already, until a commit",
            ),
            (
                blocks(39, 2),
                "free: blocks 39 to 40: freed already, until a commit",
            ),
        ] {
            let text = format!("{text}{advice}");
            refused(owner.free(range, when), ErrorKind::Corrupt, &text);
            refused(allocator.free(range, when), ErrorKind::Corrupt, &text);
        }
        let outside = "free: blocks 2000 to 2001 outside the file system, 0 to 2000";
        refused(
            owner.free(blocks(2000, 2), when),
            ErrorKind::InvalidArgument,
            outside,
        );
        refused(
            allocator.free(blocks(2000, 2), when),
            ErrorKind::InvalidArgument,
            outside,
        );
        assert_eq!(allocator.check(), Ok(()));
    }
    assert_eq!(
        (allocator.pending_blocks(), allocator.free_blocks()),
        (20, 1500)
    );
    assert_eq!(allocator.statistics().freed_blocks, 20);
    drop(freed);
    drop(allocator.committed(FIRST));
    assert_eq!(
        free_runs(&allocator),
        [blocks(10, 10), blocks(30, 10), blocks(500, 1500)]
    );
}

/// A run adjacent to a window is joined to it when it is freed: also there it has to be in use.
#[test]
fn blocks_in_or_beside_a_window_cannot_be_freed_twice() {
    let windows = Reservation::Windows {
        smallest: 16,
        largest: 64,
        growth: 1,
    };
    let options = Options {
        reservation: windows,
        ..Options::default()
    };
    let allocator = open(1, options);
    let owner = allocator.owner(1, 0);
    let last = owner
        .allocate(&Request::data(1).follow(Block(983)))
        .unwrap()
        .keep();
    assert_eq!(owner.windows(), [blocks(984, 16)]);
    for when in [Free::Now, Free::AfterCommit(FIRST)] {
        for (range, text) in [
            (
                blocks(990, 2),
                "free: blocks 990 to 991: free already, kept for this file with blocks 984 to 999; \
                 check the file system",
            ),
            (
                blocks(982, 2),
                "free: blocks 982 to 983: free already; check the file system",
            ),
        ] {
            refused(owner.free(range, when), ErrorKind::Corrupt, text);
        }
        let outside = "free: blocks 1000 to 1004 outside the file system, 0 to 1000";
        refused(
            owner.free(blocks(1000, 5), when),
            ErrorKind::InvalidArgument,
            outside,
        );
    }
    assert_eq!(owner.windows(), [blocks(984, 16)]);
    owner.free(last, Free::Now).unwrap();
    assert_eq!(owner.windows(), [blocks(983, 17)]);
    owner.free(last, Free::Now).unwrap_err();
    assert_eq!(allocator.check(), Ok(()));
    assert_eq!(allocator.free_blocks(), 1000);
}

#[test]
fn error_in_the_second_group_leaves_the_first_part_free() {
    let allocator = open(2, Options::default());
    let owner = allocator.owner(1, 0);
    take(&owner, 0, 1000, None);
    let over = blocks(900, 200);
    let text = "free: blocks 1000 to 1099: free already; check the file system";
    refused(owner.free(over, Free::Now), ErrorKind::Corrupt, text);
    assert_eq!(free_runs(&allocator), [blocks(900, 1100)]);
}

#[test]
fn disk_is_allocated_to_the_last_block_and_freed() {
    for options in [
        Options::default(),
        Options::after_scalability_patches(),
        Options::before_scalability_patches(),
    ] {
        let allocator = open(7, options);
        let owners: Vec<_> = (0..5).map(|number| allocator.owner(number, 0)).collect();
        let mut random = fastrand::Rng::with_seed(1);
        let mut taken = vec![false; 7000];
        let mut ranges = Vec::new();
        let error = loop {
            let owner = &owners[random.usize(..owners.len())];
            match owner.allocate(&Request::data(random.u32(1..=90))) {
                Ok(allocation) => ranges.push(allocation.keep()),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        for range in &ranges {
            for block in range.start().0..range.end().0 {
                assert!(
                    !std::mem::replace(&mut taken[block as usize], true),
                    "{block} twice"
                );
            }
        }
        assert!(!taken.contains(&false));
        assert_eq!((allocator.free_blocks(), allocator.check()), (0, Ok(())));
        random.shuffle(&mut ranges);
        for range in ranges {
            owners[0].free(range, Free::AfterCommit(FIRST)).unwrap();
        }
        drop(allocator.committed(FIRST));
        assert_eq!(allocator.check(), Ok(()));
        assert_eq!(free_runs(&allocator), [blocks(0, 7000)]);
    }
}

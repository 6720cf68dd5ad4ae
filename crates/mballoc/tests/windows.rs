//! Windows: blocks kept for files that grow.

#![cfg(not(feature = "shuttle"))]

mod disk;

use std::ops::ControlFlow;

use extant_mballoc::{
    Alignment, Allocator, Block, BlockRange, Free, Geometry, Goal, Options, Owner, Request,
    RequestFlags, Reservation, StreamGoals, Windows,
};
use extant_space::ErrorKind;

use disk::Disk;

const PER_GROUP: u64 = 1024;

fn open(groups: u64, reservation: Reservation, is_used: impl Fn(u64) -> bool) -> Allocator {
    let geometry = Geometry {
        first: Block(0),
        end: Block(groups * PER_GROUP),
        blocks_per_group: PER_GROUP as u32,
    };
    let options = Options {
        reservation,
        cpus: 1,
        ..Options::default()
    };
    let disk = Disk::new(&geometry, |block| is_used(block.0));
    Allocator::open(geometry, options, disk).unwrap()
}

const WINDOWS: Reservation = Reservation::Windows {
    smallest: 16,
    largest: 256,
    growth: 2,
};

fn take(owner: &Owner, request: &Request) -> BlockRange {
    owner.allocate(request).unwrap().keep()
}

/// Allocates one block after the other, each at the end of the file; the runs they are in.
fn append(owner: &Owner, runs: &mut Vec<BlockRange>) {
    let next = match runs.last() {
        Some(last) => Request::data(1).follow(last.end()),
        None => Request::data(1),
    };
    let block = take(owner, &next);
    match runs.last_mut() {
        Some(last) if last.end() == block.start() => {
            *last = BlockRange::new(last.start(), last.count() + 1);
        }
        _ => runs.push(block),
    }
}

fn kept(owner: &Owner) -> u64 {
    owner
        .windows()
        .iter()
        .map(|window| u64::from(window.count()))
        .sum()
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
fn file_that_grows_is_answered_from_its_window() {
    let allocator = open(4, WINDOWS, |_| false);
    let owner = allocator.owner(1, 0);
    let mut runs = Vec::new();
    (0..17).for_each(|_| append(&owner, &mut runs));
    assert_eq!(runs.len(), 1);
    assert_eq!(allocator.statistics().window_hits, 16);
    assert_eq!(allocator.free_blocks(), 4 * PER_GROUP - 17);
}

#[test]
fn windows_are_freed_when_they_are_switched_off_and_none_is_opened_until_on() {
    let allocator = open(4, WINDOWS, |_| false);
    let owner = allocator.owner(1, 0);
    let mut runs = Vec::new();
    append(&owner, &mut runs);
    let opened = kept(&owner);
    assert!(opened > 0);
    allocator.set_windows(Windows::Closed);
    assert_eq!((allocator.windows(), kept(&owner)), (Windows::Closed, 0));
    let released = allocator.statistics().window_blocks_released;
    assert_eq!(released, opened);
    (0..5).for_each(|_| append(&owner, &mut runs));
    let all = allocator.statistics();
    assert_eq!((kept(&owner), all.window_hits), (0, 0));
    assert_eq!(all.window_blocks_added, opened);
    allocator.set_windows(Windows::Open);
    append(&owner, &mut runs);
    assert!(kept(&owner) > 0);
    assert_eq!(allocator.check(), Ok(()));
}

#[test]
fn window_grows_with_its_file_up_to_the_largest() {
    let allocator = open(8, WINDOWS, |_| false);
    let owner = allocator.owner(1, 0);
    let mut runs = Vec::new();
    let mut windows = Vec::new();
    let mut left = 0;
    for _ in 0..600 {
        append(&owner, &mut runs);
        if kept(&owner) > left {
            windows.push(kept(&owner));
        }
        left = kept(&owner);
    }
    assert!(windows.is_sorted(), "{windows:?}");
    assert!((16..32).contains(&windows[0]), "{windows:?}");
    // Half a group is the longest that the first request, rounded up, may get.
    assert!(windows.contains(&256), "{windows:?}");
    assert_eq!(runs.len(), 1);
}

#[test]
fn file_that_is_opened_large_has_a_large_window_at_once() {
    let allocator = open(8, WINDOWS, |_| false);
    let [small, large] = [0, 100].map(|blocks| {
        let owner = allocator.owner(1, blocks);
        take(&owner, &Request::data(1).follow(Block(500)));
        kept(&owner)
    });
    assert_eq!((small, large), (16, 200));
}

#[test]
fn concurrent_writers_get_long_extents() {
    let extents = |reservation| {
        let geometry = Geometry {
            first: Block(0),
            end: Block(8 * PER_GROUP),
            blocks_per_group: PER_GROUP as u32,
        };
        let options = Options {
            reservation,
            stream_goals: StreamGoals::One,
            ..Options::default()
        };
        let disk = Disk::new(&geometry, |_| false);
        let allocator = Allocator::open(geometry, options, disk).unwrap();
        let owners: Vec<_> = (0..8).map(|number| allocator.owner(number, 0)).collect();
        let mut files = vec![Vec::new(); 8];
        for _ in 0..400 {
            for (owner, file) in owners.iter().zip(&mut files) {
                append(owner, file);
            }
        }
        files.iter().map(Vec::len).max().unwrap()
    };
    assert!(extents(WINDOWS) <= 8, "{}", extents(WINDOWS));
    assert!(extents(Reservation::None) >= 100);
}

#[test]
fn windows_are_freed_with_their_owner_and_on_request() {
    let allocator = open(2, WINDOWS, |_| false);
    let everything = BlockRange::new(Block(0), 2 * PER_GROUP as u32);
    let owner = allocator.owner(1, 0);
    drop(owner.allocate(&Request::data(5)).unwrap());
    assert!(kept(&owner) > 16);
    assert_eq!(allocator.free_blocks(), 2 * PER_GROUP);
    assert_ne!(free_runs(&allocator), [everything]);
    owner.release_windows();
    assert_eq!(free_runs(&allocator), [everything]);
    drop(owner.allocate(&Request::data(5)).unwrap());
    let blocks = kept(&owner);
    assert_eq!(allocator.release_windows(), blocks);
    assert_eq!(free_runs(&allocator), [everything]);
    drop(owner.allocate(&Request::data(5)).unwrap());
    drop(owner);
    assert_eq!(free_runs(&allocator), [everything]);
    assert_eq!(allocator.check(), Ok(()));
}

#[test]
fn windows_are_taken_back_when_others_need_the_space() {
    let allocator = open(1, WINDOWS, |_| false);
    let [sleeping, writing] = [1, 2].map(|number| allocator.owner(number, 0));
    let first = take(&sleeping, &Request::data(1));
    let window = kept(&sleeping);
    assert!(window > 0);
    let mut runs = Vec::new();
    for _ in 0..PER_GROUP - 1 {
        append(&writing, &mut runs);
    }
    assert_eq!((kept(&sleeping), allocator.free_blocks()), (0, 0));
    // The writer's own window, if it had one then, counts too.
    assert!(allocator.statistics().windows_reclaimed >= 1);
    let error = sleeping
        .allocate(&Request::data(1).follow(first.end()))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
}

#[test]
fn window_takes_half_of_the_free_space_at_most_and_the_less_the_more_there_are() {
    let long = Reservation::Windows {
        smallest: 1024,
        largest: 1024,
        growth: 1,
    };
    let allocator = open(2, long, |_| false);
    let owners: Vec<_> = (0..10).map(|number| allocator.owner(number, 0)).collect();
    let windows: Vec<u64> = (owners.iter())
        .map(|owner| {
            take(owner, &Request::data(1).follow(Block(0)));
            kept(owner)
        })
        .collect();
    assert!(
        (PER_GROUP / 2..=PER_GROUP).contains(&windows[0]),
        "{windows:?}"
    );
    assert!(windows.iter().rev().is_sorted(), "{windows:?}");
    assert!(
        windows.iter().sum::<u64>() < 2 * PER_GROUP * 9 / 10,
        "{windows:?}"
    );
}

#[test]
fn metadata_and_aligned_and_exact_requests_leave_no_window() {
    let allocator = open(2, WINDOWS, |_| false);
    let flagged = |flags| Request {
        flags,
        ..Request::data(3)
    };
    let aligned = Request {
        alignment: Alignment::Preferred(4),
        ..Request::data(3)
    };
    for request in [
        flagged(RequestFlags::METADATA),
        flagged(RequestFlags::NO_NORMALISE),
        aligned,
    ] {
        let owner = allocator.owner(1, 100);
        assert_eq!(take(&owner, &request).count(), 3);
        assert_eq!(owner.windows(), [], "{request:?}");
    }
}

#[test]
fn metadata_is_not_taken_from_a_window() {
    let allocator = open(2, WINDOWS, |_| false);
    let owner = allocator.owner(1, 0);
    let end = take(&owner, &Request::data(1)).end();
    let windows = owner.windows();
    let metadata = Request {
        flags: RequestFlags::METADATA,
        ..Request::data(1).follow(end)
    };
    take(&owner, &metadata);
    assert_eq!(owner.windows(), windows);
}

#[test]
fn blocks_written_in_any_order_lie_in_the_order_of_their_goals() {
    let allocator = open(2, WINDOWS, |_| false);
    let owner = allocator.owner(1, 100);
    let first = take(&owner, &Request::data(1).follow(Block(300)));
    for at in [150, 20, 21, 90, 1, 19, 199] {
        let goal = Block(first.start().0 + at);
        let near = Request {
            goal: Goal::Near(goal),
            ..Request::data(1)
        };
        assert_eq!(take(&owner, &near), BlockRange::new(goal, 1));
        assert_eq!(allocator.check(), Ok(()));
    }
    assert_eq!(kept(&owner), 200 - 7);
}

#[test]
fn windows_of_a_file_that_grows_in_many_places_stay_few() {
    let allocator = open(8, WINDOWS, |_| false);
    let owner = allocator.owner(1, 100);
    for place in 0..24 {
        let first = take(&owner, &Request::data(1).follow(Block(place * 300)));
        // Splits the window.
        take(&owner, &Request::data(1).follow(Block(first.end().0 + 9)));
    }
    assert!(owner.windows().len() <= 9, "{:?}", owner.windows());
    assert_eq!(allocator.check(), Ok(()));
}

#[test]
fn rest_of_a_window_is_taken_first_though_there_is_nothing_behind_it() {
    // Eighteen blocks, then one that is in use, then few others.
    let allocator = open(1, WINDOWS, |block| block >= 100 || block == 18);
    let owner = allocator.owner(1, 0);
    take(&owner, &Request::data(1).follow(Block(0)));
    let other = allocator.owner(2, 0);
    let exactly = Request {
        flags: RequestFlags::NO_NORMALISE,
        ..Request::data(81)
    };
    take(&other, &exactly);
    assert_eq!(owner.windows(), [BlockRange::new(Block(1), 16)]);
    let next = take(&owner, &Request::data(30).follow(Block(1)));
    assert_eq!(next, BlockRange::new(Block(1), 17));
}

#[test]
fn dropped_result_is_returned_to_its_window() {
    let allocator = open(2, WINDOWS, |_| false);
    let owner = allocator.owner(1, 0);
    let first = take(&owner, &Request::data(1));
    let windows = owner.windows();
    let next = owner
        .allocate(&Request::data(4).follow(first.end()))
        .unwrap();
    assert_ne!(owner.windows(), windows);
    drop(next);
    assert_eq!(owner.windows(), windows);
    assert_eq!(allocator.check(), Ok(()));
}

#[test]
fn window_at_the_end_of_a_group_does_not_reach_into_the_next() {
    let allocator = open(2, WINDOWS, |_| false);
    let owner = allocator.owner(1, 0);
    take(&owner, &Request::data(1).follow(Block(PER_GROUP - 10)));
    let rest = take(&owner, &Request::data(20).follow(Block(PER_GROUP - 9)));
    assert_eq!(rest, BlockRange::new(Block(PER_GROUP - 9), 9));
    // The file continues in the next group all the same.
    let next = take(&owner, &Request::data(20).follow(rest.end()));
    assert_eq!(next, BlockRange::new(rest.end(), 20));
}

#[test]
fn freed_blocks_are_not_joined_to_a_window_of_the_next_group() {
    let allocator = open(2, WINDOWS, |_| false);
    let owner = allocator.owner(1, 0);
    let last = take(&owner, &Request::data(1).follow(Block(PER_GROUP - 1)));
    let first = take(&owner, &Request::data(1).follow(last.end()));
    let [window] = owner.windows().try_into().unwrap();
    owner.free(first, Free::Now).unwrap();
    owner.free(last, Free::Now).unwrap();
    assert_eq!(
        owner.windows(),
        [BlockRange::between(first.start(), window.end()).unwrap()]
    );
    assert_eq!(allocator.check(), Ok(()));
}

#[test]
fn window_past_a_limit_does_not_answer() {
    let allocator = open(2, WINDOWS, |_| false);
    let owner = allocator.owner(1, 0);
    let first = take(&owner, &Request::data(1).follow(Block(700)));
    let limited = Request {
        limit: Some(Block(702)),
        ..Request::data(4).follow(first.end())
    };
    assert_eq!(take(&owner, &limited), BlockRange::new(Block(701), 1));
    let elsewhere = take(
        &owner,
        &Request {
            minimum: 4,
            ..limited
        },
    );
    assert!(elsewhere.end() <= Block(702));
}

#[test]
fn windows_that_no_length_fits_are_an_invalid_argument() {
    let geometry = Geometry {
        first: Block(0),
        end: Block(PER_GROUP),
        blocks_per_group: PER_GROUP as u32,
    };
    let options = Options {
        reservation: Reservation::Windows {
            smallest: 17,
            largest: 16,
            growth: 1,
        },
        ..Options::default()
    };
    let disk = Disk::new(&geometry, |_| false);
    let error = Allocator::open(geometry, options, disk).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert_eq!(
        error.to_string(),
        "windows of at least 17 and at most 16 blocks"
    );
}

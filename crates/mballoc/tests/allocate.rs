//! Result of a request: goal, length, alignment, limit, reserve, policy, and its statistics.

#![cfg(not(feature = "shuttle"))]

mod disk;

use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use extant_mballoc::{
    Alignment, Allocator, BitmapSource, Block, BlockRange, CriterionCounts, FullGroups, Geometry,
    Goal, GroupNumber, Options, Owner, Policy, Request, RequestFlags, Reservation, Statistics,
    StreamGoals,
};
use extant_space::{Error, ErrorKind, Result};

use disk::Disk;

const PER_GROUP: u64 = 1024;

/// Options under which a request gets no more than it asks for.
fn alone() -> Options {
    Options {
        reservation: Reservation::None,
        cpus: 1,
        ..Options::default()
    }
}

fn open(groups: u64, options: Options, is_used: impl Fn(u64) -> bool) -> Allocator {
    let geometry = Geometry {
        first: Block(0),
        end: Block(groups * PER_GROUP),
        blocks_per_group: PER_GROUP as u32,
    };
    let disk = Disk::new(&geometry, |block| is_used(block.0));
    Allocator::open(geometry, options, disk).unwrap()
}

/// The same, when all bitmaps have been read: before that, the contents of the groups are unknown.
fn open_known(groups: u64, options: Options, is_used: impl Fn(u64) -> bool) -> Allocator {
    let allocator = open(groups, options, is_used);
    allocator.for_each_free(|_| ControlFlow::Continue(()));
    allocator
}

fn take(owner: &Owner, request: &Request) -> BlockRange {
    owner.allocate(request).unwrap().keep()
}

fn refused(owner: &Owner, request: &Request) -> Error {
    owner
        .allocate(request)
        .map(|allocation| allocation.range())
        .unwrap_err()
}

fn near(block: u64, wanted: u32) -> Request {
    Request {
        goal: Goal::Near(Block(block)),
        ..Request::data(wanted)
    }
}

fn aligned(wanted: u32, alignment: Alignment) -> Request {
    Request {
        alignment,
        ..Request::data(wanted)
    }
}

fn blocks(start: u64, count: u32) -> BlockRange {
    BlockRange::new(Block(start), count)
}

#[test]
fn goal_that_is_free_is_taken() {
    let allocator = open(4, alone(), |_| false);
    let owner = allocator.owner(1, 0);
    let follow = Request::data(70).follow(Block(2500));
    assert_eq!(take(&owner, &follow), blocks(2500, 70));
    assert_eq!(take(&owner, &near(500, 20)), blocks(500, 20));
    assert_eq!(allocator.statistics().goal_hits, 2);
}

#[test]
fn follow_takes_the_few_blocks_at_its_goal_and_near_does_not() {
    let allocator = open(4, alone(), |block| block == 510);
    let owner = allocator.owner(1, 0);
    let follow = Request::data(64).follow(Block(500));
    let eleven = Request {
        minimum: 11,
        ..follow.clone()
    };
    assert_eq!(take(&owner, &near(500, 64)).count(), 64);
    assert_ne!(take(&owner, &eleven).start(), Block(500));
    assert_eq!(take(&owner, &follow), blocks(500, 10));
}

#[test]
fn goal_in_use_or_outside_sends_the_search_on() {
    let allocator = open(4, alone(), |block| (2000..2100).contains(&block));
    let owner = allocator.owner(1, 0);
    for goal in [2050, 4 * PER_GROUP, u64::MAX] {
        assert_eq!(
            take(&owner, &Request::data(8).follow(Block(goal))).count(),
            8
        );
    }
    assert_eq!(allocator.statistics().goal_hits, 0);
}

#[test]
fn hole_of_the_right_length_is_filled_before_a_long_run_is_broken() {
    // Group 0 is free as a whole; group 5 has holes of 19, 20 and 30 blocks.
    let hole = |block: u64| {
        [(5200, 19), (5300, 20), (5400, 30)]
            .iter()
            .any(|&(start, count)| (start..start + count).contains(&block))
    };
    let allocator = open_known(6, alone(), |block| block >= PER_GROUP && !hole(block));
    let owner = allocator.owner(1, 0);
    assert_eq!(take(&owner, &Request::data(20)), blocks(5300, 20));
    assert_eq!(take(&owner, &Request::data(19)), blocks(5200, 19));
}

#[test]
fn known_group_is_taken_before_a_bitmap_is_read_and_the_start_is_always_known() {
    let allocator = open(8, alone(), |_| false);
    let owner = allocator.owner(1, 0);
    let near = |wanted| Request {
        flags: RequestFlags::empty(),
        ..near(5 * PER_GROUP, wanted)
    };
    for _ in 0..5 {
        take(&owner, &near(100));
    }
    assert_eq!(allocator.statistics().groups_loaded, 1);
    let more = take(&owner, &near(1000));
    assert_eq!(
        allocator.statistics().groups_loaded,
        2,
        "no known run is that long"
    );
    assert_eq!(more.start().0 / PER_GROUP, 6);
}

#[test]
fn few_bitmaps_are_read_for_a_long_run_before_shorter_ones_will_do() {
    // All groups claim half of their blocks, and none has more than one in a row.
    let allocator = open(40, alone(), |block| block % 2 == 0);
    let owner = allocator.owner(1, 0);
    let request = Request {
        minimum: 1,
        ..Request::data(64)
    };
    assert_eq!(take(&owner, &request).count(), 1);
    let loaded = allocator.statistics().groups_loaded;
    assert!(loaded <= 10, "{loaded} bitmaps");
}

#[test]
fn request_longer_than_a_group_gets_a_group() {
    let allocator = open(3, alone(), |block| block < PER_GROUP);
    let owner = allocator.owner(1, 0);
    let whole = take(&owner, &Request::data(u32::MAX));
    assert_eq!(u64::from(whole.count()), PER_GROUP);
}

#[test]
fn shorter_run_than_wanted_is_given_down_to_the_minimum_and_no_further() {
    // No run is longer than ten blocks.
    let allocator = open(4, alone(), |block| block % 11 == 0);
    let owner = allocator.owner(1, 0);
    let at_least = |minimum| Request {
        minimum,
        ..Request::data(20)
    };
    assert_eq!(take(&owner, &at_least(10)).count(), 10);
    let error = refused(&owner, &at_least(11));
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert_eq!(error.to_string(), "allocate: no 11 free blocks in a row");
}

#[test]
fn required_alignment_is_kept_or_refused_and_preferred_is_optional() {
    // One run, from 65 to 127: it holds 96, and no multiple of 64.
    let allocator = open(2, alone(), |block| !(65..128).contains(&block));
    let owner = allocator.owner(1, 0);
    let error = refused(&owner, &aligned(4, Alignment::Required(64)));
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    let required = take(&owner, &aligned(40, Alignment::Required(32)));
    assert_eq!(required, blocks(96, 32));
    let preferred = take(&owner, &aligned(4, Alignment::Preferred(64)));
    assert_eq!(preferred.count(), 4);
    let follow = aligned(4, Alignment::Required(8)).follow(Block(69));
    assert_eq!(
        take(&owner, &follow).start(),
        Block(72),
        "a goal that is not aligned"
    );
}

#[test]
fn preferred_alignment_is_kept_where_it_can_be() {
    let allocator = open(4, alone(), |block| block % 256 < 3);
    let owner = allocator.owner(1, 0);
    for _ in 0..10 {
        let range = take(&owner, &aligned(16, Alignment::Preferred(16)));
        assert_eq!((range.start().0 % 16, range.count()), (0, 16));
    }
}

#[test]
fn limited_request_stays_below_its_limit_whatever_its_goals() {
    const LIMIT: u64 = 2 * PER_GROUP + 100;
    let options = Options {
        stream_goals: StreamGoals::PerCpu,
        ..alone()
    };
    let allocator = open(8, options, |_| false);
    let owner = allocator.owner(1, 0);
    // The stream is far past the limit now.
    take(&owner, &Request::data(5).follow(Block(7 * PER_GROUP)));
    let limited = Request {
        limit: Some(Block(LIMIT)),
        ..Request::data(90)
    };
    let mut taken = 0;
    let goals =
        [7 * PER_GROUP + 5, LIMIT - 1, LIMIT, 0].map(|goal| limited.clone().follow(Block(goal)));
    for request in goals.iter().chain([&limited]).cycle() {
        match owner.allocate(request) {
            Ok(allocation) => {
                let range = allocation.keep();
                assert!(range.end() <= Block(LIMIT), "{range} for {request:?}");
                taken += u64::from(range.count());
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace);
                let text = error.to_string();
                assert_eq!(text, format!("allocate: no free block below block {LIMIT}"));
                break;
            }
        }
    }
    assert_eq!(taken, LIMIT);
    assert_eq!(allocator.free_blocks(), 8 * PER_GROUP - LIMIT - 5);
    assert_eq!(allocator.check(), Ok(()));
}

#[test]
fn reserve_is_only_for_requests_that_may_use_it() {
    for reservation in [Reservation::None, Reservation::DEFAULT] {
        let options = Options {
            reserved_blocks: 100,
            reservation,
            ..alone()
        };
        let allocator = open(2, options, |block| block < PER_GROUP);
        let owner = allocator.owner(1, 0);
        let mut goal = Block(PER_GROUP);
        let error = loop {
            match owner.allocate(&Request::data(40).follow(goal)) {
                Ok(allocation) => goal = allocation.keep().end(),
                Err(error) => break error,
            }
        };
        assert_eq!(
            error.to_string(),
            "allocate: only the 100 reserved blocks are left"
        );
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert_eq!(allocator.free_blocks(), 100);
        let privileged = Request {
            flags: RequestFlags::USE_RESERVE,
            minimum: 100,
            ..Request::data(100)
        };
        assert_eq!(take(&owner, &privileged).count(), 100);
        assert_eq!(allocator.free_blocks(), 0);
    }
}

#[test]
fn request_that_can_never_be_met_is_an_invalid_argument() {
    let allocator = open(2, Options::default(), |_| false);
    let owner = allocator.owner(1, 0);
    // A window exists, which must not serve any of these requests.
    take(&owner, &Request::data(1));
    let at_least = |minimum, wanted| Request {
        minimum,
        ..Request::data(wanted)
    };
    for (request, expected) in [
        (at_least(1, 0), "at least 1 of 0 blocks"),
        (at_least(0, 4), "at least 0 of 4 blocks"),
        (at_least(5, 4), "at least 5 of 4 blocks"),
        (
            at_least(1025, 2000),
            "at least 1025 blocks in a row, where a group has 1024",
        ),
        (aligned(4, Alignment::Required(0)), "aligned to 0 blocks"),
        (aligned(4, Alignment::Preferred(0)), "aligned to 0 blocks"),
    ] {
        let error = refused(&owner, &request);
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(error.to_string(), format!("allocate: {expected}"));
    }
}

#[test]
fn search_among_groups_that_are_alike_begins_at_the_goal_of_the_owner() {
    let groups = |stream_goals, cpus| {
        let options = Options {
            stream_goals,
            cpus,
            ..alone()
        };
        let allocator = open(16, options, |_| false);
        [0, 1, 2, 3].map(|number| {
            let owner = allocator.owner(number, 0);
            take(&owner, &Request::data(PER_GROUP as u32)).start().0 / PER_GROUP
        })
    };
    assert_eq!(groups(StreamGoals::Sticky, 4), [0, 4, 8, 12]);
    assert_eq!(groups(StreamGoals::PerCpu, 4), [0, 4, 8, 12]);
    assert_eq!(groups(StreamGoals::PerCpu, 2), [0, 8, 1, 9]);
    assert_eq!(groups(StreamGoals::One, 4), [0, 1, 2, 3]);
}

#[test]
fn goals_that_move_follow_their_stream() {
    let options = Options {
        stream_goals: StreamGoals::PerCpu,
        ..alone()
    };
    let allocator = open(16, options, |_| false);
    let owner = allocator.owner(0, 0);
    take(&owner, &near(9 * PER_GROUP, 1));
    let next = take(&owner, &Request::data(5));
    assert_eq!(next.start().0 / PER_GROUP, 9);
    assert_eq!(allocator.statistics().stream_goal_hits, 1);
}

#[test]
fn linear_policy_scans_groups_in_order_and_rotating_from_the_last() {
    // Group 0 has room for three requests; group 3 has the shortest run that would do.
    let is_used = |block: u64| match block / PER_GROUP {
        0 => block >= 300,
        3 => block < 4 * PER_GROUP - 100,
        _ => false,
    };
    let groups = |policy| {
        let allocator = open_known(5, Options { policy, ..alone() }, is_used);
        let request = Request {
            flags: RequestFlags::empty(),
            ..Request::data(100)
        };
        [(); 5].map(|()| take(&allocator.owner(0, 0), &request).start().0 / PER_GROUP)
    };
    assert_eq!(groups(Policy::Linear), [0, 0, 0, 1, 1]);
    assert_eq!(groups(Policy::Optimised), [3, 0, 0, 0, 1]);
    let allocator = open(
        5,
        Options {
            policy: Policy::Rotating,
            ..alone()
        },
        |_| false,
    );
    take(&allocator.owner(0, 0), &near(2 * PER_GROUP, 600));
    let groups =
        [(); 3].map(|()| take(&allocator.owner(0, 0), &Request::data(600)).start().0 / PER_GROUP);
    assert_eq!(groups, [0, 1, 3], "behind the last, where there is room");
}

#[test]
fn groups_passed_over_are_counted_under_the_linear_policy_alone() {
    // Only the last of five groups has a run of 8 blocks.
    let is_used = |block: u64| block < 4 * PER_GROUP && block.is_multiple_of(8);
    let allocator = open_known(5, alone(), is_used);
    let request = Request {
        flags: RequestFlags::empty(),
        minimum: 8,
        ..Request::data(8)
    };
    let take = |policy| {
        allocator.set_policy(policy);
        let before = allocator.statistics();
        take(&allocator.owner(0, 0), &request);
        let after = allocator.statistics();
        let counted = |counts: fn(&Statistics) -> CriterionCounts| {
            counts(&after).power_of_two - counts(&before).power_of_two
        };
        [
            counted(|all| all.hits),
            counted(|all| all.groups_scanned),
            counted(|all| all.groups_passed),
        ]
    };
    assert_eq!(take(Policy::Optimised), [1, 1, 0]);
    assert_eq!(take(Policy::Linear), [1, 1, 4]);
    assert_eq!(take(Policy::Optimised), [1, 1, 0]);
    assert_eq!(allocator.statistics().groups_passed.total(), 4);
}

#[test]
fn index_is_true_whenever_the_policy_is_switched() {
    let allocator = open(8, alone(), |block| block % 37 == 0);
    let owner = allocator.owner(0, 0);
    for round in 0..60 {
        let policies = [Policy::Linear, Policy::Optimised, Policy::Rotating];
        allocator.set_policy(policies[round % 3]);
        take(&owner, &Request::data(1 + round as u32 * 7 % 50));
        assert_eq!(allocator.check(), Ok(()));
    }
    let found = |policy| {
        allocator.set_policy(policy);
        let request = Request {
            minimum: 36,
            ..Request::data(36)
        };
        owner
            .allocate(&request)
            .map(|allocation| allocation.range().count())
            .ok()
    };
    assert_eq!(found(Policy::Linear), Some(36));
    assert_eq!(found(Policy::Optimised), Some(36));
}

#[test]
fn groups_without_free_blocks_are_not_looked_into() {
    let scanned = |full_groups| {
        let options = Options {
            full_groups,
            ..alone()
        };
        let allocator = open(20, options, |_| false);
        let owner = allocator.owner(0, 0);
        // Their last four blocks are taken at last.
        for group in 0..19 {
            take(&owner, &near(group * PER_GROUP, PER_GROUP as u32 - 4));
            take(&owner, &near((group + 1) * PER_GROUP - 4, 4));
        }
        let before = groups_scanned(&allocator);
        assert_eq!(take(&owner, &Request::data(3)), blocks(19 * PER_GROUP, 3));
        groups_scanned(&allocator) - before
    };
    assert_eq!(scanned(FullGroups::LeaveIndex), 1);
    assert!(scanned(FullGroups::StayInIndex) > 1);
}

fn groups_scanned(allocator: &Allocator) -> u64 {
    let scanned = allocator.statistics().groups_scanned;
    scanned.power_of_two
        + scanned.goal_length_fast
        + scanned.best_available
        + scanned.goal_length_slow
        + scanned.any_free
}

#[test]
fn statistics_count_every_event() {
    let allocator = open(
        4,
        Options {
            cpus: 1,
            ..Options::default()
        },
        |block| block % 64 == 0,
    );
    let owner = allocator.owner(0, 0);
    let exactly = |wanted| Request {
        flags: RequestFlags::NO_NORMALISE,
        ..Request::data(wanted)
    };
    take(&owner, &exactly(16));
    take(&owner, &exactly(17));
    // The longest run, as none is as long as wanted.
    take(&owner, &exactly(200));
    refused(
        &owner,
        &Request {
            minimum: 200,
            ..exactly(200)
        },
    );
    let first = take(&owner, &Request::data(2));
    drop(
        owner
            .allocate(&Request::data(2).follow(first.end()))
            .unwrap(),
    );
    let all = allocator.statistics();
    assert_eq!(
        (all.requests, all.failures, all.blocks),
        (6, 1, 16 + 17 + 63 + 4)
    );
    assert_eq!((all.hits.power_of_two, all.hits.any_free), (1, 1));
    // With a window, not all of which there is room for.
    assert_eq!((all.hits.goal_length_fast, all.hits.best_available), (1, 1));
    assert_eq!(
        (all.window_hits, all.freed_blocks, all.goal_hits),
        (1, 2, 0)
    );
    assert_eq!(
        all.groups_loaded, 4,
        "to say that there is no space, all were read"
    );
    drop(owner);
    assert_eq!(
        allocator.statistics().requests,
        6,
        "also of those who are gone"
    );
}

/// A disk of free groups, whose first bitmap takes until it is replaced.
struct Slow {
    disk: Disk,
    reading: Mutex<Option<Receiver<()>>>,
    begun: Mutex<std::sync::mpsc::Sender<()>>,
}

impl BitmapSource for Slow {
    fn free_blocks(&self, group: GroupNumber) -> u32 {
        self.disk.free_blocks(group)
    }

    fn load(&self, group: GroupNumber, used: &mut [u64]) -> Result<()> {
        if group.0 == 0
            && let Some(proceed) = self.reading.lock().unwrap().take()
        {
            self.begun.lock().unwrap().send(()).unwrap();
            proceed.recv().unwrap();
        }
        self.disk.load(group, used)
    }
}

#[test]
fn group_that_another_thread_holds_is_passed_over() {
    let geometry = Geometry {
        first: Block(0),
        end: Block(3 * PER_GROUP),
        blocks_per_group: PER_GROUP as u32,
    };
    let (proceed, reading) = channel();
    let (begin, begun) = channel();
    let slow = Slow {
        disk: Disk::new(&geometry, |_| false),
        reading: Mutex::new(Some(reading)),
        begun: Mutex::new(begin),
    };
    let allocator = Arc::new(Allocator::open(geometry, alone(), slow).unwrap());
    let other = Arc::clone(&allocator);
    let waiting = thread::spawn(move || take(&other.owner(0, 0), &Request::data(10)));
    begun.recv().unwrap();
    let passed = take(&allocator.owner(1, 0), &Request::data(10));
    // No thread waits for the owner, which holds its lock all the time.
    assert_eq!(allocator.statistics().blocks, 10);
    assert!(allocator.free_blocks() >= 3 * PER_GROUP - 20);
    proceed.send(()).unwrap();
    let waited = waiting.join().unwrap();
    assert!(
        passed.start() >= Block(PER_GROUP),
        "{passed} of the group that is held"
    );
    assert_eq!((passed.count(), waited.count()), (10, 10));
    assert!(allocator.statistics().groups_busy > 0);
    assert_eq!(allocator.check(), Ok(()));
}

#[test]
fn allocation_that_is_split_is_kept_or_freed_in_parts() {
    let allocator = open(1, alone(), |_| false);
    let owner = allocator.owner(1, 0);
    let mut first = owner.allocate(&Request::data(100)).unwrap();
    let whole = first.range();
    assert!(first.split_off(100).is_none());
    let rest = first.split_off(30).unwrap();
    assert_eq!(first.range(), BlockRange::new(whole.start(), 30));
    assert_eq!(rest.range(), BlockRange::new(first.range().end(), 70));
    drop(rest);
    assert_eq!(allocator.free_blocks(), PER_GROUP - 30);
    first.keep();
    assert_eq!(allocator.free_blocks(), PER_GROUP - 30);
    assert_eq!(allocator.check(), Ok(()));
}

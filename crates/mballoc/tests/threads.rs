//! Real threads: no block has two owners, none is lost, and all counts agree in the end.

#![cfg(not(feature = "shuttle"))]

mod claims;
mod disk;

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use extant_mballoc::{
    Alignment, Allocator, Block, BlockRange, Free, Geometry, Goal, GroupNumber, Options, Owner,
    Policy, Request, RequestFlags, TransactionId,
};
use extant_space::ErrorKind;
use extant_testkit::command;

use claims::Claims;
use disk::Disk;

const GEOMETRY: Geometry = Geometry {
    first: Block(1),
    end: Block(1 + 11 * 512 + 300),
    blocks_per_group: 512,
};
const THREADS: u64 = 4;

fn behaviours() -> [Options; 3] {
    [
        Options::default(),
        Options::after_scalability_patches(),
        Options::before_scalability_patches(),
    ]
    .map(|options| Options { cpus: 3, ..options })
}

fn open(options: Options) -> Allocator {
    Allocator::open(GEOMETRY, options, Disk::new(&GEOMETRY, |_| false)).unwrap()
}

fn request(random: &mut fastrand::Rng, mine: &[BlockRange]) -> Request {
    let wanted = 1 << random.u32(0..9) | random.u32(0..8);
    let mut request = Request::data(wanted);
    request.goal = match (random.u8(0..3), mine.last()) {
        (0, Some(last)) => Goal::Follow(last.end()),
        (1, _) => Goal::Near(Block(random.u64(0..GEOMETRY.end.0 + 10))),
        _ => Goal::Anywhere,
    };
    request.minimum = random.u32(1..=wanted);
    if random.u8(0..8) == 0 {
        request.alignment = Alignment::Required(random.u32(1..20));
    }
    if random.u8(0..8) == 0 {
        request.flags = RequestFlags::from_bits_truncate(random.u32(0..16));
    }
    request
}

/// One writer: allocates, keeps or drops, frees now or after the commit of the running transaction.
fn write(owner: &Owner, claims: &Claims, running: &AtomicU32, seed: u64) -> Vec<BlockRange> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut mine: Vec<BlockRange> = Vec::new();
    for _ in 0..1500 {
        let transaction = TransactionId(running.load(Ordering::Relaxed));
        if random.u8(0..5) < 3 {
            let mut request = request(&mut random, &mine);
            request.transaction = random.bool().then_some(transaction);
            match owner.allocate(&request) {
                Ok(allocation) => {
                    claims.take(allocation.range());
                    match random.u8(0..4) {
                        0 => claims.give(allocation.range()),
                        _ => mine.push(allocation.keep()),
                    }
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::NoSpace),
            }
        } else if !mine.is_empty() {
            let range = mine.swap_remove(random.usize(..mine.len()));
            claims.give(range);
            let when = match random.u8(0..3) {
                0 => Free::Now,
                _ => Free::AfterCommit(transaction),
            };
            owner.free(range, when).unwrap();
        }
        if random.u8(0..100) == 0 {
            owner.release_windows();
        }
    }
    mine
}

#[test]
fn random_work_of_threads_keeps_every_block_of_one_owner() {
    for (round, options) in behaviours().into_iter().enumerate() {
        let allocator = open(options);
        let claims = Claims::new(GEOMETRY.end);
        let running = AtomicU32::new(0);
        let done = AtomicBool::new(false);
        let kept: Vec<BlockRange> = thread::scope(|scope| {
            let writers: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (allocator, claims, running) = (&allocator, &claims, &running);
                    let seed = round as u64 * THREADS + thread;
                    scope.spawn(move || write(&allocator.owner(thread, 0), claims, running, seed))
                })
                .collect();
            let others = scope.spawn(|| {
                let policies = [Policy::Rotating, Policy::Linear, Policy::Optimised];
                while !done.load(Ordering::Relaxed) {
                    let before = running.fetch_add(1, Ordering::Relaxed);
                    drop(allocator.committed(TransactionId(before)));
                    allocator.set_policy(policies[before as usize % 3]);
                    allocator.release_windows();
                    let group = GroupNumber(before % GEOMETRY.groups());
                    let all = GEOMETRY.first..GEOMETRY.end;
                    let withheld = allocator.take_for_discard(group, all, NonZeroU32::MIN, 5);
                    for range in withheld.ranges() {
                        claims.take(*range);
                    }
                    thread::yield_now();
                    for range in withheld.ranges() {
                        claims.give(*range);
                    }
                    drop(withheld);
                    assert!(allocator.free_blocks() <= GEOMETRY.blocks());
                    assert!(allocator.statistics().blocks <= u64::from(u32::MAX));
                    thread::yield_now();
                }
            });
            let kept = writers.into_iter().map(|writer| writer.join());
            let kept: Vec<_> = kept.collect();
            done.store(true, Ordering::Relaxed);
            others.join().unwrap();
            kept.into_iter().flat_map(Result::unwrap).collect()
        });
        assert_eq!(allocator.check(), Ok(()), "round {round}");
        // A writer may have freed for a transaction that had committed meanwhile.
        for transaction in 0..=running.into_inner() {
            drop(allocator.committed(TransactionId(transaction)));
        }
        assert_eq!(allocator.pending_blocks(), 0);
        let blocks: u64 = kept.iter().map(|range| u64::from(range.count())).sum();
        assert_eq!(
            allocator.free_blocks(),
            GEOMETRY.blocks() - blocks,
            "round {round}"
        );
        for range in kept {
            allocator.free(range, Free::Now).unwrap();
        }
        let mut runs = Vec::new();
        allocator.for_each_free(|run| {
            runs.push(run);
            std::ops::ControlFlow::Continue(())
        });
        assert_eq!(
            runs,
            [BlockRange::between(GEOMETRY.first, GEOMETRY.end).unwrap()]
        );
        assert_eq!(allocator.check(), Ok(()), "round {round}");
    }
}

#[test]
fn disk_that_threads_fill_together_is_full_to_the_last_block() {
    for options in behaviours() {
        let allocator = open(options);
        let claims = Claims::new(GEOMETRY.end);
        let taken: u64 = thread::scope(|scope| {
            let writers: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (allocator, claims) = (&allocator, &claims);
                    scope.spawn(move || fill(&allocator.owner(thread, 0), claims, thread))
                })
                .collect();
            writers
                .into_iter()
                .map(|writer| writer.join().unwrap())
                .sum()
        });
        assert_eq!(taken, GEOMETRY.blocks());
        assert_eq!((allocator.free_blocks(), allocator.check()), (0, Ok(())));
        assert_eq!(allocator.statistics().failures, THREADS);
    }
}

/// Takes blocks until there are none; how many.
fn fill(owner: &Owner, claims: &Claims, seed: u64) -> u64 {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut taken = 0;
    loop {
        match owner.allocate(&Request::data(random.u32(1..20))) {
            Ok(allocation) => {
                claims.take(allocation.range());
                taken += u64::from(allocation.keep().count());
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace);
                return taken;
            }
        }
    }
}

#[test]
fn owner_that_several_threads_use_gives_each_block_once() {
    let allocator = open(Options::default());
    let claims = Claims::new(GEOMETRY.end);
    let owner = allocator.owner(1, 0);
    let taken: u64 = thread::scope(|scope| {
        let writers: Vec<_> = (0..THREADS)
            .map(|seed| {
                let (owner, claims) = (&owner, &claims);
                scope.spawn(move || fill(owner, claims, seed))
            })
            .collect();
        writers
            .into_iter()
            .map(|writer| writer.join().unwrap())
            .sum()
    });
    assert_eq!(taken, GEOMETRY.blocks());
    assert_eq!(allocator.check(), Ok(()));
}

#[test]
fn example_gives_four_files_long_runs_and_gets_all_back() {
    let text = command::text(&mut command::example("allocate")).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 5, "{text}");
    assert_eq!(lines[4], "all of 524288 blocks are free again");
}

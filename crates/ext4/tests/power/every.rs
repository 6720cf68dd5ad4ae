//! Bounded exhaustive power cuts, after CrashMonkey and ACE (OSDI 2018): every sequence of one and
//! two operations on a small tree, with every placement of fsync, fdatasync and sync behind each,
//! is cut at every device write. Sequences of three are sampled.
//!
//! Each run tests all sequences of one operation, and a shard of those of two, which changes from
//! day to day; `cargo xtask proof` tests all. Devices with planted faults show that a wrong order
//! of writes is found.
//!
//! `extant_testkit::exhaustive` describes the variables that choose sequences.

mod operations;
mod sweep;

use std::sync::Arc;

use extant_blockdev::simulation::{CrashDevice, Fault, FaultRule, FaultyDevice};
use extant_blockdev::{Device, OperationKind};
use extant_testkit::exhaustive::{Shard, Tally, samples};
use extant_testkit::{require, requires};

use crate::image::{Commits, Format};
use operations::{Operation, moves, operations};
use sweep::{Bed, Sequence, Sequences};

const PLAIN: Format = Format {
    options: "-t ext4 -b 1024 -J size=1 -N 64",
    kibibytes: 3072,
    commits: Commits::Full,
    log_blocks: Some(512),
};
const FAST: Format = Format {
    options: "-t ext4 -b 1024 -J size=1 -N 64 -O fast_commit",
    kibibytes: 4096,
    commits: Commits::Fast,
    log_blocks: None,
};

/// Shards of the sequences of two; a prime, so that a shard has all kinds of sequences.
const SHARDS: usize = 251;
/// Sequences of three that are cut by default.
const SAMPLES: usize = 100;
/// The running count of samples is printed at this interval.
const SAMPLES_SHOWN: usize = 1000;

fn full() -> Bed {
    Bed::new("full commits", PLAIN)
}

fn fast() -> Bed {
    Bed::new("fast commits", FAST)
}

/// Cuts the sequences of a shard.
fn survives(bed: &Bed, length: u32, shards: usize, words: &str) -> Tally {
    let sequences = Sequences::new(moves(), length);
    let numbers = Shard::wanted(shards).numbers(sequences.count());
    let tally = bed.sweep(&sequences, &numbers);
    println!("ext4, {}, {words}: {tally}", bed.name);
    tally
}

#[test]
fn each_operation_survives_every_power_cut() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let bed = full();
    survives(&bed, 1, 1, "one operation");
    assert_eq!(bed.fast_commits(), 0);
}

#[test]
fn each_operation_with_fast_commits_survives_every_power_cut() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let bed = fast();
    let tally = survives(&bed, 1, 1, "one operation");
    let fast_commits = bed.fast_commits();
    // Of all sequences; a run that repeats a failure has one.
    assert!(
        tally.possible < 200 || fast_commits > 50,
        "{fast_commits} fast commits"
    );
}

#[test]
fn each_pair_of_operations_survives_every_power_cut() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    survives(&full(), 2, SHARDS, "two operations");
}

#[test]
fn each_pair_of_operations_with_fast_commits_survives_every_power_cut() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    survives(&fast(), 2, SHARDS, "two operations");
}

#[test]
fn sampled_triples_of_operations_survive_every_power_cut() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let sequences = Sequences::new(moves(), 3);
    let numbers = samples(sequences.count(), SAMPLES);
    for bed in [full(), fast()] {
        let mut all = Tally::default();
        for some in numbers.chunks(SAMPLES_SHOWN) {
            all = all.plus(&bed.sweep(&sequences, some));
            println!("ext4, {}, three operations, sampled: {all}", bed.name);
        }
    }
}

#[test]
fn every_operation_is_possible_alone_or_after_another() {
    require!(requires::tool("mke2fs"));
    let bed = full();
    let all: Vec<_> = operations().iter().map(Operation::moves).collect();
    for moves in &all {
        let alone = Sequence::of(vec![&moves[0]]);
        let is_possible_after = |first: &Vec<_>| {
            let both = Sequence::of(vec![&first[0], &moves[0]]);
            bed.is_possible(&both)
        };
        let is_possible = bed.is_possible(&alone) || all.iter().any(is_possible_after);
        assert!(is_possible, "{alone}");
    }
}

/// Number of sequences of one operation in which a device without flushes breaks promises, and of
/// all.
fn found_without_flushes(bed: &Bed) -> (usize, usize) {
    let device = |disk: Arc<CrashDevice>| -> Arc<dyn Device> {
        let fault = FaultRule::new(Fault::Lose).on(&[OperationKind::Flush]);
        Arc::new(FaultyDevice::new(disk, 1, vec![fault]))
    };
    bed.found(&Sequences::new(moves(), 1), &device)
}

#[test]
fn ignored_flushes_break_promises() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    for (bed, found_min) in [(full(), 200), (fast(), 40)] {
        let (found, all) = found_without_flushes(&bed);
        println!("{}: {found} of {all} sequences", bed.name);
        assert!(found >= found_min, "{}: {found} of {all}", bed.name);
    }
}

//! The cost of an allocation on disks of 64 GiB to 64 TiB.
//!
//! - One block, and 2,048 blocks by as many requests as necessary.
//! - No windows: every request searches the groups.
//! - Eight allocations are held; the oldest is freed for the next. Freeing is not timed.
//! - Goals are either none (the owner's stream goal) or random blocks in 512 groups spread evenly
//!   over the disk. The number is the same at every size, and the groups are visited before until
//!   all bitmaps are loaded, so that only the search differs and not the processor's cache.
//! - Separate rows: the first visit, which reads bitmaps, with goals anywhere; and a search that
//!   finds no run of the length, twice.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use extant_mballoc::{
    Allocator, Block, BlockRange, CriterionCounts, Free, Geometry, Goal, GroupNumber, Options,
    Owner, Request, RequestFlags,
};

use extant_space::ErrorKind;

use super::disk::GROUP;
use super::fragmented::Fragmented;
use crate::bench::{Context, Outcome, rounds};
use crate::latency::{Latencies, clock_cost};
use crate::metrics::Metrics;
use crate::random::Random;
use crate::table::{Table, number};

/// Goal: cost of one block at 64 TiB, of that at 64 GiB.
pub(super) const ONE: &str = "growth-1-block";
/// Goal: the same for 2,048 blocks.
pub(super) const MANY: &str = "growth-2048-blocks";
/// Sizes in GiB.
pub(super) const SIZES: [(&str, u64); 4] = [
    ("64 GiB", 64),
    ("1 TiB", 1 << 10),
    ("8 TiB", 8 << 10),
    ("64 TiB", 64 << 10),
];
const SMALLEST: usize = 0;
pub(super) const SIZE_MAX: usize = SIZES.len() - 1;
pub(super) const SEED: u64 = 95;
/// Allocations that are held.
const HELD: usize = 8;
/// Groups that contain the random goals.
const GOAL_GROUPS: u32 = 512;
/// Visits of all goals before the clock starts, at most.
const VISITS_MAX: usize = 200;

const NANOS: &str = "ns";
const SCANNED: &str = "groups scanned";
const LOADED: &str = "bitmaps read";
const PIECES: &str = "pieces";
const MILLIS: &str = "ms";

/// Longer than any run of the disk, and shorter than the free space of some groups.
const TOO_LONG: u32 = 10_000;
const TOO_LONG_NAMES: [&str; 2] = ["10,000 blocks, none there", "10,000 blocks, again"];

/// A way to ask.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    blocks: u32,
    place: FilePosition,
    /// The goal that it counts for.
    goal: Option<&'static str>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FilePosition {
    /// No goal.
    Stream,
    /// A block in one of the groups visited before.
    Visited,
    /// A block anywhere, on a disk without loaded bitmaps.
    Cold,
}

const CASES: [Case; 6] = [
    Case {
        name: "1 block, stream goal",
        blocks: 1,
        place: FilePosition::Stream,
        goal: Some(ONE),
    },
    Case {
        name: "1 block, random goals",
        blocks: 1,
        place: FilePosition::Visited,
        goal: Some(ONE),
    },
    Case {
        name: "1 block, first visit",
        blocks: 1,
        place: FilePosition::Cold,
        goal: None,
    },
    Case {
        name: "2,048 blocks, stream goal",
        blocks: 2048,
        place: FilePosition::Stream,
        goal: Some(MANY),
    },
    Case {
        name: "2,048 blocks, random goals",
        blocks: 2048,
        place: FilePosition::Visited,
        goal: Some(MANY),
    },
    Case {
        name: "2,048 blocks, first visit",
        blocks: 2048,
        place: FilePosition::Cold,
        goal: None,
    },
];

pub(super) fn measure(context: &Context, outcome: &mut Outcome) -> Result<()> {
    let runs = context.options.runs(5, 1);
    let operations = context.options.pick(20_000, 2_000);
    let clock = clock_cost();
    context.step(format!("growth from 64 GiB to 64 TiB; rounds: {runs}"));
    for (_, size) in rounds(runs, SIZES.len()) {
        let (name, gibibytes) = SIZES[size];
        for case in CASES {
            let start = Instant::now();
            let allocator = open(gibibytes)?;
            let open_millis = start.elapsed().as_secs_f64() * 1e3;
            outcome
                .metrics
                .record(&format!("open, {name}"), MILLIS, "", open_millis);
            let operations = match case.place {
                FilePosition::Cold => GOAL_GROUPS as usize,
                _ => operations,
            };
            let found = one(&allocator, case, operations)?;
            let metric = format!("{}, {name}", case.name);
            let mut record = |unit, value| outcome.metrics.record(&metric, unit, "", value);
            let median = found.latencies.quantile(0.5).saturating_sub(clock);
            record(NANOS, median.as_nanos() as f64);
            record(SCANNED, found.scanned);
            record(LOADED, found.loaded);
            record(PIECES, found.pieces);
        }
        fail(&open(gibibytes)?, name, &mut outcome.metrics)?;
    }
    outcome.tables.push(costs(&outcome.metrics)?);
    outcome.notes.push(
        "growth: the median of each size; ratios are those of the rounds; 2,048 blocks are had in as many \
         requests as it takes (pieces); a goal of growth has the worse of its stream and random goals"
            .to_owned(),
    );
    for goal in [ONE, MANY] {
        let counted = CASES.iter().filter(|case| case.goal == Some(goal));
        let ratios: Result<Vec<_>> = counted.map(|case| ratio(case, &outcome.metrics)).collect();
        let worst = ratios?.into_iter().fold(0.0, f64::max);
        outcome.goals.insert(goal, worst.into());
    }
    Ok(())
}

/// Result of one case.
struct GrowthResult {
    latencies: Latencies,
    scanned: f64,
    loaded: f64,
    pieces: f64,
}

fn one(allocator: &Allocator, case: Case, operations: usize) -> Result<GrowthResult> {
    let geometry = allocator.geometry();
    let owner = allocator.owner(0, 0);
    let mut random = Random::new(SEED);
    let mut goal = || match case.place {
        FilePosition::Stream => Goal::Anywhere,
        FilePosition::Visited => {
            let number = (random.fraction() * f64::from(GOAL_GROUPS)) as u32;
            let within = random.fraction();
            Goal::Near(block_in(&geometry, number, GOAL_GROUPS, within))
        }
        FilePosition::Cold => {
            Goal::Near(Block((random.fraction() * geometry.blocks() as f64) as u64))
        }
    };
    let mut held = Held::default();
    if case.place != FilePosition::Cold {
        visit(allocator, &owner, &mut held, case)?;
    }
    let (before, pieces_before) = (allocator.statistics(), held.pieces);
    let mut times = Vec::with_capacity(operations);
    for _ in 0..operations {
        times.push(held.allocate(&owner, case.blocks, goal())?);
    }
    let after = allocator.statistics();
    let each = |count: u64| count as f64 / operations as f64;
    Ok(GrowthResult {
        latencies: Latencies::new(times).context("nothing was timed")?,
        scanned: each(total(&after.groups_scanned) - total(&before.groups_scanned)),
        loaded: each(after.groups_loaded - before.groups_loaded),
        pieces: each(held.pieces - pieces_before),
    })
}

/// Asks in all places that a case asks in, again and again until that reads no bitmap.
fn visit(allocator: &Allocator, owner: &Owner, held: &mut Held, case: Case) -> Result<()> {
    let geometry = allocator.geometry();
    for _ in 0..VISITS_MAX {
        let before = allocator.statistics().groups_loaded;
        for number in 0..GOAL_GROUPS {
            let goal = match case.place {
                FilePosition::Stream => Goal::Anywhere,
                _ => Goal::Near(block_in(&geometry, number, GOAL_GROUPS, 0.5)),
            };
            held.allocate(owner, case.blocks, goal)?;
        }
        if allocator.statistics().groups_loaded == before {
            break;
        }
    }
    Ok(())
}

/// Requests an unavailable run twice: the first request reads the candidate bitmaps, the second
/// fails without reads.
fn fail(allocator: &Allocator, size: &str, metrics: &mut Metrics) -> Result<()> {
    let owner = allocator.owner(0, 0);
    let mut request = request(TOO_LONG, Goal::Anywhere);
    request.minimum = TOO_LONG;
    for name in TOO_LONG_NAMES {
        let before = allocator.statistics();
        let start = Instant::now();
        let result = owner.allocate(&request);
        let nanos = start.elapsed().as_nanos() as f64;
        let refused = result.err().map(|error| error.kind());
        ensure!(refused == Some(ErrorKind::NoSpace), "there is a long run");
        let after = allocator.statistics();
        let scanned = total(&after.groups_scanned) - total(&before.groups_scanned);
        let loaded = after.groups_loaded - before.groups_loaded;
        let metric = format!("{name}, {size}");
        let mut record = |unit, value| metrics.record(&metric, unit, "", value);
        record(NANOS, nanos);
        record(SCANNED, scanned as f64);
        record(LOADED, loaded as f64);
    }
    Ok(())
}

/// Held allocations, the oldest first.
#[derive(Default)]
struct Held {
    allocations: VecDeque<Vec<BlockRange>>,
    pieces: u64,
}

impl Held {
    /// Allocates `blocks` blocks; returns the time it took.
    fn allocate(&mut self, owner: &Owner, blocks: u32, goal: Goal) -> Result<Duration> {
        let mut ranges = match self.allocations.len() {
            HELD => self.allocations.pop_front().unwrap_or_default(),
            _ => Vec::new(),
        };
        for range in ranges.drain(..) {
            owner.free(range, Free::Now)?;
        }
        let mut request = request(blocks, goal);
        let start = Instant::now();
        while request.wanted > 0 {
            let range = owner.allocate(&request)?.keep();
            request.wanted -= range.count();
            ranges.push(range);
        }
        let elapsed = start.elapsed();
        self.pieces += ranges.len() as u64;
        self.allocations.push_back(ranges);
        Ok(elapsed)
    }
}

pub(super) fn open(gibibytes: u64) -> Result<Allocator> {
    let disk = Fragmented::new(gibibytes, SEED);
    Ok(Allocator::open(disk.geometry, Options::default(), disk)?)
}

/// A request that goes to the groups, from its goal on.
pub(super) fn request(blocks: u32, goal: Goal) -> Request {
    let mut request = Request::data(blocks);
    request.flags |= RequestFlags::NO_NORMALISE;
    if goal != Goal::Anywhere {
        request.flags -= RequestFlags::STREAM;
    }
    request.goal = goal;
    request
}

/// A block of the group `number` of `count` groups that are spread evenly over the disk; `within`
/// is 0 to 1.
pub(super) fn block_in(geometry: &Geometry, number: u32, count: u32, within: f64) -> Block {
    let apart = geometry.groups() / count;
    let group = GroupNumber(number * apart);
    Block(geometry.start_of(group).0 + (within * f64::from(GROUP)) as u64)
}

fn total(counts: &CriterionCounts) -> u64 {
    counts.power_of_two
        + counts.goal_length_fast
        + counts.best_available
        + counts.goal_length_slow
        + counts.any_free
}

fn ratio(case: &Case, metrics: &Metrics) -> Result<f64> {
    let of = |size: usize| format!("{}, {}", case.name, SIZES[size].0);
    metrics.ratio(&of(SIZE_MAX), &of(SMALLEST), NANOS)
}

fn costs(metrics: &Metrics) -> Result<Table> {
    let sizes = SIZES.map(|(name, _)| name);
    let heading = [&["95% full, median ns"], &sizes[..], &["ratio"]].concat();
    let mut table = Table::new(&heading);
    let mut row = |shown: &str, name: &str, unit, ratio| {
        let mut row = vec![shown.to_owned()];
        for size in sizes {
            let metric = metrics.of(&format!("{name}, {size}"), unit)?;
            row.push(number(metric.median()));
        }
        row.push(ratio);
        table.row(row);
        anyhow::Ok(())
    };
    let none = String::new;
    let details = [SCANNED, LOADED].map(|unit| (format!("  {unit}"), unit));
    for case in &CASES {
        row(case.name, case.name, NANOS, number(ratio(case, metrics)?))?;
        for (shown, unit) in &details {
            row(shown, case.name, unit, none())?;
        }
        if case.blocks > 1 {
            row("  pieces", case.name, PIECES, none())?;
        }
    }
    for name in TOO_LONG_NAMES {
        row(name, name, NANOS, none())?;
        for (shown, unit) in &details {
            row(shown, name, unit, none())?;
        }
    }
    row("open, ms", "open", MILLIS, none())?;
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocation_of_many_blocks_is_whole_and_eight_are_held() {
        let allocator = open(64).unwrap();
        let free = allocator.free_blocks();
        let owner = allocator.owner(0, 0);
        let mut held = Held::default();
        for _ in 0..2 * HELD {
            held.allocate(&owner, 2048, Goal::Anywhere).unwrap();
        }
        let taken: u64 = held
            .allocations
            .iter()
            .flatten()
            .map(|run| u64::from(run.count()))
            .sum();
        assert_eq!(taken, HELD as u64 * 2048);
        assert_eq!(allocator.free_blocks(), free - taken);
        assert!(held.pieces >= 2 * HELD as u64);
    }

    #[test]
    fn missing_entry_is_looked_up_once() {
        let mut metrics = Metrics::default();
        fail(&open(64).unwrap(), "64 GiB", &mut metrics).unwrap();
        let scanned = |name| {
            metrics
                .of(&format!("{name}, 64 GiB"), SCANNED)
                .unwrap()
                .median()
        };
        let [first, again] = TOO_LONG_NAMES.map(scanned);
        assert!(first >= 1.0 && again < first, "{again} after {first}");
    }

    #[test]
    fn goals_of_visited_groups_lie_apart_in_all_of_the_disk() {
        let geometry = open(1 << 10).unwrap().geometry();
        let block = |number| block_in(&geometry, number, GOAL_GROUPS, 0.999);
        assert_eq!(geometry.locate(block(0)).unwrap().0.0, 0);
        assert_eq!(geometry.locate(block(1)).unwrap().0.0, 16);
        assert_eq!(geometry.locate(block(511)).unwrap().0.0, 8176);
    }

    #[test]
    fn case_counts_what_it_does() {
        let allocator = open(64).unwrap();
        let found = one(&allocator, CASES[4], 200).unwrap();
        assert_eq!(found.latencies.count(), 200);
        assert!(found.scanned >= 1.0 && found.pieces >= 1.0);
    }
}

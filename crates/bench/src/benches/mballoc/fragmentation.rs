//! Extents of files that grow concurrently, on an empty disk and on aged ones.
//!
//! 64 writers append 4 KiB each time, in random order, until every file has 64 MiB. Then the files
//! are closed. The table also has the minimum that any allocator could reach with the same free
//! space: the number of free runs, the longest first, that the files need. The runs themselves are
//! a result of the allocator's own ageing.

use std::time::Instant;

use anyhow::Result;
use extant_mballoc::{BlockRange, Goal, Options as Behaviour, Request};

use super::ageing::Aged;
use super::{append, behaviours};
use crate::bench::{Context, Outcome};
use crate::metrics::Metrics;
use crate::random::Random;
use crate::table::{Table, number};

/// A disk, and the goals of its metrics.
pub(super) struct Disk {
    name: &'static str,
    gibibytes: u64,
    /// Share of used blocks before the test.
    share: f64,
    /// Goal: extents per file.
    pub(super) extents: &'static str,
    /// Goal: free extents per file.
    pub(super) free: &'static str,
}

/// The aged ones are larger, so that the files fit into the free space.
pub(super) const DISKS: [Disk; 3] = [
    Disk {
        name: "16 GiB, empty",
        gibibytes: 16,
        share: 0.0,
        extents: "extents-per-file-empty",
        free: "free-extents-per-file-empty",
    },
    Disk {
        name: "64 GiB, 50% full",
        gibibytes: 64,
        share: 0.5,
        extents: "extents-per-file-half-full",
        free: "free-extents-per-file-half-full",
    },
    Disk {
        name: "64 GiB, 90% full",
        gibibytes: 64,
        share: 0.9,
        extents: "extents-per-file-90-full",
        free: "free-extents-per-file-90-full",
    },
];

pub(super) const WRITERS: usize = 64;
/// Blocks of a file, 64 MiB.
const BLOCKS: u32 = 16_384;
/// Numbers of the writers' owners, apart from those of the files before.
const FIRST_OWNER: u64 = 1 << 40;
const SEED: u64 = 64;

const EXTENTS: &str = "extents/file";
const EXTENTS_MAX: &str = "extents, most";
const EXTENTS_MIN_POSSIBLE: &str = "extents/file, least possible";
pub(super) const FREE: &str = "free extents/file";
const FREE_BEFORE: &str = "free extents/file before";
const AGED: &str = "ns/operation aged";

/// Extents of the files, and the free space.
struct FragmentationResult {
    extents: f64,
    most: usize,
    least: f64,
    free_before: f64,
    free: f64,
    aged_nanos: Option<f64>,
}

pub(super) fn measure(context: &Context, outcome: &mut Outcome) -> Result<()> {
    let operations = context.options.pick(10_000_000, 150_000);
    let behaviours = behaviours();
    for disk in &DISKS {
        for (name, options) in &behaviours {
            context.step(format!("fragmentation: {}, {name}", disk.name));
            let found = one(disk, options, operations)?;
            let metric = format!("{}, {name}", disk.name);
            let mut record = |unit, value| outcome.metrics.record(&metric, unit, "", value);
            record(EXTENTS, found.extents);
            record(EXTENTS_MAX, found.most as f64);
            record(EXTENTS_MIN_POSSIBLE, found.least);
            record(FREE_BEFORE, found.free_before);
            record(FREE, found.free);
            if let Some(nanos) = found.aged_nanos {
                record(AGED, nanos);
            }
        }
        let ours = format!("{}, {}", disk.name, behaviours[0].0);
        let value = |unit| anyhow::Ok(outcome.metrics.of(&ours, unit)?.median());
        let (extents, free) = (value(EXTENTS)?, value(FREE)?);
        outcome.goals.insert(disk.extents, extents.into());
        outcome.goals.insert(disk.free, free.into());
    }
    let names = behaviours.map(|(name, _)| name);
    outcome.tables.push(table(&names, &outcome.metrics)?);
    outcome.notes.push(format!(
        "aged by {operations} creates and removals of files of 4 KiB to 4 MiB, log-uniform; free extents \
         are counted when all files are closed, for each file on the disk, old ones among them; one run, \
         which a seed repeats exactly"
    ));
    Ok(())
}

fn one(disk: &Disk, options: &Behaviour, operations: u64) -> Result<FragmentationResult> {
    let start = Instant::now();
    let aged = Aged::new(options, disk.gibibytes, disk.share, operations)?;
    let aged_nanos = start.elapsed().as_nanos() as f64 / operations as f64;
    let runs = aged.free_runs();
    let extents = write(&aged, BLOCKS)?;
    aged.allocator.check().map_err(anyhow::Error::msg)?;
    let files = (aged.files() + WRITERS) as f64;
    Ok(FragmentationResult {
        extents: extents.iter().sum::<usize>() as f64 / WRITERS as f64,
        most: extents.iter().copied().max().unwrap_or(0),
        least: least_extents(&runs) as f64 / WRITERS as f64,
        free_before: runs.len() as f64 / aged.files().max(1) as f64,
        free: aged.free_runs().len() as f64 / files,
        aged_nanos: (aged.files() > 0).then_some(aged_nanos),
    })
}

/// Writes files of `blocks` blocks and closes them; returns the extents of each.
pub(super) fn write(aged: &Aged, blocks: u32) -> Result<Vec<usize>> {
    let mut random = Random::new(SEED);
    let owners: Vec<_> = (0..WRITERS as u64)
        .map(|number| aged.allocator.owner(FIRST_OWNER + number, 0))
        .collect();
    let mut files: Vec<Vec<BlockRange>> = vec![Vec::new(); WRITERS];
    let mut left = [blocks; WRITERS];
    let mut open: Vec<_> = (0..WRITERS).collect();
    while !open.is_empty() {
        let chosen = (random.fraction() * open.len() as f64) as usize;
        let writer = open[chosen];
        let mut request = Request::data(1);
        if let Some(last) = files[writer].last() {
            request.goal = Goal::Follow(last.end());
        }
        append(
            &mut files[writer],
            owners[writer].allocate(&request)?.keep(),
        );
        left[writer] -= 1;
        if left[writer] == 0 {
            open.swap_remove(chosen);
        }
    }
    Ok(files.iter().map(Vec::len).collect())
}

/// Extents of all files together if the longest of these runs were filled one after the other.
fn least_extents(runs: &[u32]) -> usize {
    let mut left = WRITERS as u64 * u64::from(BLOCKS);
    let taken = runs.iter().take_while(|run| {
        let is_needed = left > 0;
        left = left.saturating_sub(u64::from(**run));
        is_needed
    });
    taken.count().max(WRITERS)
}

fn table(names: &[&str], metrics: &Metrics) -> Result<Table> {
    let mut table = Table::new(&[
        "64 files of 64 MiB, concurrently",
        EXTENTS,
        "most",
        "least possible",
        FREE,
        "before",
        AGED,
    ]);
    for disk in &DISKS {
        for name in names {
            let metric = format!("{}, {name}", disk.name);
            let mut row = vec![metric.clone()];
            for unit in [
                EXTENTS,
                EXTENTS_MAX,
                EXTENTS_MIN_POSSIBLE,
                FREE,
                FREE_BEFORE,
                AGED,
            ] {
                let metric = metrics.get(&metric, unit);
                row.push(metric.map_or_else(String::new, |metric| number(metric.median())));
            }
            table.row(row);
        }
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_extents_are_the_longest_runs_and_one_for_each_file() {
        assert_eq!(least_extents(&[u32::MAX]), 64);
        assert_eq!(least_extents(&[BLOCKS; 100]), 64);
        assert_eq!(least_extents(&[BLOCKS / 2; 200]), 128);
        assert_eq!(least_extents(&[64 * BLOCKS - 70, 1, 1, 1]), 64);
    }

    #[test]
    fn files_of_the_old_behaviour_lie_in_more_pieces() {
        let extents = |options: Behaviour| {
            let aged = Aged::new(&options, 1, 0.0, 0).unwrap();
            write(&aged, 512).unwrap().iter().sum::<usize>()
        };
        let (new, old) = (
            extents(Behaviour::default()),
            extents(Behaviour::before_scalability_patches()),
        );
        assert!(new >= WRITERS && old > 10 * new, "{new} against {old}");
    }
}

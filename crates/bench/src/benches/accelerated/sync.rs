//! The third table of "Forced zeroes" on the guest's kernel: 4 KiB direct writes, each with
//! fdatasync, to unwritten and written files, and what each costs the disk.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::guest::{Script, extant, line, shown};
use crate::bench::{Options, Outcome, rounds, size_word};
use crate::fio::{self, Fio};
use crate::goal::Goal;
use crate::metrics::Metrics;
use crate::peers;
use crate::table::{Table, median, number, spread};

const IOPS: &str = "IOPS";
const KIB: &str = "KiB a write";
const FLUSHES: &str = "flushes a write";

/// Name, directory, disk, mkfs and its options, goal. The options make mkfs finish its work.
pub(super) const FILESYSTEMS: [Filesystem; 3] = [
    Filesystem {
        name: "ext4",
        place: "/ext4",
        disk: "/dev/disk2",
        kind: "ext4 -E lazy_itable_init=0,lazy_journal_init=0",
    },
    Filesystem {
        name: "ext4 fast_commit",
        place: "/fast_commit",
        disk: "/dev/disk3",
        kind: "ext4 -E lazy_itable_init=0,lazy_journal_init=0 -O fast_commit",
    },
    Filesystem {
        name: "xfs",
        place: "/xfs",
        disk: "/dev/disk4",
        kind: "xfs",
    },
];

pub(super) const GOALS: [Goal; 3] = [
    Goal::at_least("ext4-create-over-written", 0.8, ""),
    Goal::at_least("fast-commit-create-over-written", 0.8, ""),
    Goal::at_least("xfs-create-over-written", 0.8, ""),
];

/// A file system of the guest.
#[derive(Clone, Copy)]
pub(super) struct Filesystem {
    name: &'static str,
    place: &'static str,
    disk: &'static str,
    kind: &'static str,
}

/// State of the file before the writes.
#[derive(Clone, Copy, Debug)]
enum State {
    Unwritten,
    Written,
    Create,
}

const STATES: [State; 3] = [State::Unwritten, State::Written, State::Create];

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::Unwritten => "unwritten",
            Self::Written => "written",
            Self::Create => "extant create",
        }
    }

    fn metric(self, filesystem: &Filesystem) -> String {
        format!("{}, {}", filesystem.name, self.name())
    }

    fn make(self, file: &Path, bytes: u64) -> String {
        shown(&match self {
            Self::Unwritten => peers::fallocate(file, bytes, &[]),
            Self::Written => peers::dd(file, bytes),
            Self::Create => extant(&["create", &file.to_string_lossy(), &size_word(bytes)]),
        })
    }
}

/// Bytes of the files: more than the time suffices for.
pub(super) fn file_bytes(options: &Options) -> u64 {
    options.pick(256 << 20, 64 << 20)
}

/// Appends the samples.
pub(super) fn add(script: &mut Script, runs: usize, options: &Options) {
    for Filesystem {
        place, disk, kind, ..
    } in FILESYSTEMS
    {
        script.prepare(&format!("formatted {disk} {place} {kind}"));
    }
    let samples: Vec<_> = FILESYSTEMS
        .iter()
        .flat_map(|filesystem| STATES.map(|state| (filesystem, state)))
        .collect();
    for (_, at) in rounds(runs, samples.len()) {
        let (filesystem, state) = samples[at];
        sample(script, filesystem, state, options);
    }
}

fn sample(script: &mut Script, filesystem: &'static Filesystem, state: State, options: &Options) {
    let file = PathBuf::from(filesystem.place).join("file");
    let bytes = file_bytes(options);
    let made = state.make(&file, bytes);
    let job = Fio::sync4k(&file, bytes, options.pick(4, 2));
    let job = line(&job.command());
    let (place, disk) = (filesystem.place, filesystem.disk);
    let lines = format!(
        "settle {place}\n{made} > /tmp/said 2>&1\nsync\nsleep 0.3\ncounters {disk}\n{job}\n\
         counters {disk}\nrm {}",
        file.display()
    );
    let command = format!("{made}; {job}");
    script.sample(&lines, move |said, metrics| {
        let (before, rest) = said.split_once('\n').context("no counters")?;
        let (json, after) = rest.rsplit_once("counters").context("no counters")?;
        let (before, after) = (Counters::parse(before)?, Counters::parse(after)?);
        let writes = fio::parse(json)?;
        let count = writes.requests as f64;
        let name = state.metric(filesystem);
        metrics.record(&name, IOPS, &command, writes.iops);
        let kib = (after.sectors_written - before.sectors_written) as f64 / 2.0;
        metrics.record(&name, KIB, "", kib / count);
        let flushes = (after.flushes - before.flushes) as f64;
        metrics.record(&name, FLUSHES, "", flushes / count);
        Ok(())
    });
}

/// The kernel's count of a disk's requests (`Documentation/block/stat.rst`).
struct Counters {
    sectors_written: u64,
    flushes: u64,
}

impl Counters {
    fn parse(text: &str) -> Result<Self> {
        let text = text.trim_start_matches("counters");
        let fields: Vec<_> = text.split_whitespace().collect();
        let field = |at: usize| -> Result<u64> {
            Ok(fields.get(at).context("a counter is missing")?.parse()?)
        };
        Ok(Self {
            sectors_written: field(6)?,
            flushes: field(15)?,
        })
    }
}

/// Adds the table and the values of the goals.
pub(super) fn report(metrics: &Metrics, outcome: &mut Outcome) -> Result<()> {
    let mut table = Table::new(&[
        "4 KiB with fdatasync",
        IOPS,
        "spread",
        "over unwritten",
        KIB,
        FLUSHES,
    ]);
    for (filesystem, goal) in FILESYSTEMS.iter().zip(&GOALS) {
        for state in STATES {
            let name = state.metric(filesystem);
            let unwritten = State::Unwritten.metric(filesystem);
            let rate = metrics.of(&name, IOPS)?;
            table.row(vec![
                name.clone(),
                number(rate.median()),
                spread(Some(rate)),
                number(metrics.ratio(&name, &unwritten, IOPS)?),
                median(metrics.get(&name, KIB)),
                median(metrics.get(&name, FLUSHES)),
            ]);
        }
        let of = |state: State| state.metric(filesystem);
        let ratio = metrics.ratio(&of(State::Create), &of(State::Written), IOPS)?;
        outcome.goals.insert(goal.name, ratio.into());
    }
    outcome.tables.push(table);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_those_of_the_kernels_line() {
        let line = "counters 10 0 80 3 20 0 160 9 0 7 12 1 0 2048 0 6 4";
        let counters = Counters::parse(line).unwrap();
        assert_eq!((counters.sectors_written, counters.flushes), (160, 6));
        assert!(Counters::parse("counters 1 2").is_err());
    }
}

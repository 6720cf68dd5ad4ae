//! `methods`: the measurement of "posix_fallocate" (docs/background.md): ways to a file of zeros,
//! in seconds and extents, on ext3, ext4, xfs and btrfs.
//!
//! Each file system is on a direct loop device over one written file of the measured directory, so
//! that every method finds the same blocks. Times are those of whole commands, with `fsync` before
//! the exit. Files of btrfs are in a directory without copy-on-write.

mod filesystem;
mod method;

use std::fs;

use anyhow::{Context as _, Result};
use extant_space::ByteSize;
use extant_testkit::oracle::filefrag_count;

use crate::bench::{Bench, Context, Options, Outcome, rounds, size_word};
use crate::goal::Goal;
use crate::measured::{measure, mib};
use crate::memory;
use crate::metrics::Metrics;
use crate::needs::Need;
use crate::table::{Table, median, number, spread};
use filesystem::{Kind, Mounted};
use method::Method;
pub(crate) use method::{WORD, serve};

const SECONDS: &str = "s";
const EXTENTS: &str = "extents";
const PEERS_GOAL: &str = "fastest-written-over-create";
const EXTENTS_GOAL: &str = "extents-over-fallocate";

/// The bench.
pub struct Methods;

impl Bench for Methods {
    fn name(&self) -> &'static str {
        "methods"
    }

    fn about(&self) -> &'static str {
        "a file of zeros by posix_fallocate, mmap, writes of 4 KiB to 2 MiB and extant create, on 4 file systems"
    }

    fn needs(&self) -> &'static [Need] {
        &[
            Need::Program("python3"),
            Need::Program("filefrag"),
            Need::Program("mkfs.ext3"),
            Need::Program("mkfs.xfs"),
            Need::Program("mkfs.btrfs"),
            Need::Root,
        ]
    }

    fn goals(&self) -> &'static [Goal] {
        const {
            &[
                Goal::at_least(PEERS_GOAL, 1.2, ""),
                Goal::at_most(EXTENTS_GOAL, 1.0, ""),
            ]
        }
    }

    fn disk_bytes(&self, options: &Options) -> u64 {
        backing_bytes(size(options))
    }

    fn run(&self, context: &Context) -> Result<Outcome> {
        let runs = context.options.runs(5, 1);
        let size = size(&context.options);
        let mut metrics = Metrics::default();
        let backing = context.file("backing");
        context.step("the file under the file systems");
        let mut create = context.extant();
        create.args(["create", "--quiet"]).arg(&backing);
        measure(create.arg(size_word(backing_bytes(size))))?;
        for kind in Kind::ALL {
            let mounted = Mounted::new(kind, &backing, context)?;
            for (round, method) in rounds(runs, Method::ALL.len()) {
                let method = Method::ALL[method];
                if method.is_possible(kind) {
                    context.step(format!("{kind}, round {}: {method}", round + 1));
                    sample(context, &mounted, method, size, &mut metrics)?;
                }
            }
        }
        outcome(size, runs, metrics)
    }
}

fn size(options: &Options) -> u64 {
    options.size(1 << 30, 256 << 20)
}

/// Room for the file, and for a journal and the smallest xfs.
fn backing_bytes(size: u64) -> u64 {
    2 * size + (1 << 30)
}

fn name(kind: Kind, method: Method) -> String {
    format!("{kind}, {method}")
}

fn sample(
    context: &Context,
    mounted: &Mounted,
    method: Method,
    size: u64,
    metrics: &mut Metrics,
) -> Result<()> {
    let file = mounted.directory.join("file");
    // Buffered methods find memory that was just used, which favours them.
    memory::touch(size / 4 * 5)?;
    context.settle();
    let command = method.command(context, &file, size)?;
    let taken = measure(&command)?;
    let name = name(mounted.kind, method);
    let shown = method.shown(context, &command);
    metrics.record(&name, SECONDS, &shown, taken.seconds);
    metrics.record(&name, EXTENTS, &shown, filefrag_count(&file) as f64);
    Ok(fs::remove_file(&file)?)
}

fn outcome(size: u64, runs: usize, metrics: Metrics) -> Result<Outcome> {
    let mut table = Table::new(&[
        "file system, method",
        SECONDS,
        "spread",
        "MiB/s",
        "over extant create",
        EXTENTS,
        "spread",
    ]);
    let (mut least, mut most_extents) = (Vec::new(), f64::MIN);
    for kind in Kind::ALL {
        let create = name(kind, Method::Create);
        for method in Method::ALL {
            let name = name(kind, method);
            let Some(seconds) = metrics.get(&name, SECONDS) else {
                continue;
            };
            let ratio = metrics.ratio(&name, &create, SECONDS)?;
            if method != Method::Create && method.writes(kind) {
                least.push((ratio, name.clone()));
            }
            let extents = metrics.get(&name, EXTENTS);
            table.row(vec![
                name.clone(),
                median(Some(seconds)),
                spread(Some(seconds)),
                number(mib(size) / seconds.median()),
                number(ratio),
                median(extents),
                spread(extents),
            ]);
        }
        let fallocate = self::name(kind, Method::PosixFallocate);
        most_extents = most_extents.max(metrics.ratio(&create, &fallocate, EXTENTS)?);
    }
    let least = least.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
    let (least, fastest) = least.context("no written method")?;
    let mut outcome = Outcome {
        title: format!("{} each, {runs} rounds", ByteSize(size)),
        tables: vec![table],
        notes: vec![
            format!("{PEERS_GOAL}: the least is {fastest}"),
            "file systems on a direct loop device over a written file; whole commands with fsync; warm memory"
                .to_owned(),
            "posix_fallocate leaves unwritten extents, but on ext3: its blocks have no such state, \
             fallocate(2) fails with EOPNOTSUPP, and glibc writes a byte into each block"
                .to_owned(),
        ],
        ..Outcome::default()
    };
    outcome.goals.insert(PEERS_GOAL, least.into());
    outcome.goals.insert(EXTENTS_GOAL, most_extents.into());
    outcome.metrics = metrics;
    Ok(outcome)
}

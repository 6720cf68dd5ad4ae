//! `sync4k`: the gain of written space: small durable writes to files in each state.
//!
//! Seeds/0's third table: 4 KiB direct writes one after the other, each followed by
//! fdatasync, to a sparse, an unwritten, a written file, and to one made by
//! `extant create`; on the machine's disk and on loop devices over memory. Every sample has a fresh
//! file and writes each block at most once.
//!
//! The disk has the seed's sizes, 5 GiB and 20 s. The files on loop devices have 2 GiB: more than
//! 20 s of these writes take, where three of 5 GiB exceed the memory.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::Result;
use extant_space::ByteSize;
use extant_testkit::command::run;
use extant_testkit::scratch::{Filesystem, Scratch};

use crate::bench::{Bench, Context, Options, Outcome, rounds, size_word};
use crate::fio::Fio;
use crate::goal::Goal;
use crate::metrics::Metrics;
use crate::needs::Need;
use crate::peers;
use crate::table::{Table, number, spread};

const IOPS: &str = "IOPS";

/// The bench.
pub struct Sync4k;

/// FileState of the file before the writes.
#[derive(Clone, Copy, Debug)]
enum FileState {
    Sparse,
    Unwritten,
    Written,
    Create,
}

const STATES: [FileState; 4] = [
    FileState::Sparse,
    FileState::Unwritten,
    FileState::Written,
    FileState::Create,
];

impl FileState {
    fn name(self) -> &'static str {
        match self {
            Self::Sparse => "sparse",
            Self::Unwritten => "unwritten",
            Self::Written => "written",
            Self::Create => "extant create",
        }
    }
}

/// A file system, the word for it in goals, and its goal.
struct BenchFilesystem {
    name: &'static str,
    goal: &'static str,
    path: PathBuf,
    /// Size of its files.
    size: u64,
    /// Mounted as long as this lives.
    _scratch: Option<Scratch>,
}

const DISK: (&str, &str) = ("disk", "disk-create-over-written");
const LOOPS: [(Filesystem, &str, &str); 3] = [
    (Filesystem::Ext4, "loop ext4", "ext4-create-over-written"),
    (
        Filesystem::Ext4FastCommit,
        "loop ext4 fast_commit",
        "fast-commit-create-over-written",
    ),
    (Filesystem::Xfs, "loop xfs", "xfs-create-over-written"),
];

impl Bench for Sync4k {
    fn name(&self) -> &'static str {
        "sync4k"
    }

    fn about(&self) -> &'static str {
        "4 KiB direct writes with fdatasync to sparse, unwritten and written files"
    }

    fn needs(&self) -> &'static [Need] {
        &[
            Need::Program("fio"),
            Need::Program("fallocate"),
            Need::Program("mkfs.ext4"),
            Need::Program("mkfs.xfs"),
            Need::Filesystem("xfs"),
            Need::Root,
        ]
    }

    fn goals(&self) -> &'static [Goal] {
        const {
            &[
                Goal::at_least(DISK.1, 0.9, ""),
                Goal::at_least(LOOPS[0].2, 0.9, ""),
                Goal::at_least(LOOPS[1].2, 0.9, ""),
                Goal::at_least(LOOPS[2].2, 0.9, ""),
            ]
        }
    }

    fn disk_bytes(&self, options: &Options) -> u64 {
        disk_file(options) + (1 << 30)
    }

    fn run(&self, context: &Context) -> Result<Outcome> {
        let runs = context.options.runs(5, 1);
        let places = places(context)?;
        let mut metrics = Metrics::default();
        let samples: Vec<_> = places
            .iter()
            .flat_map(|place| STATES.map(|state| (place, state)))
            .collect();
        for (round, sample) in rounds(runs, samples.len()) {
            let (place, state) = samples[sample];
            context.step(format!(
                "round {}: {}, {}",
                round + 1,
                place.name,
                state.name()
            ));
            one(context, place, state, &mut metrics)?;
        }
        outcome(&places, runs, seconds(&context.options), metrics)
    }
}

fn disk_file(options: &Options) -> u64 {
    options.size(5 << 30, 256 << 20)
}

fn seconds(options: &Options) -> u32 {
    options.pick(20, 2)
}

fn places(context: &Context) -> Result<Vec<BenchFilesystem>> {
    let mut places = vec![BenchFilesystem {
        name: DISK.0,
        goal: DISK.1,
        path: context.path().to_owned(),
        size: disk_file(&context.options),
        _scratch: None,
    }];
    for (filesystem, name, goal) in LOOPS {
        context.step(format!("{name}, in memory"));
        let size = context.options.size(2 << 30, 256 << 20);
        // Room for the file, the journal and some more, for a layout like on a disk.
        let device = size + (size / 4).max(512 << 20);
        let scratch = Scratch::builder(filesystem, device)
            .memory(device + (device >> 4))
            .build();
        let path = scratch.path().to_owned();
        warm(&path, device)?;
        places.push(BenchFilesystem {
            name,
            goal,
            path,
            size,
            _scratch: Some(scratch),
        });
    }
    Ok(places)
}

/// Fills the file system once, so that no sample is the first to touch its memory.
fn warm(directory: &Path, device: u64) -> Result<()> {
    let file = directory.join("warm");
    let mut command = peers::dd(&file, device / 10 * 8);
    run(&mut command)?;
    fs::remove_file(file)?;
    rustix::fs::sync();
    Ok(())
}

/// Makes a file in `state`; the method, as text.
fn make(context: &Context, file: &Path, state: FileState, size: u64) -> Result<String> {
    let mut command = match state {
        FileState::Sparse => {
            File::create_new(file)?.set_len(size)?;
            return Ok(format!("truncate -s {size} FILE"));
        }
        FileState::Unwritten => peers::fallocate(file, size, &[]),
        FileState::Written => peers::dd(file, size),
        FileState::Create => {
            let mut command = context.extant();
            command.arg("create").arg(file).arg(size_word(size));
            command
        }
    };
    run(&mut command)?;
    let shown = context.shown(&command);
    Ok(shown
        .replace(&file.display().to_string(), "FILE")
        .replace("DIR/file", "FILE"))
}

fn one(
    context: &Context,
    place: &BenchFilesystem,
    state: FileState,
    metrics: &mut Metrics,
) -> Result<()> {
    let size = place.size;
    // Space of the file before is free on disk only after a commit.
    rustix::fs::sync();
    let file = place.path.join("file");
    let made = make(context, &file, state, size)?;
    context.settle();
    let job = Fio::sync4k(&file, size, seconds(&context.options));
    let writes = job.run()?;
    let shown = context.shown(&job.command());
    let shown = shown
        .replace(&file.display().to_string(), "FILE")
        .replace("DIR/file", "FILE");
    let name = format!("{}, {}", place.name, state.name());
    metrics.record(&name, IOPS, &format!("{made}; {shown}"), writes.iops);
    Ok(fs::remove_file(&file)?)
}

fn outcome(
    places: &[BenchFilesystem],
    runs: usize,
    seconds: u32,
    metrics: Metrics,
) -> Result<Outcome> {
    let sizes: Vec<_> = places
        .iter()
        .map(|place| format!("{} {}", ByteSize(place.size), place.name))
        .collect();
    let mut heading = vec!["IOPS"];
    heading.extend(places.iter().flat_map(|place| [place.name, "spread"]));
    let mut table = Table::new(&heading);
    for state in STATES {
        let mut row = vec![state.name().to_owned()];
        for place in places {
            let metric = metrics.of(&format!("{}, {}", place.name, state.name()), IOPS)?;
            row.extend([number(metric.median()), spread(Some(metric))]);
        }
        table.row(row);
    }
    let mut outcome = Outcome {
        title: format!("{seconds} s, {runs} rounds; files: {}", sizes.join(", ")),
        tables: vec![table],
        notes: vec![
            "the loop devices are on files in memory (tmpfs), touched beforehand".to_owned(),
            "one write at a time waits mostly for wake-ups: on loop devices these rows come out \
             higher while the other core is busy; compare rows of one run only"
                .to_owned(),
        ],
        ..Outcome::default()
    };
    for place in places {
        let of = |state: FileState| format!("{}, {}", place.name, state.name());
        let ratio = metrics.ratio(&of(FileState::Create), &of(FileState::Written), IOPS)?;
        outcome.goals.insert(place.goal, ratio.into());
    }
    outcome.metrics = metrics;
    Ok(outcome)
}

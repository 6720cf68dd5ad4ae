//! `stack`: the test of "ASSIGN_RANGE" (docs/background.md): nested file systems, with and without
//! the allocation passed down.
//!
//! Memory, ext4, a file in it, a loop device, ext4, a file in it; once more with three levels. The
//! file systems are the engine's, in this process. The peer is the kernel's stack of the same
//! sizes, unchanged and with the allocation passed down by `extant assign`, over a direct and a
//! buffered loop device. Rows across processes have one file system of the engine on a file of the
//! kernel's ext4, directly and over NBD through one or two servers. Every sample has a new stack.
//!
//! All stacks are measured in memory, with the first size; those of the patches' author also with
//! the second, and both on the disk: there the lowest file is a sparse one of the measured
//! directory.
//!
//! The *pieces* of a file are its physically contiguous runs, as `filefrag` counts them. For the
//! files below, only the ranges that hold the program's file count.

pub(super) mod engine;
mod kernel;
pub(super) mod pieces;
mod processes;
mod program;

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use extant_blockdev::{
    Device, HostCache, HostDevice, HostOptions, MemoryDevice, OperationKind, StatisticsSnapshot,
};
use extant_ext4::Assign;
use extant_space::{ByteSize, SpaceFile};
use extant_testkit::scratch::DirectIo;
use tempfile::TempDir;

use crate::bench::{Bench, Context, Options, Outcome, rounds};
use crate::goal::Goal;
use crate::metrics::Metrics;
use crate::needs::Need;
use crate::table::{Table, median, number, spread};
use kernel::{Passing, Variant};
use program::Times;

const GIB: u64 = 1 << 30;
/// Arguments of mke2fs for all file systems. Few inodes and two backups of the descriptors: more
/// metadata would fragment the free space of these sizes.
const MKFS: &[&str] = &[
    "-q",
    "-F",
    "-b",
    "4096",
    "-T",
    "largefile4",
    "-O",
    "sparse_super2",
];

const PIECES_GOAL: &str = "backing-extents";
const DEEP_PIECES_GOAL: &str = "backing-extents-3-levels";
const KERNEL_PIECES_GOAL: &str = "kernel-backing-extents";
const PROCESS_PIECES_GOAL: &str = "process-backing-extents";
const ADDED_GOAL: &str = "extents-added";
const TIME_GOAL: &str = "off-over-assign";
const NBD_TIME_GOAL: &str = "nbd-assign-over-local";
const NBD_REQUESTS_GOAL: &str = "nbd-assign-requests";

const SECONDS: &str = "s";
const ALLOCATE: &str = "allocate, ms";
const SYNCS: &str = "syncs, ms";
const SLOWEST: &str = "slowest write, ms";
/// Pieces of the files, from the top one down, after the last write.
const PIECES: [&str; 3] = ["extents", "1 below", "2 below"];
/// Pieces that the writes added, in all files.
const ADDED: &str = "added";

/// Assigns that the allocation of the file became.
const ASSIGNS_OF_FILE: &str = "assigns of the file";

const KIB: f64 = 1024.0;
const MIB: f64 = KIB * KIB;
/// The reported statistics of requests to a device.
const OPERATIONS: [Counted; 4] = [
    counted(OperationKind::Assign, "assigns", Some(("MiB each", MIB))),
    counted(OperationKind::Write, "writes", Some(("KiB each", KIB))),
    counted(OperationKind::Read, "reads", None),
    counted(OperationKind::Flush, "flushes", None),
];

/// A kind of operation, the name of its count, and name and unit of its mean size.
#[derive(Clone, Copy)]
struct Counted {
    kind: OperationKind,
    count: &'static str,
    size: Option<(&'static str, f64)>,
}

const fn counted(
    kind: OperationKind,
    count: &'static str,
    size: Option<(&'static str, f64)>,
) -> Counted {
    Counted { kind, count, size }
}

/// The bench.
pub struct Stack;

/// A stack that is measured.
#[derive(Clone, Copy)]
struct Subject {
    name: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Engine {
        levels: usize,
        assign: Assign,
    },
    Kernel(Variant),
    /// The number of servers.
    Processes {
        servers: usize,
        assign: Assign,
    },
}

const OFF: Subject = engine("engine, off", 2, Assign::Off);
const ON: Subject = engine("engine, assign", 2, Assign::Try);
const REQUIRED: Subject = engine("engine, assign required", 2, Assign::Require);
const DEEP_OFF: Subject = engine("engine, 3 levels, off", 3, Assign::Off);
const DEEP_ON: Subject = engine("engine, 3 levels, assign", 3, Assign::Try);
const KERNEL_OFF: Subject = kernel("kernel, off", Passing::Off, DirectIo::On);
const KERNEL_ON: Subject = kernel("kernel, extant assign", Passing::Assign, DirectIo::On);
const BUFFERED_OFF: Subject = kernel("kernel, buffered, off", Passing::Off, DirectIo::Off);
const BUFFERED_ON: Subject = kernel(
    "kernel, buffered, extant assign",
    Passing::Assign,
    DirectIo::Off,
);
const LOCAL_ON: Subject = processes("host file, assign", 0, Assign::Try);
const NBD_OFF: Subject = processes("2 processes, off", 1, Assign::Off);
const NBD_ON: Subject = processes("2 processes, assign", 1, Assign::Try);
const CHAIN_ON: Subject = processes("3 processes, assign", 2, Assign::Try);
const SUBJECTS: [Subject; 13] = [
    OFF,
    ON,
    REQUIRED,
    DEEP_OFF,
    DEEP_ON,
    KERNEL_OFF,
    KERNEL_ON,
    BUFFERED_OFF,
    BUFFERED_ON,
    LOCAL_ON,
    NBD_OFF,
    NBD_ON,
    CHAIN_ON,
];

/// The stacks of the author.
const BOTH_SIZES: [Subject; 6] = [OFF, ON, KERNEL_OFF, KERNEL_ON, BUFFERED_OFF, BUFFERED_ON];

/// The storage of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Memory,
    Disk,
}

/// Stacks of one place and one size of the file.
struct Case {
    place: Place,
    size: u64,
    subjects: &'static [Subject],
}

impl Case {
    fn all(options: &Options) -> Vec<Self> {
        let first = options.size(GIB, GIB / 16);
        let case = |place, size, subjects| Self {
            place,
            size,
            subjects,
        };
        let mut cases = vec![
            case(Place::Memory, first, &SUBJECTS[..]),
            case(Place::Disk, first, &BOTH_SIZES[..]),
        ];
        if options.size_bytes.is_none() {
            let second = options.pick(4, 2) * first;
            cases.push(case(Place::Memory, second, &BOTH_SIZES[..]));
            cases.push(case(Place::Disk, second, &BOTH_SIZES[..]));
        }
        cases
    }

    fn name(&self, subject: Subject) -> String {
        let place = match self.place {
            Place::Memory => "",
            Place::Disk => "disk, ",
        };
        format!("{place}{}, {}", ByteSize(self.size), subject.name)
    }

    /// Room for the file, the journals and the bitmaps.
    fn room_bytes(&self) -> u64 {
        self.size + self.size / 4 + GIB
    }

    /// A directory for the lowest file of a sample, if it is on the disk.
    fn directory(&self, context: &Context) -> Result<Option<TempDir>> {
        Ok(match self.place {
            Place::Memory => None,
            Place::Disk => Some(tempfile::tempdir_in(context.path())?),
        })
    }
}

const fn engine(name: &'static str, levels: usize, assign: Assign) -> Subject {
    let kind = Kind::Engine { levels, assign };
    Subject { name, kind }
}

const fn processes(name: &'static str, servers: usize, assign: Assign) -> Subject {
    let kind = Kind::Processes { servers, assign };
    Subject { name, kind }
}

const fn kernel(name: &'static str, passing: Passing, direct_io: DirectIo) -> Subject {
    let kind = Kind::Kernel(Variant { passing, direct_io });
    Subject { name, kind }
}

impl Bench for Stack {
    fn name(&self) -> &'static str {
        "stack"
    }

    fn about(&self) -> &'static str {
        "strided writes to a file in an image in an image, with the allocation passed down and without"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Program("mkfs.ext4"), Need::Root]
    }

    fn goals(&self) -> &'static [Goal] {
        const {
            &[
                Goal::at_most(PIECES_GOAL, 3.0, ""),
                Goal::at_most(DEEP_PIECES_GOAL, 3.0, ""),
                Goal::at_most(KERNEL_PIECES_GOAL, 3.0, ""),
                Goal::at_most(PROCESS_PIECES_GOAL, 3.0, ""),
                Goal::at_most(ADDED_GOAL, 0.0, ""),
                Goal::at_least(TIME_GOAL, 1.0, ""),
                Goal::at_most(NBD_TIME_GOAL, 2.0, ""),
                Goal::at_most(NBD_REQUESTS_GOAL, 10.0, ""),
            ]
        }
    }

    fn disk_bytes(&self, options: &Options) -> u64 {
        let cases = Case::all(options);
        cases.iter().map(Case::room_bytes).max().unwrap_or(0)
    }

    fn run(&self, context: &Context) -> Result<Outcome> {
        let cases = Case::all(&context.options);
        let mut metrics = Metrics::default();
        for case in &cases {
            // The first case alone has goals, and takes a fraction of the others' time.
            let is_first = case.subjects.len() == SUBJECTS.len();
            let runs = context.options.runs(if is_first { 5 } else { 1 }, 1);
            for (round, at) in rounds(runs, case.subjects.len()) {
                let subject = case.subjects[at];
                context.step(format!("round {}: {}", round + 1, case.name(subject)));
                case.sample(context, subject, &mut metrics)?;
            }
        }
        outcome(&cases, metrics)
    }
}

impl Case {
    fn sample(&self, context: &Context, subject: Subject, metrics: &mut Metrics) -> Result<()> {
        let name = &self.name(subject);
        let directory = self.directory(context)?;
        if directory.is_some() {
            context.settle();
        }
        match subject.kind {
            Kind::Engine { levels, assign } => {
                let sizes: Vec<u64> = (1..=levels).rev().map(|level| self.size << level).collect();
                let lowest = lowest_device(sizes[0], directory.as_ref())?;
                let stack = engine::Stack::over(lowest, &sizes, assign)?;
                self.ours(name, stack, metrics)
            }
            Kind::Kernel(variant) => {
                let lowest = match &directory {
                    None => kernel::Lowest::Memory(self.room_bytes()),
                    Some(directory) => kernel::Lowest::Directory(directory.path()),
                };
                let (outer, inner) = (self.size << 2, self.size << 1);
                let stack = kernel::Stack::new(outer, inner, lowest, variant, context.extant())?;
                self.theirs(name, stack, metrics)
            }
            Kind::Processes { servers, assign } => {
                let (size, memory) = (self.size << 1, self.room_bytes());
                let stack =
                    processes::Stack::new(size, memory, servers, assign, || context.extant())?;
                self.across(name, stack, metrics)
            }
        }
    }

    fn ours(&self, name: &str, stack: engine::Stack, metrics: &mut Metrics) -> Result<()> {
        let size = self.size;
        let requests = stack.requests();
        let allocated = program::allocate(&stack, size)?;
        let before = pieces::pieces(&stack.files(), size)?;
        let times = program::write(&stack, size)?;
        for (layer, (now, then)) in stack.requests().iter().zip(&requests).enumerate() {
            record_requests(metrics, &layer_of(name, layer), &now.since(then));
        }
        let after = pieces::pieces(&stack.files(), size)?;
        stack.close()?;
        record(metrics, name, allocated, &times, &before, &after);
        Ok(())
    }

    fn across(&self, name: &str, stack: processes::Stack, metrics: &mut Metrics) -> Result<()> {
        let size = self.size;
        let start = stack.engine.requests();
        let allocated = program::allocate(&stack.engine, size)?;
        let requests = stack.engine.requests();
        let counted = requests[0].since(&start[0]);
        let assigns = counted.of(OperationKind::Assign).count();
        metrics.record(name, ASSIGNS_OF_FILE, "", assigns as f64);
        let before = stack.pieces(size)?;
        let times = program::write(&stack.engine, size)?;
        record_requests(
            metrics,
            &layer_of(name, 0),
            &stack.engine.requests()[0].since(&requests[0]),
        );
        let after = stack.pieces(size)?;
        stack.close()?;
        record(metrics, name, allocated, &times, &before, &after);
        Ok(())
    }

    fn theirs(&self, name: &str, stack: kernel::Stack, metrics: &mut Metrics) -> Result<()> {
        let pieces = || {
            let [file, backing] = stack.files()?;
            pieces::pieces(&[&file as &dyn SpaceFile, &backing], self.size)
        };
        let allocated = program::allocate(&stack, self.size)?;
        let before = pieces()?;
        let times = program::write(&stack, self.size)?;
        record(metrics, name, allocated, &times, &before, &pieces()?);
        Ok(())
    }
}

/// A device of `bytes` that is a hole: memory, or a direct file in `directory`.
fn lowest_device(bytes: u64, directory: Option<&TempDir>) -> Result<Arc<dyn Device>> {
    let Some(directory) = directory else {
        return Ok(Arc::new(MemoryDevice::new(bytes)));
    };
    let path = directory.path().join("disk");
    File::create_new(&path)?.set_len(bytes)?;
    let options = HostOptions {
        cache: HostCache::Direct,
        ..HostOptions::default()
    };
    Ok(Arc::new(HostDevice::open(&path, &options)?))
}

fn record(
    metrics: &mut Metrics,
    name: &str,
    allocated: Duration,
    times: &Times,
    before: &[usize],
    after: &[usize],
) {
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    let total = allocated + times.total;
    metrics.record(name, SECONDS, "", total.as_secs_f64());
    metrics.record(name, ALLOCATE, "", millis(allocated));
    metrics.record(name, SYNCS, "", millis(times.syncs));
    metrics.record(name, SLOWEST, "", millis(times.slowest));
    for (unit, pieces) in PIECES.into_iter().zip(after) {
        metrics.record(name, unit, "", *pieces as f64);
    }
    let added = after.iter().sum::<usize>() as f64 - before.iter().sum::<usize>() as f64;
    metrics.record(name, ADDED, "", added);
}

fn record_requests(metrics: &mut Metrics, name: &str, requests: &StatisticsSnapshot) {
    for Counted { kind, count, size } in OPERATIONS {
        let counters = requests.of(kind);
        metrics.record(name, count, "", counters.count() as f64);
        if let Some((name_of_size, unit)) = size
            && let Some(mean) = counters.size.mean()
        {
            metrics.record(name, name_of_size, "", mean / unit);
        }
    }
}

/// The device below a file system, counted from the top one down.
fn layer_of(name: &str, layer: usize) -> String {
    match layer {
        0 => format!("{name}: the top one's device"),
        _ => format!("{name}: {layer} below"),
    }
}

fn outcome(cases: &[Case], metrics: Metrics) -> Result<Outcome> {
    let sizes: Vec<String> = cases
        .iter()
        .filter(|case| case.place == Place::Memory)
        .map(|case| ByteSize(case.size).to_string())
        .collect();
    let mut outcome = Outcome {
        title: format!("{} in 4 KiB writes, 64 KiB apart", sizes.join(" and ")),
        tables: vec![
            times(cases, &metrics)?,
            pieces(cases, &metrics),
            requests(cases, &metrics),
        ],
        notes: vec![
            "everything is in memory but the rows of the disk; a sync after each of the 16 passes"
                .to_owned(),
            "extents: of the file, and of what holds it in each file below; added: by the writes, in all of them"
                .to_owned(),
            "on the disk the lowest file is sparse; extant assign and the engine's assign allocate it too"
                .to_owned(),
        ],
        ..Outcome::default()
    };
    // Goals are for the first size in memory.
    let of = |subject: Subject| cases[0].name(subject);
    let most =
        |subject: Subject, unit| -> Result<f64> { Ok(metrics.of(&of(subject), unit)?.max()) };
    let [_, below, two_below] = PIECES;
    let backing = most(ON, below)?.max(most(REQUIRED, below)?);
    let deep = most(DEEP_ON, below)?.max(most(DEEP_ON, two_below)?);
    let added = most(ON, ADDED)?.max(most(REQUIRED, ADDED)?);
    for (goal, value) in [
        (PIECES_GOAL, backing),
        (DEEP_PIECES_GOAL, deep),
        (
            KERNEL_PIECES_GOAL,
            most(KERNEL_ON, below)?.max(most(BUFFERED_ON, below)?),
        ),
        (
            PROCESS_PIECES_GOAL,
            most(NBD_ON, below)?.max(most(CHAIN_ON, below)?),
        ),
        (
            NBD_TIME_GOAL,
            metrics.ratio(&of(NBD_ON), &of(LOCAL_ON), ALLOCATE)?,
        ),
        (NBD_REQUESTS_GOAL, most(NBD_ON, ASSIGNS_OF_FILE)?),
        (ADDED_GOAL, added.max(most(DEEP_ON, ADDED)?)),
        (TIME_GOAL, metrics.ratio(&of(OFF), &of(ON), SECONDS)?),
    ] {
        outcome.goals.insert(goal, value.into());
    }
    outcome.metrics = metrics;
    Ok(outcome)
}

/// The subjects of all cases, and their names.
fn subjects(cases: &[Case]) -> impl Iterator<Item = (&Case, Subject, String)> {
    cases.iter().flat_map(|case| {
        let subjects = case.subjects.iter();
        subjects.map(move |subject| (case, *subject, case.name(*subject)))
    })
}

fn times(cases: &[Case], metrics: &Metrics) -> Result<Table> {
    let heading = [
        "stack",
        SECONDS,
        "spread",
        "off over it",
        ALLOCATE,
        SYNCS,
        SLOWEST,
        "most",
    ];
    let mut table = Table::new(&heading);
    for (case, subject, name) in subjects(cases) {
        let off = match subject.kind {
            Kind::Engine { levels: 2, .. } => OFF,
            Kind::Engine { .. } => DEEP_OFF,
            Kind::Kernel(variant) if variant.direct_io == DirectIo::On => KERNEL_OFF,
            Kind::Kernel(_) => BUFFERED_OFF,
            Kind::Processes { .. } => NBD_OFF,
        };
        let slowest = metrics.get(&name, SLOWEST);
        table.row(vec![
            name.clone(),
            median(metrics.get(&name, SECONDS)),
            spread(metrics.get(&name, SECONDS)),
            number(metrics.ratio(&case.name(off), &name, SECONDS)?),
            median(metrics.get(&name, ALLOCATE)),
            median(metrics.get(&name, SYNCS)),
            median(slowest),
            slowest.map_or_else(String::new, |metric| number(metric.max())),
        ]);
    }
    Ok(table)
}

fn pieces(cases: &[Case], metrics: &Metrics) -> Table {
    let units = [PIECES[0], PIECES[1], PIECES[2], ADDED];
    let heading = [&["stack"], &units[..]].concat();
    let mut table = Table::new(&heading);
    for (_, _, name) in subjects(cases) {
        let mut row = vec![name.clone()];
        row.extend(units.map(|unit| median(metrics.get(&name, unit))));
        table.row(row);
    }
    table
}

fn requests(cases: &[Case], metrics: &Metrics) -> Table {
    let units: Vec<&str> = OPERATIONS
        .iter()
        .flat_map(|counted| [Some(counted.count), counted.size.map(|(unit, _)| unit)])
        .flatten()
        .collect();
    let heading = [&["requests to"], &units[..]].concat();
    let mut table = Table::new(&heading);
    for (_, subject, name) in subjects(cases) {
        let levels = match subject.kind {
            Kind::Engine { levels, .. } => levels,
            Kind::Processes { .. } => 1,
            Kind::Kernel(_) => continue,
        };
        for layer in (0..levels).map(|layer| layer_of(&name, layer)) {
            let metric = |unit: &&str| median(metrics.get(&layer, unit));
            let mut row = vec![layer.clone()];
            row.extend(units.iter().map(metric));
            table.row(row);
        }
    }
    table
}

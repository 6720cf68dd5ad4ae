//! `stack`: the test of seeds/2, on file systems in files of file systems, with the allocation passed down and without.
//!
//! Memory, ext4, a file in it, a loop device, ext4, a file in it; with three levels once more. The file systems are the engine's, in
//! this process; beside them stands the kernel's stack of the same sizes, as it is and with the allocation passed
//! down by hand. Every sample has a stack of its own, made anew.
//!
//! A file is in as many *pieces* as one has to go to read it in order: what `filefrag` counts. Of the files below those are
//! counted that hold the program's file.

mod engine;
mod kernel;
mod places;
mod program;

use std::time::Duration;

use anyhow::Result;
use extant_blockdev::{OperationKind, StatisticsSnapshot};
use extant_ext4::Assign;
use extant_space::{ByteSize, SpaceFile};

use crate::bench::{Bench, Context, Options, Outcome, rounds};
use crate::figures::Figures;
use crate::goal::Goal;
use crate::needs::Need;
use crate::table::{Table, median, number, spread};
use kernel::Passing;
use program::Times;

const GIB: u64 = 1 << 30;
/// Arguments of mke2fs for all file systems. Few inodes, whose tables would lie in the way, and two backups of the
/// descriptors: where there are more they cut the free space of these sizes.
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
const ADDED_GOAL: &str = "extents-added";
const TIME_GOAL: &str = "off-over-assign";

const SECONDS: &str = "s";
const ALLOCATE: &str = "allocate, ms";
const SYNCS: &str = "syncs, ms";
const SLOWEST: &str = "slowest write, ms";
/// Pieces of the files, from the top one down, after the last write.
const PIECES: [&str; 3] = ["extents", "1 below", "2 below"];
/// Those of them that the writes added, in all files.
const ADDED: &str = "added";

const KIB: f64 = 1024.0;
const MIB: f64 = KIB * KIB;
/// What is shown of the requests to a device.
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
    Engine { levels: usize, assign: Assign },
    Kernel(Passing),
}

const OFF: Subject = engine("engine, off", 2, Assign::Off);
const ON: Subject = engine("engine, assign", 2, Assign::Try);
const REQUIRED: Subject = engine("engine, assign required", 2, Assign::Require);
const DEEP_OFF: Subject = engine("engine, 3 levels, off", 3, Assign::Off);
const DEEP_ON: Subject = engine("engine, 3 levels, assign", 3, Assign::Try);
const KERNEL_OFF: Subject = kernel("kernel, off", Passing::Off);
const KERNEL_ON: Subject = kernel("kernel, passed by hand", Passing::ByHand);
const SUBJECTS: [Subject; 7] = [OFF, ON, REQUIRED, DEEP_OFF, DEEP_ON, KERNEL_OFF, KERNEL_ON];

const fn engine(name: &'static str, levels: usize, assign: Assign) -> Subject {
    let kind = Kind::Engine { levels, assign };
    Subject { name, kind }
}

const fn kernel(name: &'static str, passing: Passing) -> Subject {
    let kind = Kind::Kernel(passing);
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
                Goal::at_most(ADDED_GOAL, 0.0, ""),
                Goal::at_least(TIME_GOAL, 1.0, ""),
            ]
        }
    }

    fn disk_bytes(&self, _: &Options) -> u64 {
        0
    }

    fn run(&self, context: &Context) -> Result<Outcome> {
        let runs = context.options.runs(5, 1);
        let size = context.options.size(GIB, GIB / 16);
        let mut figures = Figures::default();
        for (round, at) in rounds(runs, SUBJECTS.len()) {
            let subject = SUBJECTS[at];
            context.step(format!("round {}: {}", round + 1, subject.name));
            match subject.kind {
                Kind::Engine { levels, assign } => {
                    ours(subject.name, levels, assign, size, &mut figures)?;
                }
                Kind::Kernel(passing) => theirs(subject.name, passing, size, &mut figures)?,
            }
        }
        outcome(size, runs, figures)
    }
}

fn ours(name: &str, levels: usize, assign: Assign, size: u64, figures: &mut Figures) -> Result<()> {
    let sizes: Vec<u64> = (1..=levels).rev().map(|level| size << level).collect();
    let stack = engine::Stack::new(&sizes, assign)?;
    let requests = stack.requests();
    let allocated = program::allocate(&stack, size)?;
    let before = places::pieces(&stack.files(), size)?;
    let times = program::write(&stack, size)?;
    for (layer, (now, then)) in stack.requests().iter().zip(&requests).enumerate() {
        record_requests(figures, &layer_of(name, layer), &now.since(then));
    }
    let after = places::pieces(&stack.files(), size)?;
    stack.close()?;
    record(figures, name, allocated, &times, &before, &after);
    Ok(())
}

fn theirs(name: &str, passing: Passing, size: u64, figures: &mut Figures) -> Result<()> {
    let memory = 2 * size + GIB;
    let stack = kernel::Stack::new(size << 2, size << 1, memory, passing)?;
    let pieces = || {
        let [file, backing] = stack.files()?;
        places::pieces(&[&file as &dyn SpaceFile, &backing], size)
    };
    let allocated = program::allocate(&stack, size)?;
    let before = pieces()?;
    let times = program::write(&stack, size)?;
    record(figures, name, allocated, &times, &before, &pieces()?);
    Ok(())
}

fn record(
    figures: &mut Figures,
    name: &str,
    allocated: Duration,
    times: &Times,
    before: &[usize],
    after: &[usize],
) {
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    let total = allocated + times.total;
    figures.record(name, SECONDS, "", total.as_secs_f64());
    figures.record(name, ALLOCATE, "", millis(allocated));
    figures.record(name, SYNCS, "", millis(times.syncs));
    figures.record(name, SLOWEST, "", millis(times.slowest));
    for (unit, pieces) in PIECES.into_iter().zip(after) {
        figures.record(name, unit, "", *pieces as f64);
    }
    let added = after.iter().sum::<usize>() as f64 - before.iter().sum::<usize>() as f64;
    figures.record(name, ADDED, "", added);
}

fn record_requests(figures: &mut Figures, name: &str, requests: &StatisticsSnapshot) {
    for Counted { kind, count, size } in OPERATIONS {
        let counters = requests.of(kind);
        figures.record(name, count, "", counters.count() as f64);
        if let Some((name_of_size, unit)) = size
            && let Some(mean) = counters.size.mean()
        {
            figures.record(name, name_of_size, "", mean / unit);
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

fn outcome(size: u64, runs: usize, figures: Figures) -> Result<Outcome> {
    let mut outcome = Outcome {
        title: format!("{} in 4 KiB writes, 64 KiB apart, {runs} rounds", ByteSize(size)),
        tables: vec![times(&figures)?, pieces(&figures), requests(&figures)],
        notes: vec![
            "everything lies in memory; a sync after each of the 16 passes".to_owned(),
            "extents: of the file, and of what holds it in each file below; added: by the writes, in all of them"
                .to_owned(),
        ],
        ..Outcome::default()
    };
    let most =
        |subject: Subject, unit| -> Result<f64> { Ok(figures.of(subject.name, unit)?.max()) };
    let [_, below, two_below] = PIECES;
    let backing = most(ON, below)?.max(most(REQUIRED, below)?);
    let deep = most(DEEP_ON, below)?.max(most(DEEP_ON, two_below)?);
    let added = most(ON, ADDED)?.max(most(REQUIRED, ADDED)?);
    for (goal, value) in [
        (PIECES_GOAL, backing),
        (DEEP_PIECES_GOAL, deep),
        (ADDED_GOAL, added.max(most(DEEP_ON, ADDED)?)),
        (TIME_GOAL, figures.ratio(OFF.name, ON.name, SECONDS)?),
    ] {
        outcome.goals.insert(goal, value.into());
    }
    outcome.figures = figures;
    Ok(outcome)
}

fn times(figures: &Figures) -> Result<Table> {
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
    for Subject { name, kind } in SUBJECTS {
        let off = match kind {
            Kind::Engine { levels: 2, .. } => OFF.name,
            Kind::Engine { .. } => DEEP_OFF.name,
            Kind::Kernel(_) => KERNEL_OFF.name,
        };
        let slowest = figures.get(name, SLOWEST);
        table.row(vec![
            name.to_owned(),
            median(figures.get(name, SECONDS)),
            spread(figures.get(name, SECONDS)),
            number(figures.ratio(off, name, SECONDS)?),
            median(figures.get(name, ALLOCATE)),
            median(figures.get(name, SYNCS)),
            median(slowest),
            slowest.map_or_else(String::new, |figure| number(figure.max())),
        ]);
    }
    Ok(table)
}

fn pieces(figures: &Figures) -> Table {
    let units = [PIECES[0], PIECES[1], PIECES[2], ADDED];
    let heading = [&["stack"], &units[..]].concat();
    let mut table = Table::new(&heading);
    for Subject { name, .. } in SUBJECTS {
        let mut row = vec![name.to_owned()];
        row.extend(units.map(|unit| median(figures.get(name, unit))));
        table.row(row);
    }
    table
}

fn requests(figures: &Figures) -> Table {
    let units: Vec<&str> = OPERATIONS
        .iter()
        .flat_map(|counted| [Some(counted.count), counted.size.map(|(unit, _)| unit)])
        .flatten()
        .collect();
    let heading = [&["requests to"], &units[..]].concat();
    let mut table = Table::new(&heading);
    for Subject { name, kind } in SUBJECTS {
        let Kind::Engine { levels, .. } = kind else {
            continue;
        };
        for layer in (0..levels).map(|layer| layer_of(name, layer)) {
            let figure = |unit: &&str| median(figures.get(&layer, unit));
            let mut row = vec![layer.clone()];
            row.extend(units.iter().map(figure));
            table.row(row);
        }
    }
    table
}

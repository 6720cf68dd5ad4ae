//! `assign`: what others feel of a large assign, and into how many requests it is cut.
//!
//! Somebody reads and writes 4 KiB at random in a written part of a device while 64 GiB behind it
//! are assigned; then the same without the assign. The assigned part is discarded and assigned again until
//! there is enough to count; what happens during the discards is not counted.
//!
//! Devices: files of an ext4 in memory, so that no disk is in the way: below a loop device and as host
//! devices, through the page cache and directly; and a device in memory.

mod counted;
mod traffic;

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use extant_blockdev::{
    Assigned, Device, HostCache, HostDevice, HostOptions, LoopDevice, LoopOptions, MemoryDevice,
    Persistence,
};
use extant_hostfs::{Access, HostFile};
use extant_space::{ByteRange, ByteSize, SpaceFile};
use extant_testkit::scratch::{Filesystem, Scratch};

use crate::bench::{Bench, Context, Options, Outcome, rounds, size_word};
use crate::figures::Figures;
use crate::goal::Goal;
use crate::latency::Latencies;
use crate::needs::Need;
use crate::table::{Table, number};
use counted::Counted;
use traffic::{Phase, Times, beside};

const GIB: u64 = 1 << 30;
/// The file system below the loop device.
const SCRATCH: u64 = 256 * GIB;
/// Memory for it: its metadata and the written part of the file.
const SCRATCH_MEMORY: u64 = 4 * GIB;
/// The other question: how many requests a large assign becomes.
const HUGE: u64 = 100 * GIB;
/// Microseconds that a request beside an assign may take (p99). No factor of the time without: the file
/// system below holds the inode while it allocates, and the other request takes microseconds.
const WAIT_MAX: f64 = 1000.0;
const HUGE_REQUESTS: &str = "requests-of-100gib";
/// Assigns of a sample, at most.
const REPEATS_MAX: usize = 2000;

const QUANTILES: [(&str, f64); 3] = [("us p50", 0.5), ("us p99", 0.99), ("us max", 1.0)];
const P99: &str = QUANTILES[1].0;
const COUNT: &str = "requests";
const MILLIS: &str = "ms";
const PIECES: &str = "requests below";
const LARGEST: &str = "MiB at most";
const EXTENTS: &str = "extents";

const LOOP: Names = Names {
    device: "loop over ext4",
    read: "loop-read-p99",
    write: "loop-write-p99",
};
const HOST: Names = Names {
    device: "host file",
    read: "host-read-p99",
    write: "host-write-p99",
};
const DIRECT: Names = Names {
    device: "host file, direct",
    read: "direct-read-p99",
    write: "direct-write-p99",
};
const MEMORY: Names = Names {
    device: "memory",
    read: "memory-read-p99",
    write: "memory-write-p99",
};

/// The bench.
pub struct Assign;

/// A device and its goals, for reads and writes.
#[derive(Clone, Copy)]
struct Names {
    device: &'static str,
    read: &'static str,
    write: &'static str,
}

/// A device that is measured.
struct Subject {
    names: Names,
    device: Box<dyn Device>,
    /// The file below.
    path: Option<PathBuf>,
    /// It as the loop device sees it.
    file: Option<Arc<Counted<HostFile>>>,
}

impl Bench for Assign {
    fn name(&self) -> &'static str {
        "assign"
    }

    fn about(&self) -> &'static str {
        "latency of reads and writes beside a large assign; requests it is cut into"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Program("mkfs.ext4"), Need::Root]
    }

    fn goals(&self) -> &'static [Goal] {
        const {
            &[
                Goal::at_most(LOOP.read, WAIT_MAX, "us"),
                Goal::at_most(LOOP.write, WAIT_MAX, "us"),
                Goal::at_most(HOST.read, WAIT_MAX, "us"),
                Goal::at_most(HOST.write, WAIT_MAX, "us"),
                Goal::at_most(DIRECT.read, WAIT_MAX, "us"),
                Goal::at_most(DIRECT.write, WAIT_MAX, "us"),
                Goal::at_most(MEMORY.read, WAIT_MAX, "us"),
                Goal::at_most(MEMORY.write, WAIT_MAX, "us"),
                Goal::at_most(HUGE_REQUESTS, 150.0, ""),
            ]
        }
    }

    fn disk_bytes(&self, _: &Options) -> u64 {
        0
    }

    fn run(&self, context: &Context) -> Result<Outcome> {
        let runs = context.options.runs(5, 1);
        let size = context.options.size(64 * GIB, 64 * GIB).min(HUGE);
        let written = context.options.pick(256 << 20, 64 << 20);
        let window = Duration::from_millis(context.options.pick(1000, 200));
        context.step(format!("ext4 of {}, in memory", ByteSize(SCRATCH)));
        // Few inodes: mkfs writes the tables of all of them.
        let scratch = Scratch::builder(Filesystem::Ext4, SCRATCH)
            .mkfs_options(&["-T", "largefile4"])
            .memory(SCRATCH_MEMORY)
            .build();
        let subjects = [
            loop_device(&scratch, written)?,
            host(&scratch, written, HOST, HostCache::Buffered)?,
            host(&scratch, written, DIRECT, HostCache::Direct)?,
            memory(written)?,
        ];
        let mut figures = Figures::default();
        for (round, at) in rounds(runs, subjects.len()) {
            let subject = &subjects[at];
            context.step(format!("round {}: {}", round + 1, subject.names.device));
            let range = ByteRange::new(written, written + size);
            one(subject, range, window, &mut figures)?;
        }
        for subject in &subjects {
            huge(subject, written, &mut figures)?;
        }
        outcome(&subjects, size, runs, figures)
    }
}

fn loop_device(scratch: &Scratch, written: u64) -> Result<Subject> {
    let path = sparse_file(scratch, "loop", written)?;
    let file = Arc::new(Counted::new(HostFile::open(&path, Access::ReadWrite)?));
    let device = LoopDevice::new(Arc::clone(&file), LoopOptions::default())?;
    subject(LOOP, device, written, Some(path), Some(file))
}

fn host(scratch: &Scratch, written: u64, names: Names, cache: HostCache) -> Result<Subject> {
    let path = sparse_file(scratch, names.write, written)?;
    let options = HostOptions {
        cache,
        ..HostOptions::default()
    };
    let device = HostDevice::open(&path, &options)?;
    subject(names, device, written, Some(path), None)
}

fn memory(written: u64) -> Result<Subject> {
    let device = MemoryDevice::new(written + HUGE);
    subject(MEMORY, device, written, None, None)
}

fn sparse_file(scratch: &Scratch, name: &str, written: u64) -> Result<PathBuf> {
    let path = scratch.path().join(name);
    File::create_new(&path)?.set_len(written + HUGE)?;
    Ok(path)
}

fn subject(
    names: Names,
    device: impl Device + 'static,
    written: u64,
    path: Option<PathBuf>,
    file: Option<Arc<Counted<HostFile>>>,
) -> Result<Subject> {
    fill(&device, written)?;
    Ok(Subject {
        names,
        device: Box::new(device),
        path,
        file,
    })
}

/// Writes the first `bytes`.
fn fill(device: &dyn Device, bytes: u64) -> Result<()> {
    let data = vec![1; 1 << 20];
    for piece in ByteRange::new(0, bytes).chunks(data.len() as u64) {
        let data = &data[..piece.len() as usize];
        device.write_at(data, piece.start(), Persistence::Cached)?;
    }
    Ok(device.flush()?)
}

/// One round: traffic alone, then beside the assign of `range`.
fn one(subject: &Subject, range: ByteRange, window: Duration, figures: &mut Figures) -> Result<()> {
    let device = &*subject.device;
    let name = subject.names.device;
    device.discard(range)?;
    let ((), alone) = beside(device, range.start(), |gate| {
        gate.begin(Phase::Counted);
        thread::sleep(window);
        Ok(())
    })?;
    record_times(figures, &format!("{name}, alone"), alone)?;
    let (assigns, during) = beside(device, range.start(), |gate| {
        let mut assigns: Vec<Duration> = Vec::new();
        while assigns.iter().sum::<Duration>() < window && assigns.len() < REPEATS_MAX {
            gate.begin(Phase::Counted);
            let start = Instant::now();
            let assigned = device.assign(range)?;
            assigns.push(start.elapsed());
            gate.begin(Phase::Quiet);
            ensure!(assigned == Assigned::Done, "{name} does not assign");
            device.discard(range)?;
        }
        Ok(assigns)
    })?;
    record_times(figures, &format!("{name}, beside assign"), during)?;
    let took = Latencies::new(assigns).context("nothing was assigned")?;
    let millis = took.quantile(0.5).as_secs_f64() * 1e3;
    figures.record(&assign_of(name, range.len()), MILLIS, "", millis);
    Ok(())
}

/// Assigns as much as the project was asked about, once, and again; and looks at what that was.
fn huge(subject: &Subject, written: u64, figures: &mut Figures) -> Result<()> {
    let (device, name) = (&*subject.device, subject.names.device);
    let range = ByteRange::new(written, written + HUGE);
    if let Some(file) = &subject.file {
        file.take();
    }
    for figure in [assign_of(name, HUGE), again_of(name)] {
        let start = Instant::now();
        device.assign(range)?;
        let millis = start.elapsed().as_secs_f64() * 1e3;
        figures.record(&figure, MILLIS, "", millis);
        if let Some(file) = &subject.file {
            let pieces = file.take();
            let largest = crate::measured::mib(pieces.largest);
            figures.record(&figure, PIECES, "", pieces.count as f64);
            figures.record(&figure, LARGEST, "", largest);
        }
        if let Some(path) = &subject.path {
            let extents = HostFile::open_read(path)?.extents(range)?.len();
            figures.record(&figure, EXTENTS, "", extents as f64);
        }
    }
    Ok(device.discard(range)?)
}

fn assign_of(device: &str, bytes: u64) -> String {
    format!("{device}, assign of {}", size_word(bytes))
}

fn again_of(device: &str) -> String {
    format!("{device}, the same again")
}

fn record_times(figures: &mut Figures, name: &str, times: Times) -> Result<()> {
    for (kind, samples) in [("read", times.reads), ("write", times.writes)] {
        let name = format!("{name}, {kind}");
        let latencies = Latencies::new(samples).with_context(|| format!("no {name}"))?;
        for (unit, share) in QUANTILES {
            let micros = latencies.quantile(share).as_secs_f64() * 1e6;
            figures.record(&name, unit, "", micros);
        }
        figures.record(&name, COUNT, "", latencies.count() as f64);
    }
    Ok(())
}

fn outcome(subjects: &[Subject], size: u64, runs: usize, figures: Figures) -> Result<Outcome> {
    let mut outcome = Outcome {
        title: format!("assign of {}, {runs} rounds", ByteSize(size)),
        tables: vec![latencies(subjects, &figures)?, assigns(subjects, size, &figures)?],
        notes: vec![
            "4 KiB at random in a written part, a reader and a writer, 50 us between requests; beside the \
             assign only requests count that began during one"
                .to_owned(),
            "the files lie on an ext4 in memory; requests below can be counted for the loop device only"
                .to_owned(),
        ],
        ..Outcome::default()
    };
    for subject in subjects {
        let Names {
            device,
            read,
            write,
        } = subject.names;
        for (goal, kind) in [(read, "read"), (write, "write")] {
            let beside = format!("{device}, beside assign, {kind}");
            outcome
                .goals
                .insert(goal, figures.of(&beside, P99)?.median().into());
        }
    }
    let requests = figures.of(&assign_of(LOOP.device, HUGE), PIECES)?.median();
    outcome.goals.insert(HUGE_REQUESTS, requests.into());
    outcome.figures = figures;
    Ok(outcome)
}

fn latencies(subjects: &[Subject], figures: &Figures) -> Result<Table> {
    let [p50, p99, most] = QUANTILES.map(|(unit, _)| unit);
    let units = [p50, p99, most, COUNT];
    let heading = [&["4 KiB requests"], &units[..]].concat();
    let mut table = Table::new(&heading);
    for subject in subjects {
        for kind in ["read", "write"] {
            for company in ["alone", "beside assign"] {
                let name = format!("{}, {company}, {kind}", subject.names.device);
                let mut row = vec![name.clone()];
                for unit in units {
                    row.push(number(figures.of(&name, unit)?.median()));
                }
                table.row(row);
            }
        }
    }
    Ok(table)
}

fn assigns(subjects: &[Subject], size: u64, figures: &Figures) -> Result<Table> {
    let units = [MILLIS, PIECES, LARGEST, EXTENTS];
    let heading = [&["assign"], &units[..]].concat();
    let mut table = Table::new(&heading);
    for subject in subjects {
        let name = subject.names.device;
        let mut names = vec![assign_of(name, size), assign_of(name, HUGE), again_of(name)];
        names.dedup();
        for name in names {
            let mut row = vec![name.clone()];
            for unit in units {
                let figure = figures.get(&name, unit);
                row.push(figure.map_or_else(String::new, |figure| number(figure.median())));
            }
            table.row(row);
        }
    }
    Ok(table)
}

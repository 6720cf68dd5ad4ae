//! `assign`: the effect of a large assign on other requests, and into how many requests it is
//! split.
//!
//! Threads read and write 4 KiB at random in a written part of a device while the following 64 GiB
//! are assigned; then the same without the assign. The assigned part is discarded and assigned
//! again until there are enough samples; requests during the discards are not counted.
//!
//! Devices: files of an ext4 in memory, to exclude the disk: below a loop device and as host
//! devices, through the page cache and direct; and a device in memory.

mod counting;
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
use crate::goal::Goal;
use crate::latency::Latencies;
use crate::metrics::Metrics;
use crate::needs::Need;
use crate::table::{Table, number};
use counting::CountingFile;
use traffic::{Phase, Times, beside};

const GIB: u64 = 1 << 30;
/// The file system below the loop device.
const SCRATCH: u64 = 256 * GIB;
/// Memory for it: its metadata and the written part of the file.
const SCRATCH_MEMORY: u64 = 4 * GIB;
/// The other question: how many requests a large assign becomes.
const HUGE: u64 = 100 * GIB;
/// Microseconds that a request may take during an assign (p99). Not a ratio to the time without:
/// the file system below locks the inode while it allocates, and the other request takes
/// microseconds.
const WAIT_MAX: f64 = 1000.0;
const HUGE_REQUESTS: &str = "requests-of-100gib";
/// Assigns of a sample, at most.
const REPEATS_MAX: usize = 2000;

const QUANTILES: [(&str, f64); 3] = [("us p50", 0.5), ("us p99", 0.99), ("us max", 1.0)];
const P99: &str = QUANTILES[1].0;
const COUNT: &str = "requests";
const MILLIS: &str = "ms";
const PIECES: &str = "requests below";
const BYTES_MAX: &str = "MiB at most";
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
    /// The file as the loop device uses it.
    file: Option<Arc<CountingFile<HostFile>>>,
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
        let mut metrics = Metrics::default();
        for (round, at) in rounds(runs, subjects.len()) {
            let subject = &subjects[at];
            context.step(format!("round {}: {}", round + 1, subject.names.device));
            let range = ByteRange::new(written, written + size);
            one(subject, range, window, &mut metrics)?;
        }
        for subject in &subjects {
            huge(subject, written, &mut metrics)?;
        }
        outcome(&subjects, size, runs, metrics)
    }
}

fn loop_device(scratch: &Scratch, written: u64) -> Result<Subject> {
    let path = sparse_file(scratch, "loop", written)?;
    let file = Arc::new(CountingFile::new(HostFile::open(&path, Access::ReadWrite)?));
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
    file: Option<Arc<CountingFile<HostFile>>>,
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
fn one(subject: &Subject, range: ByteRange, window: Duration, metrics: &mut Metrics) -> Result<()> {
    let device = &*subject.device;
    let name = subject.names.device;
    device.discard(range)?;
    let ((), alone) = beside(device, range.start(), |gate| {
        gate.begin(Phase::Counted);
        thread::sleep(window);
        Ok(())
    })?;
    record_times(metrics, &format!("{name}, alone"), alone)?;
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
    record_times(metrics, &format!("{name}, beside assign"), during)?;
    let took = Latencies::new(assigns).context("nothing was assigned")?;
    let millis = took.quantile(0.5).as_secs_f64() * 1e3;
    metrics.record(&assign_of(name, range.len()), MILLIS, "", millis);
    Ok(())
}

/// Assigns the size of the original use case, once and again, and checks the result.
fn huge(subject: &Subject, written: u64, metrics: &mut Metrics) -> Result<()> {
    let (device, name) = (&*subject.device, subject.names.device);
    let range = ByteRange::new(written, written + HUGE);
    if let Some(file) = &subject.file {
        file.take();
    }
    for metric in [assign_of(name, HUGE), again_of(name)] {
        let start = Instant::now();
        device.assign(range)?;
        let millis = start.elapsed().as_secs_f64() * 1e3;
        metrics.record(&metric, MILLIS, "", millis);
        if let Some(file) = &subject.file {
            let pieces = file.take();
            let largest = crate::measured::mib(pieces.largest);
            metrics.record(&metric, PIECES, "", pieces.count as f64);
            metrics.record(&metric, BYTES_MAX, "", largest);
        }
        if let Some(path) = &subject.path {
            let extents = HostFile::open_read(path)?.extents(range)?.len();
            metrics.record(&metric, EXTENTS, "", extents as f64);
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

fn record_times(metrics: &mut Metrics, name: &str, times: Times) -> Result<()> {
    for (kind, samples) in [("read", times.reads), ("write", times.writes)] {
        let name = format!("{name}, {kind}");
        let latencies = Latencies::new(samples).with_context(|| format!("no {name}"))?;
        for (unit, share) in QUANTILES {
            let micros = latencies.quantile(share).as_secs_f64() * 1e6;
            metrics.record(&name, unit, "", micros);
        }
        metrics.record(&name, COUNT, "", latencies.count() as f64);
    }
    Ok(())
}

fn outcome(subjects: &[Subject], size: u64, runs: usize, metrics: Metrics) -> Result<Outcome> {
    let mut outcome = Outcome {
        title: format!("assign of {}, {runs} rounds", ByteSize(size)),
        tables: vec![latencies(subjects, &metrics)?, assigns(subjects, size, &metrics)?],
        notes: vec![
            "4 KiB at random in a written part, a reader and a writer, 50 us between requests; beside the \
             assign only requests count that began during one"
                .to_owned(),
            "the files are on an ext4 in memory; requests below can be counted for the loop device only"
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
                .insert(goal, metrics.of(&beside, P99)?.median().into());
        }
    }
    let requests = metrics.of(&assign_of(LOOP.device, HUGE), PIECES)?.median();
    outcome.goals.insert(HUGE_REQUESTS, requests.into());
    outcome.metrics = metrics;
    Ok(outcome)
}

fn latencies(subjects: &[Subject], metrics: &Metrics) -> Result<Table> {
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
                    row.push(number(metrics.of(&name, unit)?.median()));
                }
                table.row(row);
            }
        }
    }
    Ok(table)
}

fn assigns(subjects: &[Subject], size: u64, metrics: &Metrics) -> Result<Table> {
    let units = [MILLIS, PIECES, BYTES_MAX, EXTENTS];
    let heading = [&["assign"], &units[..]].concat();
    let mut table = Table::new(&heading);
    for subject in subjects {
        let name = subject.names.device;
        let mut names = vec![assign_of(name, size), assign_of(name, HUGE), again_of(name)];
        names.dedup();
        for name in names {
            let mut row = vec![name.clone()];
            for unit in units {
                let metric = metrics.get(&name, unit);
                row.push(metric.map_or_else(String::new, |metric| number(metric.median())));
            }
            table.row(row);
        }
    }
    Ok(table)
}

//! Sequential 4 KiB writes, each with fdatasync, over a file in each state: the third table of
//! "Forced zeroes" (docs/background.md), for the engine and for the kernel, with and without fast
//! commits.

use std::fs::File;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::Result;
use extant_space::{ByteRange, FallocateMode, SpaceFile, SyncMode};
use rustix::fs::{FallocateFlags, Mode, OFlags};

use super::image::{Image, REGULAR, kernel};
use crate::bench::{Context, Outcome, rounds};
use crate::table::{Table, number};

/// The engine over the kernel, both without fast commits.
pub(super) const SPARSE: &str = "sync-sparse";
pub(super) const UNWRITTEN: &str = "sync-unwritten";
pub(super) const WRITTEN: &str = "sync-written";

const GIB: u64 = 1 << 30;
const DISK: u64 = 2 * GIB;
const MEMORY: u64 = 3 * GIB;
/// Bytes of the file; each sample has a fresh one, and ends where it does.
const SIZE: u64 = 256 << 20;
const WRITE: usize = 4096;
const RATE: &str = "writes/s";
const STATES: [(&str, &str); 3] = [
    ("sparse", SPARSE),
    ("unwritten", UNWRITTEN),
    ("written", WRITTEN),
];
const FAST_COMMIT: [&str; 2] = ["-O", "fast_commit"];
const KINDS: [(&str, &[&str]); 2] = [("", &[]), (", fast_commit", &FAST_COMMIT)];

/// Memory that direct I/O takes.
#[repr(align(4096))]
struct Block([u8; WRITE]);

pub(super) fn measure(context: &Context, outcome: &mut Outcome) -> Result<()> {
    let runs = context.options.runs(5, 1);
    let window = Duration::from_millis(context.options.pick(1000, 200));
    for (kind, options) in KINDS {
        let scratch = kernel(DISK, MEMORY, options);
        let image = Image::new(DISK, MEMORY, options)?;
        let engine = image.open()?;
        let root = engine.root()?;
        for (round, at) in rounds(runs, STATES.len()) {
            let (state, _) = STATES[at];
            context.step(format!("sync, round {}: {state}{kind}", round + 1));
            let path = scratch.path().join("file");
            let rate = theirs(&path, state, window)?;
            outcome
                .metrics
                .record(&name("kernel", state, kind), RATE, "", rate);
            std::fs::remove_file(&path)?;
            let file = root.create(b"file", &REGULAR)?.file()?;
            let rate = ours(&file, state, window)?;
            outcome
                .metrics
                .record(&name("engine", state, kind), RATE, "", rate);
            drop(file);
            root.unlink(b"file")?;
        }
        drop(root);
        engine.close()?;
    }
    report(outcome)
}

fn report(outcome: &mut Outcome) -> Result<()> {
    let metrics = &outcome.metrics;
    let heading = [
        "4 KiB and fdatasync, writes/s",
        "engine",
        "kernel",
        "ratio",
        "engine, fast_commit",
        "kernel, fast_commit",
        "ratio",
    ];
    let mut table = Table::new(&heading);
    for (state, goal) in STATES {
        let mut row = vec![state.to_owned()];
        for (kind, _) in KINDS {
            let (ours, theirs) = (name("engine", state, kind), name("kernel", state, kind));
            row.push(number(metrics.of(&ours, RATE)?.median()));
            row.push(number(metrics.of(&theirs, RATE)?.median()));
            row.push(number(metrics.ratio(&ours, &theirs, RATE)?));
        }
        table.row(row);
        let (ours, theirs) = (name("engine", state, ""), name("kernel", state, ""));
        outcome
            .goals
            .insert(goal, metrics.ratio(&ours, &theirs, RATE)?.into());
    }
    outcome.tables.push(table);
    Ok(())
}

fn name(who: &str, state: &str, kind: &str) -> String {
    format!("sync, {who}, {state}{kind}")
}

fn theirs(path: &std::path::Path, state: &str, window: Duration) -> Result<f64> {
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::DIRECT;
    let file = File::from(rustix::fs::open(path, flags, Mode::from_raw_mode(0o644))?);
    let block = Block([0x5A; WRITE]);
    match state {
        "unwritten" => rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, SIZE)?,
        "written" => {
            std::os::unix::fs::FileExt::write_all_at(
                &File::create(path)?,
                &vec![1; SIZE as usize],
                0,
            )?;
        }
        _ => file.set_len(SIZE)?,
    }
    rustix::fs::fsync(file.as_fd())?;
    rate(window, |offset| {
        rustix::io::pwrite(&file, &block.0, offset)?;
        Ok(rustix::fs::fdatasync(&file)?)
    })
}

fn ours(file: &extant_ext4::File, state: &str, window: Duration) -> Result<f64> {
    let block = Block([0x5A; WRITE]);
    match state {
        "unwritten" => file.fallocate(FallocateMode::Allocate, ByteRange::new(0, SIZE))?,
        "written" => file.write_at(&vec![1; SIZE as usize], 0)?,
        _ => file.resize(SIZE)?,
    }
    file.sync(SyncMode::All)?;
    rate(window, |offset| {
        file.write_at(&block.0, offset)?;
        Ok(file.sync(SyncMode::Data)?)
    })
}

/// Writes a second, from start to end until the time is over.
fn rate(window: Duration, mut write: impl FnMut(u64) -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    let mut done = 0;
    for offset in (0..SIZE).step_by(WRITE) {
        write(offset)?;
        done += 1;
        if start.elapsed() >= window {
            break;
        }
    }
    Ok(f64::from(done) / start.elapsed().as_secs_f64())
}

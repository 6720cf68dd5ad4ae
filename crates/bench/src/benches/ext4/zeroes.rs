//! Written zeros: 10 GiB at once, beside `dd` in the kernel's mount; and the time of `fallocate`
//! from 1 GiB to 1 TiB.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use extant_blockdev::{Device, HostDevice, HostOptions};
use extant_ext4::{DeviceZeroes, Filesystem, Options};
use extant_space::{ByteRange, ExtentState, FallocateMode, SpaceFile, SyncMode};
use extant_testkit::command::{run, tool};

use super::image::{Image, REGULAR, kernel};
use crate::bench::{Context, Outcome, size_word};
use crate::measured::mib;
use crate::peers;
use crate::table::{Table, number};

/// Milliseconds for 10 GiB, the slowest of the devices.
pub(super) const TIME: &str = "zeroes-10gib";
/// `dd`'s time over that.
pub(super) const OVER_DD: &str = "zeroes-over-dd";
/// Time of an extent at 1 TiB, of that at 1 GiB: the worse of making and removing.
pub(super) const GROWTH: &str = "fallocate-growth";

const GIB: u64 = 1 << 30;
const SIZE: u64 = 10 * GIB;
const DISK: u64 = 12 * GIB;
const MILLIS: &str = "ms";
const SIZES: [u64; 4] = [GIB, 16 * GIB, 128 * GIB, 1024 * GIB];
const LARGE_DISK: u64 = 1100 * GIB;

pub(super) fn measure(context: &Context, outcome: &mut Outcome) -> Result<()> {
    let runs = context.options.runs(5, 1);
    let size = context.options.pick(SIZE, GIB);
    let file = context.file("image");
    let mut table = Table::new(&["written zeros", MILLIS, "MiB on the host"]);
    let mut slowest: f64 = 0.0;
    for (zeroes, name) in [
        (DeviceZeroes::Allocated, "engine, host file"),
        (DeviceZeroes::MayUnmap, "engine, host file, sparse"),
    ] {
        let mut on_host = 0;
        for round in 0..runs {
            context.step(format!("zeroes, round {}: {name}", round + 1));
            mkfs(&file)?;
            context.settle();
            let device = Arc::new(HostDevice::open(&file, &HostOptions::default())?);
            let millis = one(device, zeroes, size)?;
            outcome.metrics.record(name, MILLIS, "", millis);
            on_host = fs::metadata(&file)?.blocks() * 512;
            fs::remove_file(&file)?;
        }
        let median = outcome.metrics.of(name, MILLIS)?.median();
        slowest = slowest.max(median);
        table.row(vec![name.to_owned(), number(median), number(mib(on_host))]);
    }
    let dd = peer(context, outcome, size, runs)?;
    table.row(vec!["kernel, dd".to_owned(), number(dd), String::new()]);
    outcome.tables.push(table);
    outcome.goals.insert(TIME, slowest.into());
    outcome.goals.insert(OVER_DD, (dd / slowest).into());
    growth(context, outcome)
}

fn mkfs(file: &Path) -> Result<()> {
    File::create_new(file)?.set_len(DISK)?;
    run(tool("mkfs.ext4")
        .args(["-q", "-F", "-b", "4096", "-T", "largefile4"])
        .arg(file))?;
    Ok(())
}

/// Milliseconds until the zeros are durable.
fn one(device: Arc<dyn Device>, zeroes: DeviceZeroes, size: u64) -> Result<f64> {
    let options = Options {
        zeroes,
        ..Options::default()
    };
    let engine = Filesystem::open(device, options)?;
    let file = engine.root()?.create(b"zeros", &REGULAR)?.file()?;
    let range = ByteRange::new(0, size);
    let start = Instant::now();
    file.fallocate(FallocateMode::WriteZeroes, range)?;
    file.sync(SyncMode::All)?;
    let millis = start.elapsed().as_secs_f64() * 1e3;
    let extents = file.extents(range)?;
    ensure!(
        extents
            .iter()
            .all(|extent| extent.state == ExtentState::Written),
        "not everything is written"
    );
    drop(file);
    engine.close()?;
    Ok(millis)
}

/// Milliseconds of `dd` in the kernel's mount.
fn peer(context: &Context, outcome: &mut Outcome, size: u64, runs: usize) -> Result<f64> {
    let scratch = kernel(DISK, DISK + GIB, &[]);
    let file = scratch.path().join("zeros");
    // The first time touches the memory.
    for round in 0..=runs.min(3) {
        context.step(format!("zeroes, round {round}: dd"));
        let mut command = peers::dd(&file, size);
        let start = Instant::now();
        run(&mut command)?;
        let millis = start.elapsed().as_secs_f64() * 1e3;
        if round > 0 {
            let shown = context.shown(&command);
            outcome.metrics.record("kernel, dd", MILLIS, &shown, millis);
        }
        fs::remove_file(&file)?;
    }
    Ok(outcome.metrics.of("kernel, dd", MILLIS)?.median())
}

fn growth(context: &Context, outcome: &mut Outcome) -> Result<()> {
    const MAKE: &str = "us to make an extent";
    const REMOVE: &str = "us to remove one";
    let image = Image::new(LARGE_DISK, 4 * GIB, &[])?;
    let engine = image.open()?;
    let root = engine.root()?;
    let runs = context.options.runs(5, 1);
    // One more run, which reads the bitmaps.
    for round in 0..=runs {
        for size in SIZES {
            context.step(format!("fallocate, round {round}: {}", size_word(size)));
            let file = root.create(b"large", &REGULAR)?.file()?;
            let range = ByteRange::new(0, size);
            let start = Instant::now();
            file.fallocate(FallocateMode::Allocate, range)?;
            file.sync(SyncMode::All)?;
            let made = start.elapsed();
            let extents = file.extents(range)?.len() as f64;
            let start = Instant::now();
            root.unlink(b"large")?;
            drop(file);
            engine.sync()?;
            let removed = start.elapsed();
            if round > 0 {
                let name = name(size);
                let each = |time: std::time::Duration| time.as_secs_f64() * 1e6 / extents;
                outcome.metrics.record(&name, MAKE, "", each(made));
                outcome.metrics.record(&name, REMOVE, "", each(removed));
                outcome.metrics.record(&name, "extents", "", extents);
            }
        }
    }
    drop(root);
    engine.close()?;
    let mut table = Table::new(&["fallocate and unlink", "extents", MAKE, REMOVE]);
    for size in SIZES {
        let mut row = vec![name(size)];
        for unit in ["extents", MAKE, REMOVE] {
            row.push(number(outcome.metrics.of(&name(size), unit)?.median()));
        }
        table.row(row);
    }
    outcome.tables.push(table);
    let ratio = |unit| {
        outcome
            .metrics
            .ratio(&name(SIZES[3]), &name(SIZES[0]), unit)
    };
    let worse = ratio(MAKE)?.max(ratio(REMOVE)?);
    outcome.goals.insert(GROWTH, worse.into());
    Ok(())
}

fn name(size: u64) -> String {
    format!("fallocate, {}", size_word(size))
}

//! Reading and writing through the engine, beside the device below it: the overhead of the file
//! system.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use extant_blockdev::{Device, Persistence};
use extant_ext4::{Filesystem, Options};
use extant_space::{ByteRange, SpaceFile};

use super::image::{Image, REGULAR};
use crate::bench::{Context, Outcome, rounds};
use crate::random::Random;
use crate::table::{Table, number};

/// The least of the ratios.
pub(super) const LOWEST_RATE: &str = "bandwidth-least";

const MIB: u64 = 1 << 20;
const DISK: u64 = 2 << 30;
const MEMORY: u64 = 3 << 30;
const SIZE: u64 = 512 * MIB;
const RATE: &str = "MiB/s";
const REQUESTS: [(&str, usize); 2] = [("128 KiB", 128 << 10), ("1 MiB", 1 << 20)];
const ORDERS: [&str; 2] = ["sequential", "random"];
const OPERATIONS: [&str; 2] = ["read", "write"];

#[derive(Clone, Copy)]
struct Job {
    operation: &'static str,
    order: &'static str,
    request: (&'static str, usize),
}

impl Job {
    fn name(&self, who: &str) -> String {
        let (size, _) = self.request;
        format!("{who}, {} {} of {size}", self.order, self.operation)
    }
}

pub(super) fn measure(context: &Context, outcome: &mut Outcome) -> Result<()> {
    let runs = context.options.runs(5, 1);
    let window = Duration::from_millis(context.options.pick(400, 100));
    let image = Image::new(DISK, MEMORY, &[])?;
    let device = image.device()?;
    let engine = Filesystem::open(Arc::clone(&device), Options::default())?;
    let file = engine.root()?.create(b"file", &REGULAR)?.file()?;
    file.write_at(&vec![1; SIZE as usize], 0)?;
    // The device is used at the file's blocks: blocks that were never written may be faster.
    let places = places(&file)?;
    let jobs: Vec<Job> = OPERATIONS
        .into_iter()
        .flat_map(|operation| ORDERS.map(|order| (operation, order)))
        .flat_map(|(operation, order)| {
            REQUESTS.map(|request| Job {
                operation,
                order,
                request,
            })
        })
        .collect();
    for (round, at) in rounds(runs, jobs.len()) {
        let job = jobs[at];
        context.step(format!("round {}: {}", round + 1, job.name("bandwidth")));
        let mut buffer = vec![2; job.request.1];
        let ours = rate(&job, window, |offset| {
            match job.operation {
                "read" => file.read_at(&mut buffer, offset).map(|_| ())?,
                _ => file.write_at(&buffer, offset)?,
            }
            Ok(())
        })?;
        let mut buffer = vec![2; job.request.1];
        let place = |offset: u64| places[(offset / MIB) as usize] + offset % MIB;
        let theirs = rate(&job, window, |offset| {
            match job.operation {
                "read" => device.read_at(&mut buffer, place(offset))?,
                _ => device.write_at(&buffer, place(offset), Persistence::Cached)?,
            }
            Ok(())
        })?;
        outcome.metrics.record(&job.name("engine"), RATE, "", ours);
        outcome
            .metrics
            .record(&job.name("device"), RATE, "", theirs);
    }
    drop(file);
    engine.close()?;
    let mut table = Table::new(&["MiB/s", "engine", "device", "ratio"]);
    let mut least = f64::INFINITY;
    for job in jobs {
        let (ours, theirs) = (job.name("engine"), job.name("device"));
        let ratio = outcome.metrics.ratio(&ours, &theirs, RATE)?;
        least = least.min(ratio);
        table.row(vec![
            job.name("file"),
            number(outcome.metrics.of(&ours, RATE)?.median()),
            number(outcome.metrics.of(&theirs, RATE)?.median()),
            number(ratio),
        ]);
    }
    outcome.tables.push(table);
    outcome.goals.insert(LOWEST_RATE, least.into());
    Ok(())
}

/// The physical address of each MiB of the file; the last of an extent may exceed it.
fn places(file: &extant_ext4::File) -> Result<Vec<u64>> {
    let extents = file.extents(ByteRange::new(0, SIZE))?;
    (0..SIZE)
        .step_by(MIB as usize)
        .map(|offset| {
            let extent = extents
                .iter()
                .find(|extent| extent.logical.contains(ByteRange::new(offset, offset + 1)));
            let extent = extent.context("an extent")?;
            let start = extent.physical.context("a place")?;
            Ok(start + (offset - extent.logical.start()))
        })
        .collect()
}

/// MiB a second.
fn rate(job: &Job, window: Duration, mut run: impl FnMut(u64) -> Result<()>) -> Result<f64> {
    let bytes = job.request.1 as u64;
    let slots = SIZE / bytes;
    let mut random = Random::new(1);
    let start = Instant::now();
    let mut done = 0;
    while start.elapsed() < window {
        let slot = match job.order {
            "sequential" => done % slots,
            _ => (random.fraction() * slots as f64) as u64 % slots,
        };
        run(slot * bytes)?;
        done += 1;
    }
    Ok((done * bytes) as f64 / MIB as f64 / start.elapsed().as_secs_f64())
}

//! The effect of the mballoc scalability patches on files that grow concurrently: 64 files of 1 GiB
//! on an empty disk of 200 GiB, as in the author's test.
//!
//! The patches give each processor a stream goal. On a machine with fewer processors than writers
//! several writers share a goal, and their blocks alternate. So the rows are measured with as many
//! goals as this machine has processors, and with 64. One thread appends in random order: the
//! result does not depend on the number of processors that run it.

use std::thread::available_parallelism;

use anyhow::Result;
use extant_mballoc::Options as Behaviour;

use super::ageing::Aged;
use super::fragmentation::{FREE, WRITERS, write};
use super::series;
use crate::bench::{Context, Outcome};
use crate::table::{Table, number};

/// Goal: extents per file after the patches with 64 processors and the linear scan, which does not
/// depend on the index.
pub(super) const EXTENTS: &str = "extents-per-file-64-goals";

const GIBIBYTES: u64 = 200;
/// Processors of a machine on which every writer has its own goal.
const MANY: usize = WRITERS;

pub(super) fn measure(context: &Context, outcome: &mut Outcome) -> Result<()> {
    let blocks = (context.options.size(1 << 30, 64 << 20) >> 12) as u32;
    let few = available_parallelism()?.get();
    let title = format!("64 files of {} MiB, 200 GiB", blocks / 256);
    let mut table = Table::new(&[&title, "extents/file", "KiB/extent", FREE]);
    for (name, options) in series() {
        // Before the patches there is one goal on any machine.
        let counts = if name.contains("before") {
            &[few][..]
        } else {
            &[few, MANY]
        };
        for &cpus in counts {
            let options = Behaviour {
                cpus,
                ..options.clone()
            };
            let row = format!("{name}, {cpus} processors");
            context.step(format!("stream goals: {row}"));
            let disk = Aged::new(&options, GIBIBYTES, 0.0, 0)?;
            // The kernel reads all bitmaps after a mount (`prefetch_block_bitmaps`). Without that,
            // the index prefers groups whose bitmap is in memory to the stream goals.
            disk.free_runs();
            let files = write(&disk, blocks)?;
            disk.allocator.check().map_err(anyhow::Error::msg)?;
            let extents = files.iter().sum::<usize>() as f64 / WRITERS as f64;
            let free = disk.free_runs().len() as f64 / WRITERS as f64;
            let length = f64::from(blocks) * 4.0 / extents;
            let metric = format!("stream goals, {row}");
            for (unit, value) in [
                ("extents/file", extents),
                ("KiB/extent", length),
                (FREE, free),
            ] {
                outcome.metrics.record(&metric, unit, "", value);
            }
            table.row(vec![row, number(extents), number(length), number(free)]);
            if cpus == MANY && name == "with the patches, scan 0" {
                outcome.goals.insert(EXTENTS, extents.into());
            }
        }
    }
    outcome.tables.push(table);
    Ok(())
}

//! `mballoc`: the block allocator alone: speed, fragmentation, and scaling with the disk size.
//!
//! No file system and no disk: the algorithm is measured. The peer is the same code with the
//! behaviour of the kernel before and after the mballoc scalability patches (docs/background.md),
//! which shows the effect of each patch.
//!
//! Parts: [`threads`] and [`patches`] run fallocate2, [`latency`] times single allocations,
//! [`fragmentation`] and [`goals`] count extents, [`growth`] compares disks from 64 GiB to 64 TiB,
//! [`memory`] measures the memory per group.

mod ageing;
mod disk;
pub(super) mod fallocate2;
mod fragmentation;
mod fragmented;
mod goals;
mod growth;
mod latency;
mod memory;
mod patches;
mod scalability;
mod threads;

use anyhow::Result;
use extant_mballoc::{BlockRange, Options as Behaviour, Policy};

use crate::bench::{Bench, Context, Options, Outcome};
use crate::goal::Goal;
use crate::needs::Need;

/// The bench.
pub struct Mballoc;

/// Behaviours that are compared everywhere.
fn behaviours() -> [(&'static str, Behaviour); 3] {
    [
        ("default", Behaviour::default()),
        ("with the patches", Behaviour::after_scalability_patches()),
        (
            "before the patches",
            Behaviour::before_scalability_patches(),
        ),
    ]
}

/// The same with the linear scan (`mb_optimize_scan=0`) and with the index.
pub(super) fn series() -> Vec<(String, Behaviour)> {
    let scans = [(0, Policy::Linear), (1, Policy::Optimised)];
    let rows = behaviours().into_iter().flat_map(|(name, options)| {
        scans.map(|(scan, policy)| {
            let options = Behaviour {
                policy,
                ..options.clone()
            };
            (format!("{name}, scan {scan}"), options)
        })
    });
    rows.collect()
}

/// Adds blocks to the end of a file.
fn append(extents: &mut Vec<BlockRange>, range: BlockRange) {
    if let Some(last) = extents.last_mut()
        && last.end() == range.start()
        && let Some(joined) = BlockRange::between(last.start(), range.end())
    {
        *last = joined;
        return;
    }
    extents.push(range);
}

impl Bench for Mballoc {
    fn name(&self) -> &'static str {
        "mballoc"
    }

    fn about(&self) -> &'static str {
        "the block allocator alone: rate, fragmentation, cost on large disks"
    }

    fn needs(&self) -> &'static [Need] {
        &[]
    }

    fn goals(&self) -> &'static [Goal] {
        const {
            let [empty, half, full] = &fragmentation::DISKS;
            &[
                Goal::at_least(threads::ONE, 10.0, "M/s"),
                Goal::at_least(threads::LOWEST_RATE, 0.8, ""),
                Goal::at_most(empty.extents, 8.0, ""),
                Goal::at_most(empty.free, 1.5, ""),
                Goal::at_most(half.extents, 8.0, ""),
                Goal::at_most(half.free, 1.5, ""),
                Goal::at_most(full.extents, 8.0, ""),
                Goal::at_most(full.free, 1.5, ""),
                Goal::at_most(goals::EXTENTS, 588.0, ""),
                Goal::at_most(growth::ONE, 1.5, ""),
                Goal::at_most(growth::MANY, 1.5, ""),
                Goal::at_most(memory::UNTOUCHED, 64.0, "B"),
            ]
        }
    }

    fn disk_bytes(&self, _: &Options) -> u64 {
        0
    }

    fn run(&self, context: &Context) -> Result<Outcome> {
        let mut outcome = Outcome {
            title: format!(
                "fallocate2 on {} GiB; 64 files of 64 MiB; disks up to 64 TiB",
                fallocate2::DISK_GIB
            ),
            ..Outcome::default()
        };
        memory::measure(context, &mut outcome)?;
        threads::measure(context, &mut outcome)?;
        patches::measure(context, &mut outcome)?;
        latency::measure(context, &mut outcome)?;
        growth::measure(context, &mut outcome)?;
        fragmentation::measure(context, &mut outcome)?;
        goals::measure(context, &mut outcome)?;
        Ok(outcome)
    }
}

//! Memory per block group, before and after its bitmap is loaded.
//!
//! The kernel's count of the process's memory, before and after opening a disk of 64 TiB. With half
//! a million groups, other allocations of the process are negligible. This part runs first: reused
//! freed memory would not be counted.

use anyhow::Result;
use extant_mballoc::Goal;

use super::growth::{SIZE_MAX, SIZES, block_in, open, request};
use crate::bench::{Context, Outcome};
use crate::memory::resident_bytes;
use crate::table::{Table, number};

/// Goal: memory of a group whose bitmap is not loaded.
pub(super) const UNTOUCHED: &str = "memory-per-untouched-group";

/// Groups that are looked into for the memory of one.
const TOUCHED: u32 = 4096;
const BYTES: &str = "B/group";

pub(super) fn measure(context: &Context, outcome: &mut Outcome) -> Result<()> {
    let (name, gibibytes) = SIZES[SIZE_MAX];
    context.step(format!("memory of the groups of {name}"));
    let before = resident_bytes()?;
    let allocator = open(gibibytes)?;
    let opened = resident_bytes()?;
    let geometry = allocator.geometry();
    let owner = allocator.owner(0, 0);
    for number in 0..TOUCHED {
        let block = block_in(&geometry, number, TOUCHED, 0.5);
        drop(owner.allocate(&request(1, Goal::Near(block)))?);
    }
    let touched = resident_bytes()?;
    let untouched_bytes = (opened - before) / f64::from(geometry.groups());
    let touched_bytes = (touched - opened) / allocator.statistics().groups_loaded as f64;
    let mut table = Table::new(&["memory of a group, 64 TiB", BYTES]);
    for (name, bytes) in [("untouched", untouched_bytes), ("touched", touched_bytes)] {
        let metric = format!("group, {name}");
        outcome.metrics.record(&metric, BYTES, "", bytes);
        table.row(vec![name.to_owned(), number(bytes)]);
    }
    outcome.tables.push(table);
    outcome.goals.insert(UNTOUCHED, untouched_bytes.into());
    Ok(())
}

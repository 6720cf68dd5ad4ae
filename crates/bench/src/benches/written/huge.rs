//! Peak memory of `extant` for files far larger than the disk.
//!
//! A sparse file of a TiB fits anywhere. For one whose space is reserved there is a sparse
//! xfs on a loop device, of twice the size; it takes a few MiB of real space.

use std::fs;
use std::path::Path;

use anyhow::Result;
use extant_testkit::requires;
use extant_testkit::scratch::{Filesystem, Scratch};

use super::PEAK;
use crate::bench::Context;
use crate::measured::{measure, mib};
use crate::metrics::Metrics;
use crate::table::{Table, median};

const TIB: u64 = 1 << 40;
const SPARSE: &str = "extant create 1TiB, sparse";
const PART: &str = "extant create 1TiB, 64MiB written";
const RESERVED: &str = "extant create 1TiB, reserved";

/// The metrics' names.
pub(super) const NAMES: [&str; 3] = [SPARSE, PART, RESERVED];

/// Measures them, once each: memory does not vary.
pub(super) fn record(context: &Context, metrics: &mut Metrics) -> Result<()> {
    context.step("peak memory at 1TiB");
    let file = context.file("huge.raw");
    one(context, metrics, SPARSE, &file, &["--preallocation", "off"])?;
    one(context, metrics, PART, &file, &["--allocation", "64MiB"])?;
    if requires::tool("mkfs.xfs").is_met() && requires::kernel_filesystem("xfs").is_met() {
        let xfs = Scratch::builder(Filesystem::Xfs, 2 * TIB)
            .mkfs_options(&["-l", "size=64m"])
            .build();
        let file = xfs.path().join("huge.raw");
        one(
            context,
            metrics,
            RESERVED,
            &file,
            &["--preallocation", "falloc"],
        )?;
    }
    Ok(())
}

fn one(
    context: &Context,
    metrics: &mut Metrics,
    name: &str,
    file: &Path,
    options: &[&str],
) -> Result<()> {
    let mut command = context.extant();
    command.arg("create").arg(file).arg("1TiB").args(options);
    let taken = measure(&command)?;
    fs::remove_file(file)?;
    let shown = context.shown(&command);
    let place = file.with_file_name("").display().to_string();
    let shown = shown.replace(&place, "XFS/");
    metrics.record(name, PEAK, &shown, mib(taken.peak_memory_bytes));
    metrics.record(name, "s", &shown, taken.seconds);
    Ok(())
}

/// Time and memory of each.
pub(super) fn table(metrics: &Metrics) -> Table {
    let mut table = Table::new(&["huge files", "s", "peak memory MiB"]);
    for name in NAMES {
        if let Some(peak) = metrics.get(name, PEAK) {
            let seconds = metrics.get(name, "s");
            table.row(vec![name.to_owned(), median(seconds), median(Some(peak))]);
        }
    }
    table
}

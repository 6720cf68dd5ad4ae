//! A list of ten thousand volumes.
//!
//! `extant vol list` reads each file's state every time. libvirt reads it on `pool-refresh` and
//! lists the cached state: both are measured, and their total.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use extant_testkit::command::run;
use extant_testkit::libvirt::give;

use super::{Sides, make_pool, shown, virsh};
use crate::bench::{Context, Outcome, rounds};
use crate::measured::measure as take;
use crate::table::{Table, median, spread};

/// Time of the list as text or as JSON, whichever takes longer.
pub(super) const TIME: &str = "list-10000";

const VOLUMES: usize = 10_000;
const SIZE: u64 = 1 << 20;
const UNIT: &str = "ms";
const TEXT: &str = "extant vol list";
const JSON: &str = "extant vol list --json";
const LIST: &str = "virsh vol-list";
const REFRESH: &str = "virsh pool-refresh";
const BOTH: &str = "virsh pool-refresh; vol-list";
const METHODS: [&str; 5] = [TEXT, JSON, LIST, REFRESH, BOTH];

pub(super) fn measure(context: &Context, sides: &Sides, outcome: &mut Outcome) -> Result<()> {
    let runs = context.options.runs(11, 5);
    let directory = context.file("many");
    fs::create_dir(&directory)?;
    context.step(format!("{VOLUMES} volumes"));
    for number in 0..VOLUMES {
        let file = File::create(directory.join(format!("volume-{number:05}.raw")))?;
        file.set_len(SIZE)?;
    }
    give_all(&directory)?;
    make_pool(&sides.libvirt, "many", &directory)?;
    for (round, method) in rounds(runs, METHODS.len()) {
        let method = METHODS[method];
        context.step(format!("round {}: {method}", round + 1));
        context.settle();
        let command = command(context, sides, &directory, method);
        let taken = take(&command)?;
        let shown = shown(context, &sides.libvirt, &command);
        let metrics = &mut outcome.metrics;
        metrics.record(method, UNIT, &shown, taken.seconds * 1000.0);
    }
    run(&mut virsh(&sides.libvirt, "pool-destroy many"))?;
    fs::remove_dir_all(&directory)?;
    let metrics = &outcome.metrics;
    let slower = metrics
        .of(TEXT, UNIT)?
        .median()
        .max(metrics.of(JSON, UNIT)?.median());
    let mut table = Table::new(&["10,000 volumes", UNIT, "spread"]);
    for method in METHODS {
        let metric = metrics.get(method, UNIT);
        table.row(vec![method.to_owned(), median(metric), spread(metric)]);
    }
    outcome.goals.insert(TIME, slower.into());
    outcome.tables.push(table);
    Ok(())
}

fn command(context: &Context, sides: &Sides, directory: &Path, method: &str) -> Command {
    let more: &[&str] = match method {
        TEXT => &[],
        JSON => &["--json"],
        LIST => return virsh(&sides.libvirt, "vol-list many"),
        REFRESH => return virsh(&sides.libvirt, "pool-refresh many"),
        _ => return virsh(&sides.libvirt, "pool-refresh many; vol-list many"),
    };
    let mut command = context.extant();
    command.args(["vol", "list"]).arg(directory).args(more);
    command
}

/// libvirtd reads them as its own user.
fn give_all(directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        give(&entry?.path());
    }
    Ok(())
}

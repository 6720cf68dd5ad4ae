//! Ten thousand volumes in a list.
//!
//! `extant vol list` looks at each file each time. libvirt looks when it is told to (`pool-refresh`), and lists what it saw then:
//! both are measured, together as well.

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
    let folder = context.file("many");
    fs::create_dir(&folder)?;
    context.step(format!("{VOLUMES} volumes"));
    for number in 0..VOLUMES {
        let file = File::create(folder.join(format!("volume-{number:05}.raw")))?;
        file.set_len(SIZE)?;
    }
    give_all(&folder)?;
    make_pool(&sides.libvirt, "many", &folder)?;
    for (round, method) in rounds(runs, METHODS.len()) {
        let method = METHODS[method];
        context.step(format!("round {}: {method}", round + 1));
        context.settle();
        let command = command(context, sides, &folder, method);
        let taken = take(&command)?;
        let shown = shown(context, &sides.libvirt, &command);
        let figures = &mut outcome.figures;
        figures.record(method, UNIT, &shown, taken.seconds * 1000.0);
    }
    run(&mut virsh(&sides.libvirt, "pool-destroy many"))?;
    fs::remove_dir_all(&folder)?;
    let figures = &outcome.figures;
    let slower = figures
        .of(TEXT, UNIT)?
        .median()
        .max(figures.of(JSON, UNIT)?.median());
    let mut table = Table::new(&["10,000 volumes", UNIT, "spread"]);
    for method in METHODS {
        let figure = figures.get(method, UNIT);
        table.row(vec![method.to_owned(), median(figure), spread(figure)]);
    }
    outcome.goals.insert(TIME, slower.into());
    outcome.tables.push(table);
    Ok(())
}

fn command(context: &Context, sides: &Sides, folder: &Path, method: &str) -> Command {
    let more: &[&str] = match method {
        TEXT => &[],
        JSON => &["--json"],
        LIST => return virsh(&sides.libvirt, "vol-list many"),
        REFRESH => return virsh(&sides.libvirt, "pool-refresh many"),
        _ => return virsh(&sides.libvirt, "pool-refresh many; vol-list many"),
    };
    let mut command = context.extant();
    command.args(["vol", "list"]).arg(folder).args(more);
    command
}

/// libvirtd reads them as its own user.
fn give_all(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        give(&entry?.path());
    }
    Ok(())
}

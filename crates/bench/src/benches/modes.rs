//! `modes`: disk images of each kind and mode written by each way of host I/O, compared with
//! qemu-nbd.
//!
//! The table of "Preallocation modes of qcow2" (docs/background.md), with each `--aio` of both
//! servers: 4 KiB random writes by fio's NBD engine.
//!
//! - On ext4 and XFS, each on the machine's disk and in memory. The disk's XFS is on a direct loop
//!   device over a file that is written already, so that nothing converts below it.
//! - 64 writes at a time without a flush; and one at a time, each followed by a flush, as a
//!   database does.
//! - `qcow2 off, rest filled`: QEMU before it zeroed new clusters by `fallocate`. The rest of a
//!   cluster is written as data. qemu-nbd does that where the file refuses zeroing, which blkdebug
//!   makes it do. Extant has no such mode: new clusters read as zeros already.
//!
//! Engines that a server does not have on this machine are left out.

use std::fmt;
use std::fs;

use anyhow::Result;
use extant_space::ByteSize;

use super::images::image::{Kind, Side};
use super::images::server::{Aio, Fill, Serving, shown};
use super::images::{DISK, DISK_XFS, ImageLocation, LOOP, LOOP_XFS};
use crate::bench::{Bench, Context, Options, Outcome, rounds};
use crate::fio::Fio;
use crate::goal::Goal;
use crate::measured;
use crate::metrics::Metrics;
use crate::needs::Need;
use crate::table::{self, Table, number};

/// The bench.
pub struct Modes;

/// Durable writes to `full` images over those to `falloc`: the least of formats and engines of
/// ours, on ext4 on the machine's disk.
const FULL_OVER_FALLOC: &str = "durable-full-over-falloc";

const RATE: &str = "requests/s";

/// The requests of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Workload {
    /// 64 at a time.
    Async,
    /// One at a time, each flushed.
    Durable,
}

impl Workload {
    fn fio(self, context: &Context, uri: &str, size: u64) -> Fio {
        let job = Fio::nbd("write", uri)
            .set("rw", "randwrite")
            .set("bs", "4k")
            .set("size", size)
            .set("time_based", 1)
            .set("runtime", context.options.pick(3, 1));
        match self {
            Self::Async => job.set("iodepth", 64),
            Self::Durable => job.set("iodepth", 1).set("fsync", 1),
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Async => "write, depth 64",
            Self::Durable => "write and flush",
        })
    }
}

/// A row of the table.
#[derive(Clone, Copy)]
struct Row {
    place: &'static str,
    kind: Kind,
    fill: Fill,
    workload: Workload,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (place, kind, workload) = (self.place, self.kind, self.workload);
        let fill = match self.fill {
            Fill::Zeroed => "",
            Fill::Written => ", rest filled",
        };
        write!(f, "{place}, {kind}{fill}, {workload}")
    }
}

/// A cell of it.
#[derive(Clone, Copy)]
struct Cell {
    side: Side,
    aio: Aio,
}

impl Cell {
    fn all() -> impl Iterator<Item = Self> {
        let cells = |side| Aio::ALL.map(|aio| Self { side, aio });
        Side::BOTH.into_iter().flat_map(cells)
    }

    fn name(self, row: &Row) -> String {
        format!("{row}, {} {}", self.side, self.aio)
    }
}

fn size(options: &Options, place: &str) -> u64 {
    let size = options.size(4 << 30, 128 << 20);
    match place {
        DISK | DISK_XFS => size,
        _ => size.min(1 << 30),
    }
}

fn rows() -> Vec<Row> {
    let filled = [(Kind::qcow2("off"), Fill::Written)];
    let mut rows = Vec::new();
    for place in [DISK, DISK_XFS, LOOP, LOOP_XFS] {
        for workload in [Workload::Async, Workload::Durable] {
            let kinds = Kind::ALL.map(|kind| (kind, Fill::Zeroed));
            let kinds = kinds.into_iter().chain(filled);
            rows.extend(kinds.map(|(kind, fill)| Row {
                place,
                kind,
                fill,
                workload,
            }));
        }
    }
    rows
}

/// Whether a cell is measured: where the server has the mode and `--only` selects it. `--quick`
/// measures thin images, and what the goal needs, on the disk.
fn is_wanted(options: &Options, row: &Row, cell: Cell) -> bool {
    let exists = row.fill == Fill::Zeroed || cell.side == Side::Qemu;
    let is_quick = row.place == DISK
        && row.kind.format == "qcow2"
        && match row.workload {
            Workload::Async => row.kind.mode == "off",
            Workload::Durable => row.kind.takes_space() && cell.aio == Aio::Native,
        };
    exists
        && options.selects(&cell.name(row))
        && (is_quick || !options.quick || !options.only.is_empty())
}

impl Bench for Modes {
    fn name(&self) -> &'static str {
        "modes"
    }

    fn about(&self) -> &'static str {
        "images of each mode written by each way of host I/O: extant serve beside qemu-nbd"
    }

    fn needs(&self) -> &'static [Need] {
        &[
            Need::Program("fio"),
            Need::Program("qemu-img"),
            Need::Program("qemu-nbd"),
            Need::Program("mkfs.ext4"),
            Need::Program("mkfs.xfs"),
            Need::Root,
        ]
    }

    fn goals(&self) -> &'static [Goal] {
        const { &[Goal::at_least(FULL_OVER_FALLOC, 1.5, "")] }
    }

    /// The file of the XFS on the disk, and an image.
    fn disk_bytes(&self, options: &Options) -> u64 {
        size(options, DISK_XFS) * 5 / 2 + (1 << 30)
    }

    fn run(&self, context: &Context) -> Result<Outcome> {
        let rows = rows();
        let mut outcome = Outcome::default();
        let mut samples = Vec::new();
        let mut places: Vec<ImageLocation> = Vec::new();
        for row in &rows {
            for cell in Cell::all().filter(|&cell| is_wanted(&context.options, row, cell)) {
                let known = places.iter().position(|place| place.name == row.place);
                let place = known.unwrap_or(places.len());
                if known.is_none() {
                    let size = size(&context.options, row.place);
                    places.push(ImageLocation::new(context, row.place, size)?);
                }
                samples.push((place, row, cell));
            }
        }
        let sizes = places
            .iter()
            .map(|place| format!("{} on {}", ByteSize(place.size), place.name));
        outcome.title = format!("images of {}", sizes.collect::<Vec<_>>().join(", "));
        for (round, at) in rounds(context.options.runs(3, 1), samples.len()) {
            let (place, row, cell) = samples[at];
            let name = cell.name(row);
            context.step(format!("round {}: {name}", round + 1));
            sample(context, &places[place], row, cell, &name, &mut outcome)?;
        }
        if let Some(least) = full_over_falloc(&outcome.metrics)? {
            outcome.goals.insert(FULL_OVER_FALLOC, least.into());
        }
        outcome.tables.push(table(&rows, &outcome.metrics));
        Ok(outcome)
    }
}

fn sample(
    context: &Context,
    place: &ImageLocation,
    row: &Row,
    cell: Cell,
    name: &str,
    outcome: &mut Outcome,
) -> Result<()> {
    let Row { kind, fill, .. } = *row;
    let file = place.path.join("image");
    measured::measure(&kind.create(context, cell.side, &file, place.size))?;
    context.settle();
    let serving = Serving {
        kind,
        aio: Some(cell.aio),
        fill,
    };
    if let Some(server) = serving.start(context, cell.side, &file)? {
        let fio = row.workload.fio(context, &server.uri, place.size);
        let rate = fio.run()?.iops;
        let command = format!(
            "{}; {}",
            server.command,
            shown(context, &fio.command(), &file)
        );
        outcome.metrics.record(name, RATE, &command, rate);
        server.end()?;
    } else {
        let note = format!("{} has no --aio={} here", cell.side, cell.aio);
        if !outcome.notes.contains(&note) {
            outcome.notes.push(note);
        }
    }
    fs::remove_file(file)?;
    Ok(())
}

/// `None` if nothing of it was measured.
fn full_over_falloc(metrics: &Metrics) -> Result<Option<f64>> {
    let mut ratios = Vec::new();
    for format in [Kind::raw, Kind::qcow2] {
        for aio in Aio::ALL {
            let [full, falloc] = ["full", "falloc"].map(|mode| {
                let row = Row {
                    place: DISK,
                    kind: format(mode),
                    fill: Fill::Zeroed,
                    workload: Workload::Durable,
                };
                let side = Side::Extant;
                Cell { side, aio }.name(&row)
            });
            if metrics.get(&full, RATE).is_some() && metrics.get(&falloc, RATE).is_some() {
                ratios.push(metrics.ratio(&full, &falloc, RATE)?);
            }
        }
    }
    Ok(ratios.into_iter().reduce(f64::min))
}

fn table(rows: &[Row], metrics: &Metrics) -> Table {
    let cells: Vec<_> = Cell::all().collect();
    let mut heading = vec!["place, image, requests".to_owned()];
    heading.extend(
        cells
            .iter()
            .map(|cell| format!("{} {}", cell.side, cell.aio)),
    );
    heading.extend(Aio::ALL.map(|aio| format!("extant / qemu, {aio}")));
    let mut table = Table::new(&heading.iter().map(String::as_str).collect::<Vec<_>>());
    for row in rows {
        let of = |cell: &Cell| metrics.get(&cell.name(row), RATE);
        if cells.iter().all(|cell| of(cell).is_none()) {
            continue;
        }
        let mut line = vec![row.to_string()];
        line.extend(cells.iter().map(|cell| table::median(of(cell))));
        line.extend(Aio::ALL.map(|aio| {
            let [ours, theirs] = Side::BOTH.map(|side| Cell { side, aio }.name(row));
            let ratio = metrics.ratio(&ours, &theirs, RATE);
            ratio.map_or_else(|_| String::new(), number)
        }));
        table.row(line);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_run_measures_what_the_goal_needs_and_no_mode_that_extant_lacks() {
        let options = Options {
            quick: true,
            ..Options::default()
        };
        let mut metrics = Metrics::default();
        let rows = rows();
        let mut samples = 0;
        for row in &rows {
            for cell in Cell::all().filter(|&cell| is_wanted(&options, row, cell)) {
                assert!(row.fill == Fill::Zeroed || cell.side == Side::Qemu);
                let rate = if row.kind.mode == "full" { 3.0 } else { 1.0 };
                metrics.record(&cell.name(row), RATE, "", rate);
                samples += 1;
            }
        }
        assert_eq!(full_over_falloc(&metrics).unwrap(), Some(3.0));
        assert!((1..20).contains(&samples), "{samples}");
    }
}

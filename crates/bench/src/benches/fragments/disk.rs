//! The part on the machine's disk: raw images on the measured file system, served by `extant serve`
//! and by qemu-nbd without the page cache.
//!
//! The fragmented image was allocated block by block in turns with another file, which is removed
//! then. So its fragments are in ascending order, with free blocks between them.

use std::fmt;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use extant_space::ByteSize;
use extant_testkit::oracle::filefrag_count;
use rustix::fs::{FallocateFlags, fallocate};

use super::layout::BLOCK;
use super::load::{LOADS, Load};
use super::{EXTENTS, KEPT_GOAL};
use crate::bench::{Context, Options, Outcome, rounds};
use crate::benches::images::image::{Kind, Side};
use crate::benches::images::server::{Serving, shown};
use crate::memory;
use crate::metrics::{self, Metrics};
use crate::table::{self, Table, number, spread};

/// Its name in samples.
const PLACE: &str = "disk";
/// Extents of a fragmented image in percent of its blocks, at least.
const FRAGMENTED_MIN_PERCENT: u64 = 98;

/// An image on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pieces {
    One,
    Many,
}

impl Pieces {
    const ALL: [Self; 2] = [Self::One, Self::Many];
}

impl fmt::Display for Pieces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::One => "1 extent",
            Self::Many => "fragments",
        })
    }
}

/// Both images, and the other file of the fragmented one.
pub(super) fn disk_bytes(options: &Options) -> u64 {
    3 * size(options)
}

fn size(options: &Options) -> u64 {
    options.size(400 << 20, 64 << 20)
}

/// Takes the samples, evaluates the goal and adds the table.
pub(super) fn measure(context: &Context, outcome: &mut Outcome) -> Result<()> {
    let options = &context.options;
    let size = size(options);
    let cases: Vec<_> = Pieces::ALL
        .into_iter()
        .flat_map(|pieces| Side::BOTH.map(|side| (pieces, side)))
        .filter(|(pieces, side)| options.selects(&format!("{PLACE}, {pieces}, {side}")))
        .collect();
    for pieces in Pieces::ALL {
        if cases.iter().any(|case| case.0 == pieces) {
            context.step(format!("{PLACE}, {pieces}: the image"));
            let extents = make(context, pieces, size)?;
            let subject = format!("{PLACE}, {pieces}");
            outcome
                .metrics
                .record(&subject, EXTENTS, "", extents as f64);
        }
    }
    for (round, at) in rounds(options.runs(3, 1), cases.len()) {
        let (pieces, side) = cases[at];
        context.step(format!("round {}: {PLACE}, {pieces}, {side}", round + 1));
        sample(context, pieces, side, size, &mut outcome.metrics)?;
    }
    if cases.len() == Pieces::ALL.len() * Side::BOTH.len() {
        outcome.title = format!("images of {} on the disk", ByteSize(size)) + &outcome.title;
        evaluate(outcome)?;
        outcome.tables.push(table(&outcome.metrics)?);
    }
    Ok(())
}

fn name(load: &Load, pieces: Pieces, side: Side) -> String {
    format!("{PLACE}, {}, {pieces}, {side}", load.name)
}

fn file_name(pieces: Pieces) -> &'static str {
    match pieces {
        Pieces::One => "contiguous.raw",
        Pieces::Many => "fragmented.raw",
    }
}

/// Makes an image that is written; returns its extents.
fn make(context: &Context, pieces: Pieces, size: u64) -> Result<u64> {
    let path = context.file(file_name(pieces));
    let mut image = File::create_new(&path)?;
    match pieces {
        Pieces::One => fallocate(&image, FallocateFlags::empty(), 0, size)?,
        Pieces::Many => allocate_in_turns(&image, &context.file("other"), size)?,
    }
    let bytes = vec![0xA5; 1 << 20];
    for _ in 0..size >> 20 {
        image.write_all(&bytes)?;
    }
    image.sync_all()?;
    let extents = filefrag_count(&path);
    let least = size / BLOCK * FRAGMENTED_MIN_PERCENT / 100;
    ensure!(
        pieces == Pieces::One || extents >= least,
        "this file system does not fragment: {extents} extents, {least} wanted"
    );
    Ok(extents)
}

fn allocate_in_turns(image: &File, other: &Path, size: u64) -> Result<()> {
    let between = File::create_new(other)?;
    for at in (0..size).step_by(BLOCK as usize) {
        for file in [image, &between] {
            fallocate(file, FallocateFlags::empty(), at, BLOCK)?;
        }
    }
    Ok(fs::remove_file(other)?)
}

fn sample(
    context: &Context,
    pieces: Pieces,
    side: Side,
    size: u64,
    metrics: &mut Metrics,
) -> Result<()> {
    let file = context.file(file_name(pieces));
    context.settle();
    memory::drop_caches()?;
    let server = Serving::of(Kind::raw("full")).start(context, side, &file)?;
    let server = server.context("the default engine")?;
    for load in &LOADS {
        let fio = load.fio(context, &server.uri, size);
        let rate = load.rate(&fio.run()?);
        let command = format!(
            "{}; {}",
            server.command,
            shown(context, &fio.command(), &file)
        );
        metrics.record(&name(load, pieces, side), load.unit, &command, rate);
    }
    server.end()?;
    Ok(())
}

/// Rate with fragments over rate with one extent, ours over the peer's: the median of the rounds.
fn kept(metrics: &Metrics, load: &Load) -> Result<f64> {
    let samples = |pieces, side| {
        let metric = metrics.of(&name(load, pieces, side), load.unit)?;
        anyhow::Ok(&metric.samples)
    };
    let [ours, theirs] = Side::BOTH.map(|side| {
        let one = samples(Pieces::One, side)?.iter();
        let many = samples(Pieces::Many, side)?.iter();
        anyhow::Ok(many.zip(one).map(|(many, one)| many / one))
    });
    let ratios: Vec<_> = ours?
        .zip(theirs?)
        .map(|(ours, theirs)| ours / theirs)
        .collect();
    metrics::median(&ratios).context("no samples")
}

fn evaluate(outcome: &mut Outcome) -> Result<()> {
    let mut worst = (f64::MAX, "");
    for load in &LOADS {
        let kept = kept(&outcome.metrics, load)?;
        if kept < worst.0 {
            worst = (kept, load.name);
        }
    }
    outcome.goals.insert(KEPT_GOAL, worst.0.into());
    let note = format!("{KEPT_GOAL}: the least is {}", worst.1);
    outcome.notes.push(note);
    Ok(())
}

fn table(metrics: &Metrics) -> Result<Table> {
    let mut table = Table::new(&[
        "on the machine's disk",
        "extant, 1 extent",
        "spread",
        "fragments",
        "spread",
        "/ 1 extent",
        "qemu-nbd, 1 extent",
        "fragments",
        "/ 1 extent",
        "kept, extant / qemu-nbd",
    ]);
    let extents = Pieces::ALL.map(|pieces| {
        let metric = metrics.get(&format!("{PLACE}, {pieces}"), EXTENTS);
        table::median(metric)
    });
    let [one, many] = extents;
    let none = String::new;
    table.row(vec![
        EXTENTS.to_owned(),
        one.clone(),
        none(),
        many.clone(),
        none(),
        none(),
        one,
        many,
        none(),
        none(),
    ]);
    for load in &LOADS {
        let mut row = vec![format!("{}, {}", load.name, load.unit)];
        for side in Side::BOTH {
            let names = Pieces::ALL.map(|pieces| name(load, pieces, side));
            for name in &names {
                let rate = metrics.get(name, load.unit);
                row.push(table::median(rate));
                if side == Side::Extant {
                    row.push(spread(rate));
                }
            }
            row.push(number(metrics.ratio(&names[1], &names[0], load.unit)?));
        }
        row.push(number(kept(metrics, load)?));
        table.row(row);
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goal_is_the_load_in_which_we_keep_the_least_of_what_the_peer_keeps() {
        let mut outcome = Outcome::default();
        for load in &LOADS {
            for (side, many) in [(Side::Extant, 30.0), (Side::Qemu, 40.0)] {
                let many = if load.name == LOADS[4].name {
                    many
                } else {
                    50.0
                };
                for (pieces, rate) in [(Pieces::One, 100.0), (Pieces::Many, many)] {
                    let name = name(load, pieces, side);
                    outcome.metrics.record(&name, load.unit, "", rate);
                }
            }
        }
        evaluate(&mut outcome).unwrap();
        assert_eq!(outcome.goals[KEPT_GOAL], 0.75.into());
        assert!(outcome.notes[0].ends_with(LOADS[4].name));
        assert!(kept(&Metrics::default(), &LOADS[0]).is_err());
    }
}

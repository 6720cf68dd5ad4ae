//! Creation times of images, and their extents.
//!
//! qemu-img writes through the page cache: `full` is measured with warm and with cold memory, as in
//! `written`. Whole commands on the machine's disk; qemu-img does not sync, `extant create` does.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use extant_testkit::command::run;
use extant_testkit::oracle::filefrag_count;

use super::ImageLocation;
use super::image::{Kind, Side};
use super::server::shown;
use crate::bench::{Context, Outcome, rounds};
use crate::goal::Value;
use crate::measured::measure as take;
use crate::metrics::median;
use crate::table::{Table, number, spread};
use crate::{memory, peers};

/// Time of qemu-img over ours, warm: the minimum over all formats and modes except `off`.
pub(super) const ALL_MODES: &str = "create-over-qemu";
/// The same of `full`.
pub(super) const FULL_WARM: &str = "create-full-over-qemu-warm";
/// The same with cold memory.
pub(super) const FULL_COLD: &str = "create-full-over-qemu-cold";
/// Extents of the host file over those that fallocate(1) leaves: the most.
pub(super) const EXTENTS: &str = "extents-over-fallocate";

const SECONDS: &str = "s";
const PIECES: &str = "extents";
const PROBE: &str = "MiB/s first touch of memory";
const FALLOCATE: &str = "create, fallocate -l";
/// Memory counts as cold when it is this much slower than warm memory.
const COLD: f64 = 0.6;

/// State of the free memory before a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    Warm,
    Cold,
}

const FULL: [Kind; 2] = [Kind::raw("full"), Kind::qcow2("full")];

/// Both sides alternate: every kind with warm memory, `full` with cold as well.
fn cases() -> impl Iterator<Item = (Kind, Memory)> {
    let warm = Kind::ALL.into_iter().map(|kind| (kind, Memory::Warm));
    warm.chain(FULL.map(|kind| (kind, Memory::Cold)))
}

pub(super) fn measure(
    context: &Context,
    place: &ImageLocation,
    outcome: &mut Outcome,
) -> Result<()> {
    let runs = context.options.runs(3, 1);
    let file = place.path.join("image");
    let samples: Vec<_> = cases()
        .flat_map(|(kind, memory)| Side::BOTH.map(|side| Some((kind, memory, side))))
        .chain([None])
        .collect();
    for (round, at) in rounds(runs, samples.len()) {
        let Some((kind, memory, side)) = samples[at] else {
            let command = peers::fallocate(&file, place.size, &[]);
            context.settle();
            run(&mut peers::fallocate(&file, place.size, &[]))?;
            let pieces = filefrag_count(&file) as f64;
            let command = shown(context, &command, &file);
            outcome.metrics.record(FALLOCATE, PIECES, &command, pieces);
            fs::remove_file(&file)?;
            continue;
        };
        let name = name(kind, memory, side);
        context.step(format!("round {}: {name}", round + 1));
        context.settle();
        ready(context, memory, place.size)?;
        outcome.metrics.record(&name, PROBE, "", memory::probe()?);
        sample(context, kind, side, &file, place.size, &name, outcome)?;
    }
    evaluate(outcome)?;
    outcome.tables.push(table(outcome)?);
    Ok(())
}

fn ready(context: &Context, memory: Memory, size: u64) -> Result<()> {
    match memory {
        // A quarter more than is needed, as other processes take some of it.
        Memory::Warm => memory::touch(size / 4 * 5).map(drop),
        Memory::Cold => memory::cool(Duration::from_secs(context.options.pick(60, 4))),
    }
}

fn sample(
    context: &Context,
    kind: Kind,
    side: Side,
    file: &Path,
    size: u64,
    name: &str,
    outcome: &mut Outcome,
) -> Result<()> {
    let command = kind.create(context, side, file, size);
    let taken = take(&command)?;
    // Delayed extents have no place yet.
    rustix::fs::sync();
    let shown = shown(context, &command, file);
    let metrics = &mut outcome.metrics;
    metrics.record(name, SECONDS, &shown, taken.seconds);
    metrics.record(name, PIECES, "", filefrag_count(file) as f64);
    fs::remove_file(file)?;
    Ok(())
}

fn evaluate(outcome: &mut Outcome) -> Result<()> {
    let metrics = &outcome.metrics;
    let over = |kind, memory| {
        let (ours, theirs) = (
            name(kind, memory, Side::Extant),
            name(kind, memory, Side::Qemu),
        );
        metrics.ratio(&theirs, &ours, SECONDS)
    };
    let least = |kinds: &[Kind], memory| {
        let ratios = kinds.iter().map(|&kind| over(kind, memory));
        let ratios = ratios.collect::<Result<Vec<_>>>()?;
        let least = ratios.into_iter().reduce(f64::min);
        least.context("a goal without cases")
    };
    // A command without measurable time cannot be slower.
    let in_space: Vec<_> = Kind::ALL
        .into_iter()
        .filter(|kind| kind.takes_space() || kind.mode == "metadata")
        .collect();
    let all = least(&in_space, Memory::Warm)?;
    let full = least(&FULL, Memory::Warm)?;
    let cold = over_cold(outcome)?;
    let mut pieces = Vec::new();
    for kind in Kind::ALL.into_iter().filter(|kind| kind.takes_space()) {
        let ours = name(kind, Memory::Warm, Side::Extant);
        pieces.push(metrics.ratio(&ours, FALLOCATE, PIECES)?);
    }
    let pieces = pieces.into_iter().reduce(f64::max);
    let goals = &mut outcome.goals;
    goals.insert(ALL_MODES, all.into());
    goals.insert(FULL_WARM, full.into());
    goals.insert(FULL_COLD, cold);
    goals.insert(EXTENTS, pieces.context("no mode with space")?.into());
    Ok(())
}

/// The minimum of the formats over the rounds in which memory was cold for qemu-img: the host does
/// not reclaim free pages in every round.
fn over_cold(outcome: &Outcome) -> Result<Value> {
    let (mut measured, mut all) = (Vec::new(), Vec::new());
    for kind in FULL {
        let metrics = &outcome.metrics;
        let (ours, theirs) = (
            name(kind, Memory::Cold, Side::Extant),
            name(kind, Memory::Cold, Side::Qemu),
        );
        let warm = metrics.of(&name(kind, Memory::Warm, Side::Qemu), PROBE)?;
        let limit = warm.median() * COLD;
        let probes = &metrics.of(&theirs, PROBE)?.samples;
        let times = metrics.of(&theirs, SECONDS)?.samples.iter();
        let times = times.zip(&metrics.of(&ours, SECONDS)?.samples);
        let ratios: Vec<_> = probes
            .iter()
            .zip(times)
            .filter(|(probe, _)| **probe <= limit)
            .map(|(_, (theirs, ours))| theirs / ours)
            .collect();
        measured.extend(median(&ratios));
        all.push(metrics.ratio(&theirs, &ours, SECONDS)?);
    }
    Ok(match measured.into_iter().reduce(f64::min) {
        Some(ratio) => Value::Measured(ratio),
        None => Value::Meaningless(
            all.into_iter().fold(f64::INFINITY, f64::min),
            "memory did not get cold in any round".to_owned(),
        ),
    })
}

fn table(outcome: &Outcome) -> Result<Table> {
    let mut table = Table::new(&[
        "create",
        "extant s",
        "spread",
        "qemu-img s",
        "spread",
        "qemu-img / extant",
        "extents, extant",
        "extents, qemu-img",
        "memory, MiB/s",
    ]);
    let metrics = &outcome.metrics;
    for (kind, memory) in cases() {
        let [ours, theirs] = Side::BOTH.map(|side| name(kind, memory, side));
        let seconds = |name: &str| metrics.of(name, SECONDS);
        let pieces = |name: &str| metrics.of(name, PIECES).map(|of| number(of.median()));
        table.row(vec![
            format!("{kind}, {}", word(memory)),
            number(seconds(&ours)?.median()),
            spread(Some(seconds(&ours)?)),
            number(seconds(&theirs)?.median()),
            spread(Some(seconds(&theirs)?)),
            number(metrics.ratio(&theirs, &ours, SECONDS)?),
            pieces(&ours)?,
            pieces(&theirs)?,
            number(metrics.of(&theirs, PROBE)?.median()),
        ]);
    }
    Ok(table)
}

fn name(kind: Kind, memory: Memory, side: Side) -> String {
    format!("create, {kind}, {}, {side}", word(memory))
}

fn word(memory: Memory) -> &'static str {
    match memory {
        Memory::Warm => "warm memory",
        Memory::Cold => "cold memory",
    }
}

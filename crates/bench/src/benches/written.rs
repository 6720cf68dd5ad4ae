//! `written`: a zeroed, written file, by `extant create` and by its peers.
//!
//! Rates are size by wall-clock time of the whole command, start, sync and exit included;
//! fio's ceilings are its own count of the writes alone.
//!
//! There are two ceilings, since a thin disk is slower where nothing was stored before:
//! overwriting a written file, and the first writes to new blocks. `extant create` allocates new
//! blocks; `extant materialize` over blocks that hold data already corresponds to the first
//! ceiling. docs/benchmarks.md, "Traps".

mod huge;
mod method;

use anyhow::Result;
use extant_space::ByteSize;

use crate::bench::{Bench, Context, Options, Outcome, rounds};
use crate::goal::{Goal, Value};
use crate::metrics::{Metrics, median as median_of};
use crate::needs::Need;
use crate::table::{Table, median, spread};
use method::{METHODS, Method, Work};

const RATE: &str = "MiB/s";
const EXTENTS: &str = "extents";
const PEAK: &str = "MiB peak memory";
const PROBE_WARM: &str = "memory, warm";
const PROBE_COLD: &str = "memory, cold";
/// Memory counts as cold when it is this much slower than warm memory.
const COLD: f64 = 0.6;

/// The bench.
pub struct Written;

impl Bench for Written {
    fn name(&self) -> &'static str {
        "written"
    }

    fn about(&self) -> &'static str {
        "a zeroed, written file: extant create, dd, qemu-img, the disk's ceiling"
    }

    fn needs(&self) -> &'static [Need] {
        &[
            Need::Program("fio"),
            Need::Program("qemu-img"),
            Need::Program("fallocate"),
            Need::Program("filefrag"),
            Need::Root,
        ]
    }

    fn goals(&self) -> &'static [Goal] {
        const {
            &[
                Goal::at_least("create-over-dd", 1.2, ""),
                Goal::at_least("create-over-qemu-warm", 1.2, ""),
                Goal::at_least("create-over-qemu-cold", 4.0, ""),
                Goal::at_least("create-over-ceiling", 0.9, ""),
                Goal::at_least("materialize-over-ceiling", 0.9, ""),
                Goal::at_most("extents-over-fallocate", 1.0, ""),
                Goal::at_most("peak-memory", 64.0, "MiB"),
            ]
        }
    }

    fn disk_bytes(&self, options: &Options) -> u64 {
        2 * size(options) + (1 << 30)
    }

    fn run(&self, context: &Context) -> Result<Outcome> {
        let runs = context.options.runs(5, 3);
        let mut metrics = Metrics::default();
        let mut work = Work {
            context,
            size: size(&context.options),
            new: context.file("new.raw"),
            old: context.file("old.raw"),
            metrics: &mut metrics,
        };
        work.prepare()?;
        for (round, method) in rounds(runs, METHODS.len()) {
            let method = METHODS[method];
            context.step(format!("round {}: {}", round + 1, method.name()));
            context.settle();
            work.sample(method)?;
        }
        huge::record(context, &mut metrics)?;
        outcome(context, runs, metrics)
    }
}

fn size(options: &Options) -> u64 {
    options.size(8 << 30, 1 << 30)
}

fn outcome(context: &Context, runs: usize, metrics: Metrics) -> Result<Outcome> {
    let create = Method::Create.name();
    let over = |ours: Method, peer: Method| metrics.ratio(ours.name(), peer.name(), RATE);
    let mut table = Table::new(&[
        "method",
        "MiB/s",
        "spread",
        "s",
        "extents",
        "peak memory MiB",
    ]);
    for method in METHODS {
        let rate = metrics.get(method.name(), RATE);
        table.row(vec![
            method.name().to_owned(),
            median(rate),
            spread(rate),
            median(metrics.get(method.name(), "s")),
            median(metrics.get(method.name(), EXTENTS)),
            median(metrics.get(method.name(), PEAK)),
        ]);
    }
    let mut probes = Table::new(&["first touch of free memory", "MiB/s", "spread"]);
    for (name, shown) in [
        (PROBE_WARM, "before qemu-img, warm"),
        (PROBE_COLD, "before qemu-img, cold"),
    ] {
        let probe = metrics.get(name, RATE);
        probes.row(vec![shown.to_owned(), median(probe), spread(probe)]);
    }
    let size = size(&context.options);
    let mut outcome = Outcome {
        title: format!("{} each, {runs} rounds", ByteSize(size)),
        tables: vec![table, probes, huge::table(&metrics)],
        ..Outcome::default()
    };
    outcome.goals = [
        ("create-over-dd", over(Method::Create, Method::Dd)?.into()),
        (
            "create-over-qemu-warm",
            over(Method::Create, Method::QemuWarm)?.into(),
        ),
        ("create-over-qemu-cold", over_cold(&metrics)?),
        (
            "create-over-ceiling",
            over(Method::Create, Method::Overwrite)?.into(),
        ),
        (
            "materialize-over-ceiling",
            over(Method::Materialize, Method::Overwrite)?.into(),
        ),
        (
            "extents-over-fallocate",
            metrics
                .ratio(create, Method::Fallocate.name(), EXTENTS)?
                .into(),
        ),
        ("peak-memory", peak(&metrics)?.into()),
    ]
    .into();
    outcome.notes = vec![
        format!(
            "extant create reaches {:.2} of the ceiling for new blocks, and that is {:.2} of the ceiling \
             for overwriting: what a thin disk takes for blocks that held nothing",
            over(Method::Create, Method::FirstTouch)?,
            over(Method::FirstTouch, Method::Overwrite)?
        ),
        "ratios are medians of the rounds' own ratios; qemu-img writes through the page cache and \
         does not sync, all others are durable when they end"
            .to_owned(),
    ];
    outcome.metrics = metrics;
    Ok(outcome)
}

/// Create over qemu-img in the rounds in which memory was cold: the host does not reclaim free
/// pages in every round. If it never was, all rounds, and not evaluated.
fn over_cold(metrics: &Metrics) -> Result<Value> {
    let warm = metrics.of(PROBE_WARM, RATE)?.median();
    let probes = &metrics.of(PROBE_COLD, RATE)?.samples;
    let ours = &metrics.of(Method::Create.name(), RATE)?.samples;
    let peers = &metrics.of(Method::QemuCold.name(), RATE)?.samples;
    let ratios: Vec<_> = probes
        .iter()
        .zip(ours.iter().zip(peers))
        .filter(|(probe, _)| **probe <= warm * COLD)
        .map(|(_, (ours, peer))| ours / peer)
        .collect();
    Ok(match median_of(&ratios) {
        Some(ratio) => Value::Measured(ratio),
        None => Value::Meaningless(
            metrics.ratio(Method::Create.name(), Method::QemuCold.name(), RATE)?,
            "memory did not get cold in any round".to_owned(),
        ),
    })
}

/// The most memory that any `extant` of this run had.
fn peak(metrics: &Metrics) -> Result<f64> {
    let mut peak = metrics.of(Method::Create.name(), PEAK)?.max();
    for name in huge::NAMES.into_iter().chain([Method::Materialize.name()]) {
        peak = metrics
            .get(name, PEAK)
            .map_or(peak, |metric| peak.max(metric.max()));
    }
    Ok(peak)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cold(rounds: &[(f64, f64)]) -> Value {
        let mut metrics = Metrics::default();
        for (probe, qemu) in rounds {
            metrics.record(PROBE_WARM, RATE, "", 2000.0);
            metrics.record(PROBE_COLD, RATE, "", *probe);
            metrics.record(Method::Create.name(), RATE, "", 2000.0);
            metrics.record(Method::QemuCold.name(), RATE, "", *qemu);
        }
        over_cold(&metrics).unwrap()
    }

    #[test]
    fn cold_ratio_is_of_cold_rounds_only() {
        let rounds = [(400.0, 400.0), (1900.0, 1000.0), (1800.0, 1000.0)];
        assert_eq!(cold(&rounds), Value::Measured(5.0));
        assert!(matches!(cold(&rounds[1..]), Value::Meaningless(ratio, _) if ratio == 2.0));
    }
}

//! fallocate2 on 1 to 64 threads, with a fit of the universal scalability law.
//!
//! With more threads than processors, every program scales sublinearly. The law is therefore fitted
//! to a perfect program too, whose total grows up to the number of processors and then stays
//! constant: only the excess over its coefficients is the allocator's.

use std::time::Duration;

use anyhow::{Context as _, Result};

use super::behaviours;
use super::fallocate2::{Timing, run};
use super::scalability::Scalability;
use crate::bench::{Context, Outcome, rounds};
use crate::metrics::Metrics;
use crate::table::{Table, number, spread};

/// Goal: rate of one thread.
pub(super) const ONE: &str = "fallocate2-one-thread";
/// Goal: the lowest total of 2 to 64 threads, as a share of the best total.
pub(super) const LOWEST_RATE: &str = "fallocate2-least-of-best";

const THREADS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
pub(super) const RATE: &str = "M/s";
pub(super) const WAIT: &str = "ns waited";
const WAITS: &str = "waits/1000";
pub(super) const BUSY: &str = "busy/1000";

pub(super) fn measure(context: &Context, outcome: &mut Outcome) -> Result<()> {
    let runs = context.options.runs(5, 3);
    let window = Duration::from_millis(context.options.pick(1000, 100));
    let behaviours = behaviours();
    let cells: Vec<_> = behaviours
        .iter()
        .flat_map(|behaviour| THREADS.map(|threads| (behaviour, threads)))
        .collect();
    context.step(format!("fallocate2, 1 to 64 threads; rounds: {runs}"));
    for (_, cell) in rounds(runs, cells.len()) {
        let ((name, options), threads) = cells[cell];
        let sample = run(options, threads, window, Timing::Off)?;
        let metric = metric(name, threads);
        let mut record = |unit, value| outcome.metrics.record(&metric, unit, "", value);
        record(RATE, sample.rate / 1e6);
        record(WAIT, sample.wait_nanos);
        record(WAITS, sample.waits_per_thousand);
        record(BUSY, sample.busy_per_thousand);
    }
    let names = behaviours.map(|(name, _)| name);
    outcome.tables.push(totals(&names, &outcome.metrics)?);
    outcome.tables.push(laws(&names, &outcome.metrics)?);
    outcome.notes.push(
        "lock waits: time from finding a lock held to having it; with more threads than processors it \
         holds the time in which the holder itself waited for a processor"
            .to_owned(),
    );
    evaluate(names[0], outcome)
}

/// Name of the metrics of a behaviour and a number of threads.
pub(super) fn metric(behaviour: &str, threads: usize) -> String {
    match threads {
        1 => format!("fallocate2, {behaviour}, 1 thread"),
        _ => format!("fallocate2, {behaviour}, {threads} threads"),
    }
}

fn evaluate(name: &str, outcome: &mut Outcome) -> Result<()> {
    let rates = points(name, &outcome.metrics)?;
    let best = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let several = rates.iter().filter(|(threads, _)| *threads > 1.0);
    let least = several.map(|(_, rate)| *rate).fold(f64::INFINITY, f64::min);
    outcome.goals.insert(ONE, rates[0].1.into());
    outcome.goals.insert(LOWEST_RATE, (least / best).into());
    Ok(())
}

/// Threads and median total, from one thread up.
fn points(name: &str, metrics: &Metrics) -> Result<Vec<(f64, f64)>> {
    let point = |&threads: &usize| {
        let rate = metrics.of(&metric(name, threads), RATE)?.median();
        Ok((threads as f64, rate))
    };
    THREADS.iter().map(point).collect()
}

fn totals(names: &[&str], metrics: &Metrics) -> Result<Table> {
    let mut table = Table::new(&[
        "fallocate2, threads",
        "M/s in total",
        "spread",
        "ns waited each",
        "waits/1000",
        "busy groups/1000",
    ]);
    for name in names {
        for threads in THREADS {
            let metric = metric(name, threads);
            let rates = metrics.of(&metric, RATE)?;
            let median = |unit| anyhow::Ok(number(metrics.of(&metric, unit)?.median()));
            table.row(vec![
                format!("{name}, {threads}"),
                number(rates.median()),
                spread(Some(rates)),
                median(WAIT)?,
                median(WAITS)?,
                median(BUSY)?,
            ]);
        }
    }
    Ok(table)
}

fn laws(names: &[&str], metrics: &Metrics) -> Result<Table> {
    let mut table = Table::new(&[
        "X(N) = λN/(1+σ(N-1)+κN(N-1))",
        "λ, M/s",
        "σ",
        "κ",
        "worst error %",
    ]);
    let mut row = |name: String, points: &[(f64, f64)]| {
        let law = Scalability::fit(points).context("no rates")?;
        table.row(vec![
            name,
            number(law.lambda),
            format!("{:.4}", law.sigma),
            format!("{:.6}", law.kappa),
            number(law.worst_error(points) * 100.0),
        ]);
        anyhow::Ok(())
    };
    for name in names {
        let mut points = points(name, metrics)?;
        // On a busy machine a short run may see nothing done.
        points.retain(|(_, rate)| *rate > 0.0);
        row((*name).to_owned(), &points)?;
    }
    let processors = std::thread::available_parallelism()?.get();
    let one = metrics.of(&metric(names[0], 1), RATE)?.median();
    let perfect = THREADS.map(|threads| (threads as f64, one * threads.min(processors) as f64));
    row(
        format!("perfect program, {processors} processors"),
        &perfect,
    )?;
    Ok(table)
}

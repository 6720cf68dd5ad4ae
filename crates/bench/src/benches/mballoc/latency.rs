//! Latency of single allocations during fallocate2.

use std::time::Duration;

use anyhow::{Context as _, Result};

use super::behaviours;
use super::fallocate2::{Timing, run};
use super::threads::metric;
use crate::bench::{Context, Outcome, rounds};
use crate::latency::{Latencies, clock_cost};
use crate::table::{Table, number};

const THREADS: [usize; 2] = [1, 16];
const QUANTILES: [(&str, f64); 4] = [
    ("p50 ns", 0.5),
    ("p99 ns", 0.99),
    ("p99.9 ns", 0.999),
    ("max ns", 1.0),
];

pub(super) fn measure(context: &Context, outcome: &mut Outcome) -> Result<()> {
    let runs = context.options.runs(3, 1);
    let window = Duration::from_millis(context.options.pick(1000, 100));
    let behaviours = behaviours();
    let cells: Vec<_> = behaviours
        .iter()
        .flat_map(|behaviour| THREADS.map(|threads| (behaviour, threads)))
        .collect();
    context.step("times of single allocations");
    let clock = clock_cost();
    for (_, cell) in rounds(runs, cells.len()) {
        let ((name, options), threads) = cells[cell];
        let sample = run(options, threads, window, Timing::Sampled)?;
        let latencies = Latencies::new(sample.times).context("no allocation was timed")?;
        for (unit, share) in QUANTILES {
            let time = latencies.quantile(share).saturating_sub(clock);
            let metric = metric(name, threads);
            outcome
                .metrics
                .record(&metric, unit, "", time.as_nanos() as f64);
        }
    }
    let heading = ["one allocation, threads"]
        .into_iter()
        .chain(QUANTILES.map(|(unit, _)| unit));
    let mut table = Table::new(&heading.collect::<Vec<_>>());
    for ((name, _), threads) in cells {
        let mut row = vec![format!("{name}, {threads}")];
        for (unit, _) in QUANTILES {
            let metric = outcome.metrics.of(&metric(name, threads), unit)?;
            row.push(number(metric.median()));
        }
        table.row(row);
    }
    outcome.tables.push(table);
    outcome.notes.push(format!(
        "times of single allocations are without the {} ns that looking at the clock takes; on 16 threads \
         the longest hold the time in which a thread waited for a processor",
        clock.as_nanos()
    ));
    Ok(())
}

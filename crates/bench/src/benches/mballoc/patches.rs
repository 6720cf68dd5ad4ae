//! The effect of each mballoc scalability patch: fallocate2 with the old behaviour plus one patch,
//! with the patches added one by one, and with the new behaviour minus one patch.

use std::time::Duration;

use anyhow::Result;
use extant_mballoc::{
    BusyGroups, FreedExtents, FullGroups, IndexKind, Options, Policy, Reservation, Reuse,
    SharedState, StreamGoals,
};

use super::fallocate2::{Timing, run};
use super::threads::{BUSY, RATE, WAIT, metric};
use crate::bench::{Context, Outcome, rounds};
use crate::metrics::Metrics;
use crate::table::{Table, number};

const THREADS: [usize; 3] = [1, 2, 64];

/// A part of the behaviour that can be set alone.
struct Part {
    name: &'static str,
    new: fn(&mut Options),
    old: fn(&mut Options),
}

/// The patches, in order.
const PATCHES: [Part; 6] = [
    Part {
        name: "skip busy groups",
        new: |options| options.busy_groups = BusyGroups::Skip,
        old: |options| options.busy_groups = BusyGroups::Wait,
    },
    Part {
        name: "several stream goals",
        new: |options| options.stream_goals = StreamGoals::PerCpu,
        old: |options| options.stream_goals = StreamGoals::One,
    },
    Part {
        name: "no global lock",
        new: |options| options.shared_state = SharedState::Atomics,
        old: |options| options.shared_state = SharedState::GlobalLock,
    },
    Part {
        name: "merge freed extents first",
        new: |options| options.freed_extents = FreedExtents::MergeFirst,
        old: |options| options.freed_extents = FreedExtents::InsertFirst,
    },
    Part {
        name: "full groups leave the index",
        new: |options| options.full_groups = FullGroups::LeaveIndex,
        old: |options| options.full_groups = FullGroups::StayInIndex,
    },
    Part {
        name: "ordered index",
        new: |options| options.index = IndexKind::Ordered,
        old: |options| options.index = IndexKind::Lists,
    },
];

/// Extensions beyond the patches.
const FURTHER: [Part; 3] = [
    Part {
        name: "stream goals that stay",
        new: |options| options.stream_goals = StreamGoals::Sticky,
        old: |options| options.stream_goals = StreamGoals::PerCpu,
    },
    Part {
        name: "windows",
        new: |options| options.reservation = Reservation::DEFAULT,
        old: |options| options.reservation = Reservation::None,
    },
    Part {
        name: "reuse inside a transaction",
        new: |options| options.reuse = Reuse::InsideTransaction,
        old: |options| options.reuse = Reuse::AfterCommit,
    },
];

/// Every behaviour that is measured, by its name in the table.
fn behaviours() -> Vec<(String, Options)> {
    let before = Options::before_scalability_patches();
    let mut list = vec![("before the patches".to_owned(), before.clone())];
    for part in &PATCHES {
        let mut options = before.clone();
        (part.new)(&mut options);
        list.push((format!("before, but {}", part.name), options));
    }
    let mut options = before;
    for (at, part) in PATCHES.iter().chain(&FURTHER).enumerate() {
        (part.new)(&mut options);
        // The first alone is above already.
        if at > 0 {
            list.push((format!("and {}", part.name), options.clone()));
        }
    }
    for part in PATCHES.iter().chain(&FURTHER) {
        let mut options = Options::default();
        (part.old)(&mut options);
        list.push((format!("default, but not: {}", part.name), options));
    }
    for policy in [Policy::Linear, Policy::Rotating] {
        let options = Options {
            policy,
            ..Options::default()
        };
        list.push((format!("default, {policy:?}").to_lowercase(), options));
    }
    list
}

pub(super) fn measure(context: &Context, outcome: &mut Outcome) -> Result<()> {
    let runs = context.options.runs(5, 1);
    let window = Duration::from_millis(context.options.pick(400, 50));
    let behaviours = behaviours();
    let cells: Vec<_> = behaviours
        .iter()
        .flat_map(|behaviour| THREADS.map(|threads| (behaviour, threads)))
        .collect();
    context.step(format!("effect of each patch; rounds: {runs}"));
    for (_, cell) in rounds(runs, cells.len()) {
        let ((name, options), threads) = cells[cell];
        let sample = run(options, threads, window, Timing::Off)?;
        let metric = metric(&metric_name(name), threads);
        let mut record = |unit, value| outcome.metrics.record(&metric, unit, "", value);
        record(RATE, sample.rate / 1e6);
        record(WAIT, sample.wait_nanos);
        record(BUSY, sample.busy_per_thousand);
    }
    let names = behaviours.iter().map(|(name, _)| name.as_str());
    outcome.tables.push(table(names, &outcome.metrics)?);
    Ok(())
}

/// The windows are shorter here than in the table of all threads: metrics of their own.
fn metric_name(behaviour: &str) -> String {
    format!("patches, {behaviour}")
}

fn table<'a>(names: impl Iterator<Item = &'a str>, metrics: &Metrics) -> Result<Table> {
    let mut heading = vec!["the patches, one by one".to_owned()];
    let columns = [
        (RATE, "M/s", &THREADS[..]),
        (WAIT, "ns waited", &THREADS[1..]),
        (BUSY, "busy/1000", &THREADS[1..]),
    ];
    for (_, name, threads) in columns {
        heading.extend(threads.iter().map(|threads| format!("{name}, {threads}")));
    }
    let heading: Vec<_> = heading.iter().map(String::as_str).collect();
    let mut table = Table::new(&heading);
    for name in names {
        let mut row = vec![name.to_owned()];
        for (unit, _, threads) in columns {
            for &threads in threads {
                let metric = metrics.of(&metric(&metric_name(name), threads), unit)?;
                row.push(number(metric.median()));
            }
        }
        table.row(row);
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(parts: &[Part], mut options: Options, set: fn(&Part) -> fn(&mut Options)) -> Options {
        for part in parts {
            set(part)(&mut options);
        }
        options
    }

    #[test]
    fn parts_lead_from_before_scalability_patches_to_after_it_and_to_the_default() {
        let after = with(&PATCHES, Options::before_scalability_patches(), |part| {
            part.new
        });
        assert_eq!(after, Options::after_scalability_patches());
        assert_eq!(with(&FURTHER, after, |part| part.new), Options::default());
    }

    #[test]
    fn parts_lead_back_from_the_default() {
        let after = with(&FURTHER, Options::default(), |part| part.old);
        assert_eq!(after, Options::after_scalability_patches());
        let before = with(&PATCHES, after, |part| part.old);
        assert_eq!(before, Options::before_scalability_patches());
    }

    #[test]
    fn behaviours_are_measured_once_each() {
        let list = behaviours();
        for (at, (name, options)) in list.iter().enumerate() {
            for (other, same) in &list[..at] {
                assert_ne!(name, other);
                let is_return = name.starts_with("default") && !other.starts_with("default");
                assert!(is_return || options != same, "{name} and {other}");
            }
        }
    }
}

//! fallocate2 in 1 to 64 containers: operations a second of each, and of all.
//!
//! In the mounts a worker is a process ([`worker`](super::worker)). The allocator alone is measured
//! in threads of one process, because it is no service that processes could share.

use std::time::Duration;

use anyhow::Result;

use super::worker::{Cgroups, run};
use super::{Subject, System};
use crate::bench::{Context, Outcome, rounds};
use crate::benches::mballoc::fallocate2::{self, Timing};
use crate::benches::mballoc::series;
use crate::benches::mount::environment::Environment;
use crate::table::{Table, number, spread};

/// Total of the mount over that of a FUSE server that does nothing; the least of all numbers of
/// workers.
pub(super) const OF_FLOOR: &str = "containers-of-floor";
/// Rate of the mount with the linear scan, over that with the index; the least of all numbers of
/// workers.
pub(super) const LINEAR: &str = "containers-linear-over-optimised";

const MEMORY: u64 = 2 << 30;
/// Few inodes: mke2fs writes the tables of all of them.
const MKFS: [&str; 2] = ["-T", "largefile4"];
const WORKERS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
const FLOOR: &str = "floor";
const RATE: &str = "k/s in total";

pub(super) fn measure(context: &Context, outcome: &mut Outcome) -> Result<()> {
    let counts = context.options.pick(&WORKERS[..], &[1, 2, 16]);
    let runs = context.options.runs(3, 1);
    let window = Duration::from_millis(context.options.pick(1000, 300));
    let cgroups = Cgroups::new(counts[counts.len() - 1]);
    let place = match &cgroups {
        Some(_) => "each in its own cgroup",
        None => "without cgroups, as there is no writable hierarchy of version 2",
    };
    outcome.notes.push(format!(
        "containers: processes, {place}, each bound to a processor; allocator: threads"
    ));
    let behaviours = series().into_iter();
    let behaviours: Vec<_> = behaviours
        .map(|(name, options)| (format!("allocator, {name}"), options))
        .collect();
    let mut systems: Vec<(String, Environment)> = Subject::ALL
        .into_iter()
        .map(|subject| {
            let system = subject.mount(context, MEMORY, &MKFS)?;
            Ok((subject.to_string(), system))
        })
        .collect::<Result<_>>()?;
    systems.push((FLOOR.to_owned(), Environment::of_floor(context)?));
    for (_, system) in &systems {
        outcome.notes.push(system.command().to_owned());
    }
    let cells = (systems.len() + behaviours.len()) * counts.len();
    for (round, cell) in rounds(runs, cells) {
        let (workers, row) = (counts[cell % counts.len()], cell / counts.len());
        let (name, rate) = if let Some((name, system)) = systems.get(row) {
            context.step(format!(
                "containers, round {}: {name}, {workers}",
                round + 1
            ));
            let rates = run(system.path(), workers, window, cgroups.as_ref())?;
            (name.clone(), rates.iter().sum())
        } else {
            let (name, options) = &behaviours[row - systems.len()];
            let window = window / 2;
            let sample = fallocate2::run(options, workers, window, Timing::Off)?;
            (name.clone(), sample.rate)
        };
        let metric = metric(&name, workers);
        outcome.metrics.record(&metric, RATE, "", rate / 1e3);
    }
    let mut names = Vec::new();
    for (name, system) in systems {
        system.end_with(|_| Ok(()))?;
        names.push(name);
    }
    names.extend(behaviours.into_iter().map(|(name, _)| name));
    report(&names, counts, outcome)
}

fn report(names: &[String], counts: &[usize], outcome: &mut Outcome) -> Result<()> {
    let mut table = Table::new(&[
        "fallocate2, workers",
        "k/s of each",
        "k/s in total",
        "spread",
    ]);
    for name in names {
        for &workers in counts {
            let metric = outcome.metrics.of(&metric(name, workers), RATE)?;
            table.row(vec![
                format!("{name}, {workers}"),
                number(metric.median() / workers as f64),
                number(metric.median()),
                spread(Some(metric)),
            ]);
        }
    }
    outcome.tables.push(table);
    let mount = |scan, workers| {
        let name = Subject::new(System::Mount, scan).to_string();
        metric(&name, workers)
    };
    let least = |over: &dyn Fn(usize) -> (String, String)| {
        let ratios = counts.iter().map(|&workers| {
            let (ours, theirs) = over(workers);
            outcome.metrics.ratio(&ours, &theirs, RATE)
        });
        let ratios = ratios.collect::<Result<Vec<_>>>()?;
        anyhow::Ok(ratios.into_iter().fold(f64::INFINITY, f64::min))
    };
    let of_floor = least(&|workers| (mount(1, workers), metric(FLOOR, workers)))?;
    let linear = least(&|workers| (mount(0, workers), mount(1, workers)))?;
    outcome.goals.insert(OF_FLOOR, of_floor.into());
    outcome.goals.insert(LINEAR, linear.into());
    Ok(())
}

fn metric(name: &str, workers: usize) -> String {
    format!("containers, {name}, {workers}")
}

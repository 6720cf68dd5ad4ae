//! `neighbour`: the cost of `extant create --background` for other users of the same disk.
//!
//! The two jobs of "Forced zeroes" (docs/background.md): ten writers of 2 MiB that use the full
//! bandwidth, and one synchronous writer of 4 KiB.
//!
//! - Whole runs, alone and concurrently with `extant create`, alternating (alone, beside, beside,
//!   alone, ...), so that a drift of the machine affects both: minimum, mean, p99 and maximum, as
//!   in the original. The background load starts when fio begins to count, so its start is
//!   included. Runs differ by more than the load costs.
//! - Pairs of short intervals of one run ([`intervals`]): they resolve the loss, and the goals are
//!   evaluated by them.

mod background_load;
pub(in crate::benches) mod columns;
mod intervals;
pub(in crate::benches) mod load;

use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use extant_space::ByteSize;

use crate::bench::{Bench, Context, Options, Outcome, size_word};
use crate::fio::Fio;
use crate::goal::Goal;
use crate::measured::measure;
use crate::metrics::{Metrics, median};
use crate::needs::Need;
use crate::table::{Table, number, spread};
use background_load::{BackgroundLoad, Kind, share};
use intervals::Resolved;
use load::{Files, Load, WRITERS, file_name};

const PACE: &str = "MiB/s meanwhile";
/// Of the rates in a pair of intervals.
const DIFFERENCE: &str = "% of both rates' mean";

/// The bench.
pub struct Neighbour;

impl Bench for Neighbour {
    fn name(&self) -> &'static str {
        "neighbour"
    }

    fn about(&self) -> &'static str {
        "what extant create --background costs a bandwidth job and a latency job"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Program("fio")]
    }

    fn goals(&self) -> &'static [Goal] {
        const {
            &[
                Goal::at_most("bandwidth-lost", 1.0, "%"),
                Goal::at_most("latency-added", 15.0, "%"),
                Goal::at_most("share-bandwidth-lost", 1.0, "%"),
                Goal::at_most("share-requests-lost", 1.0, "%"),
            ]
        }
    }

    fn disk_bytes(&self, options: &Options) -> u64 {
        let files = Files::of(options);
        files.bandwidth * WRITERS + files.latency + files.big + (1 << 30)
    }

    fn run(&self, context: &Context) -> Result<Outcome> {
        let pairs = context.options.runs(6, 2);
        let mut work = Work {
            context,
            files: Files::of(&context.options),
            metrics: Metrics::default(),
            resolved: Vec::new(),
        };
        work.prepare()?;
        for pair in 0..pairs {
            for load in Load::ALL {
                work.pair(load, pair)?;
            }
        }
        let contrasts = context.options.pick(&Kind::ALL[1..], &[Kind::Share]);
        for round in 0..pairs.min(2) {
            for load in Load::ALL {
                for &kind in contrasts {
                    let (load_name, kind_name) = (load.name(), kind.name());
                    context.step(format!("contrast {}: {load_name}, {kind_name}", round + 1));
                    work.beside(load, kind)?;
                }
            }
        }
        for kind in [Kind::Background, Kind::Share] {
            for load in Load::ALL {
                work.intervals(load, kind)?;
            }
        }
        work.outcome(pairs)
    }
}

struct Work<'a> {
    context: &'a Context,
    files: Files,
    metrics: Metrics,
    resolved: Vec<Resolved>,
}

impl Work<'_> {
    fn prepare(&mut self) -> Result<()> {
        self.context.step("the jobs' files, written");
        for writer in 0..WRITERS {
            self.written(&self.context.file(&file_name(writer)), self.files.bandwidth)?;
        }
        self.written(&self.context.file("latency"), self.files.latency)?;
        self.context.settle();
        for load in Load::ALL {
            // The first run after the files were made is slower than all later ones.
            self.context.step(format!("{}, for practice", load.name()));
            self.job(load, 1).run()?;
        }
        let (rate, command) = background_load::alone(self.context, self.files.big)?;
        self.metrics
            .record("--background, idle disk", PACE, &command, rate);
        Ok(())
    }

    fn written(&self, file: &Path, bytes: u64) -> Result<()> {
        let mut command = self.context.extant();
        command.arg("create").arg(file).arg(size_word(bytes));
        measure(&command).map(drop)
    }

    fn times(&self) -> (Duration, Duration) {
        let (ramp, run) = self.context.options.pick((2, 20), (1, 3));
        (Duration::from_secs(ramp), Duration::from_secs(run))
    }

    fn job(&self, load: Load, runtime_seconds: u64) -> Fio {
        let ramp = self.times().0.as_secs();
        let job = load.job(self.context.path(), self.files);
        job.set("ramp_time", ramp).set("runtime", runtime_seconds)
    }

    /// Alone and beside, the order turning from pair to pair.
    fn pair(&mut self, load: Load, pair: usize) -> Result<()> {
        self.context
            .step(format!("pair {}: {}", pair + 1, load.name()));
        let (alone, beside) = if pair.is_multiple_of(2) {
            let alone = self.alone(load)?;
            (alone, self.beside(load, Kind::Background)?)
        } else {
            let beside = self.beside(load, Kind::Background)?;
            (self.alone(load)?, beside)
        };
        let cost = load.cost_percent(alone, beside);
        let name = figure_name(load, Kind::Background);
        self.metrics.record(&name, load.cost_unit(), "", cost);
        Ok(())
    }

    fn alone(&mut self, load: Load) -> Result<f64> {
        self.context.settle();
        let job = self.job(load, self.times().1.as_secs());
        let writes = job.run()?;
        let shown = self.context.shown(&job.command());
        columns::record(&mut self.metrics, &alone_name(load), &shown, &writes);
        Ok(load.value(&writes))
    }

    fn beside(&mut self, load: Load, kind: Kind) -> Result<f64> {
        self.context.settle();
        let (ramp, runtime) = self.times();
        let job = self.job(load, runtime.as_secs());
        let (writes, pace, command) = thread::scope(|scope| {
            let fio = scope.spawn(|| job.run());
            thread::sleep(ramp);
            let company = BackgroundLoad::start(self.context, kind, self.files.big);
            let writes = fio.join().expect("the runner does not panic");
            let pace = company.and_then(BackgroundLoad::stop);
            pace.and_then(|pace| Ok((writes?, pace.0, pace.1)))
        })?;
        let name = figure_name(load, kind);
        ensure!(pace > 0.0 || kind != Kind::Dd, "{name}: dd wrote nothing");
        columns::record(&mut self.metrics, &name, &command, &writes);
        self.metrics.record(&name, PACE, &command, pace);
        Ok(load.value(&writes))
    }

    fn intervals(&mut self, load: Load, kind: Kind) -> Result<()> {
        let options = &self.context.options;
        let pairs_max = options.pairs.unwrap_or(options.pick(1200, 40));
        let (load_name, kind_name) = (load.name(), kind.name());
        self.context
            .step(format!("intervals: {load_name}, {kind_name}"));
        self.context.settle();
        // Ended earlier by dropping it.
        let job = self.job(load, 24 * 3600);
        let case = Resolved::measure(self.context, &job, (load, kind), self.files.big, pairs_max)?;
        let name = format!("{}, intervals", figure_name(load, kind));
        for difference in case.pairs.differences() {
            let percent = difference * 100.0;
            self.metrics
                .record(&name, DIFFERENCE, &case.command, percent);
        }
        self.context.step(case.row().join("  "));
        self.resolved.push(case);
        Ok(())
    }

    fn outcome(self, pairs: usize) -> Result<Outcome> {
        let mut outcome = Outcome {
            title: format!(
                "{pairs} pairs of {} s; jobs on {} and {}",
                self.times().1.as_secs(),
                ByteSize(self.files.bandwidth * WRITERS),
                ByteSize(self.files.latency)
            ),
            ..Outcome::default()
        };
        let share = share(&self.context.options);
        outcome.notes.push(format!(
            "SHARE is {share}; in whole runs its cost is that of the medians"
        ));
        outcome.tables.push(intervals::table(&self.resolved));
        for load in Load::ALL {
            outcome.tables.push(self.table(load)?);
            let alone = self.metrics.of(&alone_name(load), load.unit())?;
            outcome.notes.push(format!(
                "{} alone: whole runs differ by {} % of their median; a pair of them cannot distinguish a lower cost from noise",
                load.name(),
                number(alone.spread_percent())
            ));
        }
        let names = Load::ALL.into_iter().flat_map(|load| {
            let beside = Kind::ALL.map(|kind| figure_name(load, kind));
            std::iter::once(alone_name(load)).chain(beside)
        });
        let names: Vec<_> = names.collect();
        outcome.tables.push(columns::table(&self.metrics, &names)?);
        for (goal, case) in Neighbour.goals().iter().zip(&self.resolved) {
            let estimate = match case.kind {
                Kind::Share => case.lost().map(|lost| lost - share.percent()),
                _ => case.cost(),
            };
            outcome.goals.insert(goal.name, case.judged(estimate));
        }
        let pace = self.metrics.of("--background, idle disk", PACE)?;
        outcome.notes.push(format!(
            "extant create --background with the disk to itself: {} MiB/s",
            number(pace.median())
        ));
        outcome.metrics = self.metrics;
        Ok(outcome)
    }

    fn table(&self, load: Load) -> Result<Table> {
        let heading = [
            load.name(),
            load.unit(),
            "spread",
            load.cost_unit(),
            "spread",
            "the other, MiB/s",
            "spread",
        ];
        let mut table = Table::new(&heading);
        let alone = self.metrics.of(&alone_name(load), load.unit())?;
        let mut row = vec![
            "alone".to_owned(),
            number(alone.median()),
            spread(Some(alone)),
        ];
        row.resize(heading.len(), String::new());
        table.row(row);
        for kind in Kind::ALL {
            let name = figure_name(load, kind);
            let Some(beside) = self.metrics.get(&name, load.unit()) else {
                continue;
            };
            let (cost, cost_spread) = match self.metrics.get(&name, load.cost_unit()) {
                Some(pairs) => (pairs.median(), spread(Some(pairs))),
                None => {
                    let beside = median(&beside.samples).unwrap_or_default();
                    (load.cost_percent(alone.median(), beside), String::new())
                }
            };
            let pace = self.metrics.of(&name, PACE)?;
            table.row(vec![
                format!("beside {}", kind.name()),
                number(beside.median()),
                spread(Some(beside)),
                number(cost),
                cost_spread,
                number(pace.median()),
                spread(Some(pace)),
            ]);
        }
        Ok(table)
    }
}

fn alone_name(load: Load) -> String {
    format!("{} alone", load.name())
}

fn figure_name(load: Load, kind: Kind) -> String {
    format!("{} beside {}", load.name(), kind.name())
}

//! The cost of a background load in short intervals of one running job.
//!
//! The background program is stopped and continued (SIGSTOP, SIGCONT) every half second under one
//! running fio. After each switch [`SETTLE`] is discarded: requests in flight end, and the pace of
//! the background program takes its course (it knows that it was stopped, see
//! docs/internals/provision.md). A pair is the interval before a switch and the one after it. The
//! length of the pauses varies at random, so that nothing periodic of the machine stays in step
//! with them.
//!
//! The job's progress is the kernel's count of what its processes have written; other users of the
//! disk are not in it. For a job with one request at a time it is the time of a request, of which
//! some percent are fio's own.
//!
//! Pairs are added until the interval of confidence is narrow enough. The rule depends on
//! its width, never on the value.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::background_load::{BackgroundLoad, Kind};
use super::load::Load;
use crate::bench::Context;
use crate::fio::Fio;
use crate::goal::Value;
use crate::measured::mib;
use crate::paired::{Estimate, Pairs};
use crate::process::written_bytes;
use crate::random::Random;
use crate::table::{Table, number};

/// Until the disk does what it does with the program, or without it.
const SETTLE: Duration = Duration::from_millis(200);
/// One interval; two follow each switch.
const INTERVAL: Duration = Duration::from_millis(150);
/// Most that is added to a pause.
const JITTER: Duration = Duration::from_millis(100);
/// Time for fio and the program to start.
const START: Duration = Duration::from_secs(3);
const SEED: u64 = 21;
/// Half of the width of the interval of confidence at which a loss is resolved, percent.
const HALF_WIDTH_MAX: f64 = 1.0;
/// Fewer have no trustworthy interval.
const PAIRS_MIN: usize = 100;
/// How often the interval is computed.
const CHECK_EVERY: usize = 10;

/// The pairs of one case.
pub(super) struct Resolved {
    load: Load,
    pub(super) kind: Kind,
    pub(super) pairs: Pairs,
    /// Rate of the background program in its intervals.
    other_mib_per_second: f64,
    pub(super) command: String,
}

impl Resolved {
    pub(super) fn measure(
        context: &Context,
        job: &Fio,
        (load, kind): (Load, Kind),
        big: u64,
        pairs_max: usize,
    ) -> Result<Self> {
        let fio = job.start()?;
        thread::sleep(START);
        let company = BackgroundLoad::start(context, kind, big)?;
        let mut case = Self {
            load,
            kind,
            pairs: Pairs::default(),
            other_mib_per_second: 0.0,
            command: String::new(),
        };
        let done = case.switch(fio.pid(), &company, pairs_max);
        case.command = company.stop()?.1;
        drop(fio);
        done.map(|()| case)
    }

    fn switch(&mut self, job: u32, company: &BackgroundLoad, pairs_max: usize) -> Result<()> {
        let mut random = Random::new(SEED);
        let (mut other_bytes, mut other_seconds) = (0, 0.0);
        thread::sleep(START);
        company.pause()?;
        thread::sleep(SETTLE);
        // Pairs in which neither made progress do not count, but end.
        for round in 1..=pairs_max.div_ceil(2) {
            thread::sleep(random.moment(JITTER));
            let before = rate(job)?;
            let others_before = company.written_bytes()?;
            company.resume()?;
            thread::sleep(SETTLE);
            let (first, last) = (rate(job)?, rate(job)?);
            company.pause()?;
            other_bytes += company.written_bytes()?.saturating_sub(others_before);
            other_seconds += (SETTLE + INTERVAL * 2).as_secs_f64();
            thread::sleep(SETTLE);
            let after = rate(job)?;
            self.pairs.add(before, first);
            self.pairs.add(after, last);
            let count = self.pairs.count();
            if count >= PAIRS_MIN && round % CHECK_EVERY == 0 && self.is_resolved() {
                break;
            }
        }
        ensure!(
            self.pairs.count() > 0,
            "{}: fio wrote nothing",
            self.load.name()
        );
        self.other_mib_per_second = mib(other_bytes) / other_seconds;
        Ok(())
    }

    /// The cost by the median of the pairs, percent.
    pub(super) fn cost(&self) -> Estimate {
        self.pairs
            .median_ratio()
            .map(|ratio| self.load.cost_of_ratio(ratio))
    }

    /// Loss of the job's rate, percent.
    pub(super) fn lost(&self) -> Estimate {
        self.pairs
            .median_ratio()
            .map(|ratio| Load::Bandwidth.cost_of_ratio(ratio))
    }

    fn is_resolved(&self) -> bool {
        self.pairs.count() >= PAIRS_MIN && self.cost().half_width() <= HALF_WIDTH_MAX
    }

    /// For a goal: evaluated only if it is resolved.
    pub(super) fn judged(&self, estimate: Estimate) -> Value {
        let count = self.pairs.count();
        if count >= PAIRS_MIN && estimate.half_width() <= HALF_WIDTH_MAX {
            return Value::Measured(estimate.value);
        }
        let factor = (estimate.half_width() / HALF_WIDTH_MAX).powi(2);
        let needed = (count as f64 * factor).ceil().max(PAIRS_MIN as f64);
        Value::Meaningless(
            estimate.value,
            format!(
                "noise: {} to {} with 95 % confidence by {count} pairs; about {needed} make it certain to \
                 {HALF_WIDTH_MAX} % (--pairs)",
                number(estimate.low),
                number(estimate.high)
            ),
        )
    }

    pub(super) fn row(&self) -> Vec<String> {
        let by_mean = self
            .pairs
            .mean_ratio()
            .map(|ratio| self.load.cost_of_ratio(ratio));
        let (by_median, range) = (self.cost(), |estimate: Estimate| {
            format!("{}..{}", number(estimate.low), number(estimate.high))
        });
        vec![
            format!("{} beside {}", self.load.name(), self.kind.name()),
            self.load.cost_unit().to_owned(),
            self.pairs.count().to_string(),
            number(by_median.value),
            range(by_median),
            number(by_mean.value),
            range(by_mean),
            number(self.other_mib_per_second),
        ]
    }
}

/// The table of all cases.
pub(super) fn table(cases: &[Resolved]) -> Table {
    let mut table = Table::new(&[
        "pairs of intervals",
        "",
        "pairs",
        "median",
        "95 %",
        "mean",
        "95 %",
        "the other, MiB/s",
    ]);
    for case in cases {
        table.row(case.row());
    }
    table
}

/// Bytes a second that a job writes during the next interval.
fn rate(job: u32) -> Result<f64> {
    let (start, first) = (Instant::now(), written_bytes(job)?);
    thread::sleep(INTERVAL);
    let (end, last) = (Instant::now(), written_bytes(job)?);
    Ok(last.saturating_sub(first) as f64 / (end - start).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pairs that differ by `noise` from a loss of 2 %.
    fn case(count: usize, noise: f64) -> Resolved {
        let mut random = Random::new(1);
        let mut pairs = Pairs::default();
        for _ in 0..count {
            pairs.add(1.0, 0.98 + noise * (random.fraction() - 0.5));
        }
        Resolved {
            load: Load::Bandwidth,
            kind: Kind::Background,
            pairs,
            other_mib_per_second: 0.0,
            command: String::new(),
        }
    }

    #[test]
    fn loss_is_judged_only_by_a_narrow_interval_of_enough_pairs() {
        let quiet = case(100, 0.02);
        let Value::Measured(lost) = quiet.judged(quiet.lost()) else {
            panic!("{:?}", quiet.lost());
        };
        assert!((1.5..2.5).contains(&lost), "{lost}");
        let few = case(PAIRS_MIN - 1, 0.02);
        assert!(matches!(few.judged(few.lost()), Value::Meaningless(..)));
    }

    #[test]
    fn wide_interval_names_the_pairs_that_make_it_narrow() {
        let noisy = case(100, 0.4);
        let Value::Meaningless(_, why) = noisy.judged(noisy.lost()) else {
            panic!("{:?}", noisy.lost());
        };
        let needed = why.split_once("about ").unwrap().1;
        let needed: usize = needed.split(' ').next().unwrap().parse().unwrap();
        let enough = case(needed * 3 / 2, 0.4);
        assert!(enough.is_resolved(), "{why}: {:?}", enough.lost());
        assert!(needed > 100, "{why}");
    }
}

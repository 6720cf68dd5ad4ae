//! Statistics of two conditions that alternate under one running job.
//!
//! A pair is the rates of two intervals of equal length, on both sides of a switch from one
//! condition to the other or back. Both directions are equally frequent, so that a steady drift
//! cancels; both intervals have the same noise, so that the median of no loss is zero, which it is
//! not where one side is an average. A difference is relative to the mean of both rates: its
//! expectation is zero without a loss, unlike that of a ratio, and an interval without any progress
//! stays finite.
//!
//! Intervals of confidence are percentile bootstraps over the pairs, with a fixed seed.

use crate::metrics::median;
use crate::random::Random;

const SEED: u64 = 21;
const RESAMPLES: usize = 1000;
/// In 95 of 100 repetitions the interval holds the true value.
const COVERAGE: f64 = 0.95;

/// A value and its interval of confidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Of all pairs.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl Estimate {
    /// The same under a monotonic function.
    pub fn map(self, function: impl Fn(f64) -> f64) -> Self {
        let ends = [function(self.low), function(self.high)];
        Self {
            value: function(self.value),
            low: ends[0].min(ends[1]),
            high: ends[0].max(ends[1]),
        }
    }

    /// Half of the interval's width.
    pub fn half_width(self) -> f64 {
        (self.high - self.low) / 2.0
    }
}

/// Pairs of rates.
#[derive(Clone, Debug, Default)]
pub struct Pairs {
    differences: Vec<f64>,
}

impl Pairs {
    /// Adds the rates of a pair; `false` if there was no progress in either.
    pub fn add(&mut self, first: f64, second: f64) -> bool {
        let sum = first + second;
        if sum > 0.0 {
            self.differences.push(2.0 * (first - second) / sum);
        }
        sum > 0.0
    }

    /// Their number.
    pub fn count(&self) -> usize {
        self.differences.len()
    }

    /// First rate less second, relative to the mean of both, of each pair.
    pub fn differences(&self) -> &[f64] {
        &self.differences
    }

    /// The second rate over the first, by the median of the pairs.
    pub fn median_ratio(&self) -> Estimate {
        self.bootstrap(|samples| median(samples).unwrap_or(f64::NAN))
    }

    /// The same by their mean.
    pub fn mean_ratio(&self) -> Estimate {
        self.bootstrap(|samples| samples.iter().sum::<f64>() / samples.len() as f64)
    }

    fn bootstrap(&self, statistic: fn(&[f64]) -> f64) -> Estimate {
        let mut random = Random::new(SEED);
        let count = self.count();
        let resample = |_| {
            let draw = |_| self.differences[(random.fraction() * count as f64) as usize];
            let samples: Vec<f64> = (0..count).map(draw).collect();
            statistic(&samples)
        };
        let mut found: Vec<f64> = (0..RESAMPLES).map(resample).collect();
        found.sort_by(f64::total_cmp);
        let outside = ((1.0 - COVERAGE) / 2.0 * RESAMPLES as f64) as usize;
        let estimate = Estimate {
            value: statistic(&self.differences),
            low: found[outside],
            high: found[RESAMPLES - 1 - outside],
        };
        estimate.map(ratio)
    }
}

/// The second rate over the first, of a difference relative to the mean of both.
fn ratio(difference: f64) -> f64 {
    (2.0 - difference) / (2.0 + difference)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pairs on a simulated disk whose rate drifts, is noisy, and stalls in one interval of 20; the
    /// second condition loses `loss` of the rate.
    fn simulate(seed: u64, count: usize, loss: f64) -> Pairs {
        let mut random = Random::new(seed);
        let mut normal = move || (0..12).map(|_| random.fraction()).sum::<f64>() - 6.0;
        let mut stalls = Random::new(!seed);
        let mut level = 1e9;
        let mut interval = || {
            level *= f64::exp(0.03 * normal());
            let stall = if stalls.fraction() < 0.05 { 0.2 } else { 1.0 };
            level * stall * (1.0 + 0.08 * normal())
        };
        let mut pairs = Pairs::default();
        for at in 0..count {
            let (before, after) = (interval(), interval());
            let (alone, beside) = if at % 2 == 0 {
                (before, after)
            } else {
                (after, before)
            };
            pairs.add(alone, beside * (1.0 - loss));
        }
        pairs
    }

    fn lost(estimate: Estimate) -> Estimate {
        estimate.map(|ratio| (1.0 - ratio) * 100.0)
    }

    #[test]
    fn known_loss_is_recovered_without_bias() {
        for loss in [0.0, 0.03, 0.2] {
            let runs: Vec<_> = (0..9)
                .map(|seed| lost(simulate(seed, 1000, loss).median_ratio()))
                .collect();
            let mean = runs.iter().map(|found| found.value).sum::<f64>() / 9.0;
            assert!((mean - loss * 100.0).abs() < 0.5, "{loss}: {mean}");
            assert!(
                runs.iter().all(|found| found.half_width() < 1.4),
                "{runs:?}"
            );
        }
    }

    #[test]
    fn interval_of_few_pairs_holds_the_known_loss_in_nine_of_ten_repetitions() {
        let holds = |estimate: Estimate| {
            let found = lost(estimate);
            found.low <= 3.0 && 3.0 <= found.high
        };
        let repetitions: Vec<_> = (0..60).map(|seed| simulate(seed, 80, 0.03)).collect();
        let by_median = repetitions.iter().filter(|it| holds(it.median_ratio()));
        let by_mean = repetitions.iter().filter(|it| holds(it.mean_ratio()));
        let found = (by_median.count(), by_mean.count());
        assert!(found.0 >= 54 && found.1 >= 54, "{found:?}");
    }

    #[test]
    fn interval_narrows_with_the_number_of_pairs() {
        let width = |count| simulate(7, count, 0.03).median_ratio().half_width();
        assert!(width(1600) < width(100) / 2.0);
    }

    #[test]
    fn pair_without_progress_counts_for_nothing_and_a_stall_for_all() {
        let mut pairs = Pairs::default();
        assert!(!pairs.add(0.0, 0.0));
        assert!(pairs.add(5.0, 0.0));
        assert!(pairs.add(4.0, 5.0));
        let ratios: Vec<f64> = pairs.differences().iter().copied().map(ratio).collect();
        assert_eq!(ratios[0], 0.0);
        assert!((ratios[1] - 1.25).abs() < 1e-9);
    }
}

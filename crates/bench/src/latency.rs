//! Latency quantiles of operations that are too short or too many for a metric each.
//!
//! Samples are kept whole and sorted at the end: a histogram's buckets would blur the ratio of
//! two medians.

use std::time::{Duration, Instant};

/// The times of many operations, in order of their length.
pub struct Latencies {
    sorted: Vec<Duration>,
}

impl Latencies {
    /// `None` without samples.
    pub fn new(mut samples: Vec<Duration>) -> Option<Self> {
        samples.sort_unstable();
        (!samples.is_empty()).then_some(Self { sorted: samples })
    }

    /// The time that this share of the operations did not exceed, 0 to 1.
    pub fn quantile(&self, share: f64) -> Duration {
        let rank = (share * self.sorted.len() as f64).ceil() as usize;
        self.sorted[rank.clamp(1, self.sorted.len()) - 1]
    }

    /// Number of samples.
    pub fn count(&self) -> usize {
        self.sorted.len()
    }
}

/// Cost of the time measurement: the median difference of two consecutive clock reads.
pub fn clock_cost() -> Duration {
    let twice = |_| {
        let start = Instant::now();
        start.elapsed()
    };
    let samples: Vec<_> = (0..10_000).map(twice).collect();
    Latencies::new(samples).map_or(Duration::ZERO, |clock| clock.quantile(0.5))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantile_is_the_sample_of_that_rank() {
        let samples = (1..=1000).rev().map(Duration::from_nanos).collect();
        let latencies = Latencies::new(samples).unwrap();
        let nanos = |share| latencies.quantile(share).as_nanos();
        assert_eq!((nanos(0.0), nanos(0.5), nanos(0.999)), (1, 500, 999));
        assert_eq!((nanos(1.0), latencies.count()), (1000, 1000));
    }

    #[test]
    fn no_samples_have_no_quantiles() {
        assert!(Latencies::new(Vec::new()).is_none());
    }
}

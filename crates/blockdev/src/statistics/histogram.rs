//! Histograms with buckets that grow with the value.
//!
//! Values below 16 have a bucket each; above, every power of two is cut into 16 buckets of one
//! width, so that a bucket is at most 1/16 of its value wide. This is the layout of HdrHistogram at
//! two significant bits more than a decimal digit; values beyond [`VALUE_MAX`] are counted in the
//! last bucket.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

/// Buckets in a power of two, as a power of two.
const PRECISION: u32 = 4;
const STEPS: u64 = 1 << PRECISION;
/// About 73 minutes in nanoseconds, 4 TiB in bytes.
const VALUE_MAX: u64 = (1 << 42) - 1;
const BUCKETS: usize = bucket_of(VALUE_MAX) + 1;

/// The shared side: threads of this shard record into it.
pub(super) struct Recorder {
    buckets: Box<[AtomicU64]>,
    sum: AtomicU64,
}

/// Counts of values, to within 1/16 of the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    buckets: Vec<u64>,
    sum: u64,
}

const fn bucket_of(value: u64) -> usize {
    if value < STEPS {
        return value as usize;
    }
    let value = if value > VALUE_MAX { VALUE_MAX } else { value };
    let shift = value.ilog2() - PRECISION;
    (shift as u64 * STEPS + (value >> shift)) as usize
}

/// The largest value of a bucket.
fn largest_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < STEPS {
        return bucket;
    }
    let shift = bucket / STEPS - 1;
    ((bucket - shift * STEPS + 1) << shift) - 1
}

impl Default for Recorder {
    fn default() -> Self {
        Self {
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
        }
    }
}

impl Recorder {
    pub(super) fn record(&self, value: u64) {
        self.buckets[bucket_of(value)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    pub(super) fn add_to(&self, histogram: &mut Histogram) {
        for (from, to) in self.buckets.iter().zip(&mut histogram.buckets) {
            *to += from.load(Ordering::Relaxed);
        }
        histogram.sum = histogram.sum.wrapping_add(self.sum.load(Ordering::Relaxed));
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            buckets: vec![0; BUCKETS],
            sum: 0,
        }
    }
}

impl Histogram {
    /// Values recorded.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Their average, exact; `None` of nothing.
    pub fn mean(&self) -> Option<f64> {
        let count = self.count();
        (count > 0).then(|| self.sum as f64 / count as f64)
    }

    /// A value that `percent` of the values do not exceed, rounded up within its bucket; `None` of
    /// nothing.
    ///
    /// # Panics
    /// When `percent` is not from 0 to 100.
    pub fn percentile(&self, percent: f64) -> Option<u64> {
        assert!((0.0..=100.0).contains(&percent), "{percent} percent");
        let count = self.count();
        let wanted = ((count as f64 * percent / 100.0).ceil() as u64).clamp(1, count.max(1));
        let mut seen = 0;
        let reaches = |occurred: &u64| {
            seen += occurred;
            seen >= wanted
        };
        self.buckets.iter().position(reaches).map(largest_of)
    }

    /// The largest value, rounded up within its bucket; `None` of nothing.
    pub fn max(&self) -> Option<u64> {
        self.percentile(100.0)
    }

    /// The non-empty buckets: largest value, count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let all = self.buckets.iter().enumerate();
        all.filter(|(_, count)| **count > 0)
            .map(|(bucket, count)| (largest_of(bucket), *count))
    }

    /// Difference to `earlier`, an older state of the same counters.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        let pairs = self.buckets.iter().zip(&earlier.buckets);
        Self {
            buckets: pairs.map(|(now, then)| now.saturating_sub(*then)).collect(),
            sum: self.sum.wrapping_sub(earlier.sum),
        }
    }
}

impl Serialize for Histogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Histogram", 7)?;
        fields.serialize_field("mean", &self.mean())?;
        fields.serialize_field("p50", &self.percentile(50.0))?;
        fields.serialize_field("p90", &self.percentile(90.0))?;
        fields.serialize_field("p99", &self.percentile(99.0))?;
        fields.serialize_field("p99_9", &self.percentile(99.9))?;
        fields.serialize_field("max", &self.max())?;
        fields.serialize_field("buckets", &self.buckets().collect::<Vec<_>>())?;
        fields.end()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn histogram_of(values: &[u64]) -> Histogram {
        let recorder = Recorder::default();
        values.iter().for_each(|value| recorder.record(*value));
        let mut histogram = Histogram::default();
        recorder.add_to(&mut histogram);
        histogram
    }

    #[test]
    fn buckets_follow_each_other_without_gaps() {
        let mut from = 0;
        for bucket in 0..BUCKETS {
            assert_eq!(bucket_of(from), bucket, "of {from}");
            assert_eq!(bucket_of(largest_of(bucket)), bucket);
            from = largest_of(bucket) + 1;
        }
        assert_eq!(from, VALUE_MAX + 1);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn nothing_recorded_has_no_percentile_and_no_mean() {
        let nothing = Histogram::default();
        assert_eq!((nothing.percentile(50.0), nothing.mean()), (None, None));
    }

    proptest! {
        #[test]
        fn percentiles_are_those_of_the_sorted_values_within_a_sixteenth(
            mut values in prop::collection::vec(0u64..1 << 40, 1..200),
            percent in 0.0f64..=100.0,
        ) {
            let histogram = histogram_of(&values);
            values.sort_unstable();
            let rank = ((values.len() as f64 * percent / 100.0).ceil() as usize).max(1);
            let exact = values[rank - 1];
            let shown = histogram.percentile(percent).unwrap();
            prop_assert!(exact <= shown && shown - exact <= exact / 16, "{shown} for {exact}");
            let mean = values.iter().sum::<u64>() as f64 / values.len() as f64;
            prop_assert_eq!(histogram.mean(), Some(mean));
        }

        #[test]
        fn difference_of_two_states_has_the_values_recorded_between(
            first in prop::collection::vec(any::<u64>(), 0..50),
            second in prop::collection::vec(any::<u64>(), 0..50),
        ) {
            let both = [first.clone(), second.clone()].concat();
            prop_assert_eq!(histogram_of(&both).since(&histogram_of(&first)), histogram_of(&second));
        }
    }
}

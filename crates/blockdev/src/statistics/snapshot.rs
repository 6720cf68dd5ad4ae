//! Counts at one time, or between two times.

use std::fmt;
use std::time::Duration;

use extant_space::ByteSize;
use serde::{Serialize, Serializer};

use super::Histogram;
use crate::OperationKind;

/// The counters of all kinds of operations.
///
/// Shown as a table of the kinds that occurred; serialized as a map from kind to counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatisticsSnapshot {
    pub(super) operations: [OperationStatistics; OperationKind::ALL.len()],
}

/// The counters of one kind of operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OperationStatistics {
    /// Requests that failed; they count in the histograms.
    pub errors: u64,
    /// Bytes of the requests that did not fail.
    pub bytes: u64,
    /// Time from submission to completion, in nanoseconds, of every request.
    pub latency: Histogram,
    /// Bytes of each request.
    pub size: Histogram,
}

impl StatisticsSnapshot {
    /// The counters of `kind`.
    pub fn of(&self, kind: OperationKind) -> &OperationStatistics {
        &self.operations[kind as usize]
    }

    /// Difference to `earlier`, an older snapshot of the same device.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            operations: OperationKind::ALL.map(|kind| {
                let (now, then) = (self.of(kind), earlier.of(kind));
                OperationStatistics {
                    errors: now.errors.saturating_sub(then.errors),
                    bytes: now.bytes.saturating_sub(then.bytes),
                    latency: now.latency.since(&then.latency),
                    size: now.size.since(&then.size),
                }
            }),
        }
    }

    /// The kinds that occurred, with their counters.
    pub fn iter(&self) -> impl Iterator<Item = (OperationKind, &OperationStatistics)> {
        let all = OperationKind::ALL.into_iter().zip(&self.operations);
        all.filter(|(_, counters)| counters.count() > 0)
    }
}

impl OperationStatistics {
    /// Requests, failed ones among them.
    pub fn count(&self) -> u64 {
        self.latency.count()
    }

    /// The time that `percent` of the requests did not exceed; `None` when there were none.
    pub fn latency_percentile(&self, percent: f64) -> Option<Duration> {
        self.latency.percentile(percent).map(Duration::from_nanos)
    }
}

impl Serialize for StatisticsSnapshot {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Row<'a> {
            count: u64,
            #[serde(flatten)]
            counters: &'a OperationStatistics,
        }
        serializer.collect_map(self.iter().map(|(kind, counters)| {
            let count = counters.count();
            (kind, Row { count, counters })
        }))
    }
}

impl fmt::Display for StatisticsSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<12} {:>10} {:>7} {:>12} {:>11} {:>10} {:>10} {:>10} {:>10}",
            "operation", "count", "errors", "bytes", "mean size", "mean", "p50", "p99", "max"
        )?;
        for (kind, counters) in self.iter() {
            let time = |nanoseconds: Option<u64>| {
                nanoseconds.map_or("-".to_owned(), |value| {
                    format!("{:.1?}", Duration::from_nanos(value))
                })
            };
            let latency = &counters.latency;
            let mean_size = counters.size.mean();
            writeln!(
                f,
                "{:<12} {:>10} {:>7} {:>12} {:>11} {:>10} {:>10} {:>10} {:>10}",
                kind,
                counters.count(),
                counters.errors,
                ByteSize(counters.bytes),
                mean_size.map_or("-".to_owned(), |mean| ByteSize(mean as u64).to_string()),
                time(latency.mean().map(|mean| mean as u64)),
                time(latency.percentile(50.0)),
                time(latency.percentile(99.0)),
                time(latency.max()),
            )?;
        }
        Ok(())
    }
}

//! The columns of "Forced zeroes" (docs/background.md) for a job: bandwidth and latency with their
//! minimum and maximum, and the 99th percentile of the latency.

use anyhow::Result;

use crate::fio::Transfers;
use crate::metrics::Metrics;
use crate::table::{Table, median};

pub(in crate::benches) const BANDWIDTH: &str = "MiB/s";
pub(in crate::benches) const LATENCY: &str = "us mean";

/// Units in the order of the table.
const COLUMNS: [&str; 7] = [
    "MiB/s min",
    BANDWIDTH,
    "MiB/s max",
    "us min",
    LATENCY,
    "us p99",
    "us max",
];

/// Appends a sample of each column.
pub(in crate::benches) fn record(
    metrics: &mut Metrics,
    name: &str,
    command: &str,
    writes: &Transfers,
) {
    let (least, most) = writes.mib_per_second_range;
    let latency = writes.latency;
    let values = [
        least,
        writes.mib_per_second,
        most,
        latency.min,
        latency.mean,
        latency.p99,
        latency.max,
    ];
    for (unit, value) in COLUMNS.into_iter().zip(values) {
        metrics.record(name, unit, command, value);
    }
}

/// The medians of the runs of each name that has any.
pub(in crate::benches) fn table(metrics: &Metrics, names: &[String]) -> Result<Table> {
    let mut heading = vec!["medians of the runs"];
    heading.extend(COLUMNS);
    let mut table = Table::new(&heading);
    for name in names {
        if metrics.get(name, BANDWIDTH).is_none() {
            continue;
        }
        let mut row = vec![name.clone()];
        for unit in COLUMNS {
            row.push(median(Some(metrics.of(name, unit)?)));
        }
        table.row(row);
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fio::LatencyUs;

    #[test]
    fn columns_hold_minimum_mean_percentile_and_maximum_of_the_jobs_that_ran() {
        let writes = Transfers {
            bytes: 4096,
            mib_per_second: 2.0,
            requests: 1,
            iops: 1.0,
            mib_per_second_range: (1.0, 3.0),
            latency: LatencyUs {
                min: 4.0,
                mean: 5.0,
                p99: 6.0,
                max: 7.0,
            },
        };
        let mut metrics = Metrics::default();
        record(&mut metrics, "job", "fio", &writes);
        let table = table(&metrics, &["job".to_owned(), "never ran".to_owned()]).unwrap();
        let text = table.to_string();
        let last: Vec<_> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(
            last,
            [
                "job", "1.00", "2.00", "3.00", "4.00", "5.00", "6.00", "7.00"
            ]
        );
        assert_eq!(text.lines().count(), 2, "{text}");
    }
}

//! The two jobs of "Forced zeroes" (docs/background.md), and the cost of a background load.

use std::path::Path;

use super::columns;
use crate::bench::Options;
use crate::fio::{Fio, Transfers};

/// Writers of the bandwidth job.
pub(in crate::benches) const WRITERS: u64 = 10;

/// One of the two jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::benches) enum Load {
    Bandwidth,
    Latency,
}

impl Load {
    /// Both.
    pub(in crate::benches) const ALL: [Self; 2] = [Self::Bandwidth, Self::Latency];

    /// The word in tables.
    pub(in crate::benches) fn name(self) -> &'static str {
        match self {
            Self::Bandwidth => "bandwidth job",
            Self::Latency => "latency job",
        }
    }

    /// The unit of the metric.
    pub(in crate::benches) fn unit(self) -> &'static str {
        match self {
            Self::Bandwidth => columns::BANDWIDTH,
            Self::Latency => columns::LATENCY,
        }
    }

    /// The metric of the job.
    pub(in crate::benches) fn value(self, writes: &Transfers) -> f64 {
        match self {
            Self::Bandwidth => writes.mib_per_second,
            Self::Latency => writes.latency.mean,
        }
    }

    /// The cost of the background load, in percent: bandwidth lost, or latency added.
    pub(in crate::benches) fn cost_percent(self, alone: f64, beside: f64) -> f64 {
        match self {
            Self::Bandwidth => (1.0 - beside / alone) * 100.0,
            Self::Latency => (beside / alone - 1.0) * 100.0,
        }
    }

    /// The cost, in percent, where the job does `ratio` of its work alone in the same time.
    pub(super) fn cost_of_ratio(self, ratio: f64) -> f64 {
        match self {
            Self::Bandwidth => self.cost_percent(1.0, ratio),
            Self::Latency => self.cost_percent(1.0, 1.0 / ratio),
        }
    }

    /// The unit of the cost.
    pub(in crate::benches) fn cost_unit(self) -> &'static str {
        match self {
            Self::Bandwidth => "% lost",
            Self::Latency => "% added",
        }
    }

    /// The job as in the seed; files are smaller, and processed again until the time is up.
    pub(in crate::benches) fn job(self, directory: &Path, files: Files) -> Fio {
        let job = Fio::write("neighbour")
            .set("overwrite", 1)
            .set("time_based", 1);
        match self {
            Self::Bandwidth => job
                .set("ioengine", "libaio")
                .set("iodepth", 10)
                .set("bs", "2M")
                .set("numjobs", WRITERS)
                .set("size", files.bandwidth)
                .set("directory", directory.display())
                .set("filename_format", "bandwidth.$jobnum"),
            Self::Latency => job
                .set("ioengine", "psync")
                .set("iodepth", 1)
                .set("bs", "4k")
                .set("size", files.latency)
                .file(&directory.join("latency")),
        }
    }
}

/// Sizes.
#[derive(Clone, Copy)]
pub(in crate::benches) struct Files {
    /// Bytes of each of the ten files.
    pub(in crate::benches) bandwidth: u64,
    /// Bytes of the latency job's file.
    pub(in crate::benches) latency: u64,
    /// The size of the background load's file: more than it can finish meanwhile.
    pub(in crate::benches) big: u64,
}

impl Files {
    /// In full, or with `--quick`.
    pub(in crate::benches) fn of(options: &Options) -> Self {
        let big = options.size(8 << 30, 2 << 30);
        Self {
            bandwidth: options.pick(768 << 20, 128 << 20),
            latency: options.pick(1 << 30, 256 << 20),
            big,
        }
    }
}

/// The file of one of the ten writers, as named in fio's arguments.
pub(in crate::benches) fn file_name(writer: u64) -> String {
    format!("bandwidth.{writer}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_percent_of_the_run_alone() {
        assert_eq!(
            Load::Bandwidth.cost_percent(2000.0, 1980.0),
            1.0000000000000009
        );
        assert_eq!(Load::Latency.cost_percent(100.0, 115.0).round(), 15.0);
        assert!(Load::Bandwidth.cost_percent(2000.0, 2010.0) < 0.0);
        assert_eq!(Load::Bandwidth.cost_of_ratio(0.75), 25.0);
        assert_eq!(Load::Latency.cost_of_ratio(0.8), 25.0);
    }
}

//! Progress reports and cancellation of a long operation.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::CancelToken;

/// Phase of a long operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Phase {
    /// The operation waits for other users of the disk.
    Wait,
    /// Data is being read, to find zeros or holes.
    Scan,
    /// Space is being reserved.
    Allocate,
    /// Space is being written with zeros.
    Write,
    /// Data is being copied.
    Copy,
    /// Written data is being made durable.
    Sync,
    /// The result is being compared with the request.
    Verify,
}

impl Phase {
    /// The word used in JSON and beside the bar.
    pub fn name(self) -> &'static str {
        match self {
            Self::Wait => "wait",
            Self::Scan => "scan",
            Self::Allocate => "allocate",
            Self::Write => "write",
            Self::Copy => "copy",
            Self::Sync => "sync",
            Self::Verify => "verify",
        }
    }
}

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The current phase.
    pub phase: Phase,
    /// Bytes that are in the wanted state already.
    pub done_bytes: u64,
    /// Bytes to bring there in this phase.
    pub total_bytes: u64,
}

/// Receiver of progress. Called from the thread that runs the operation, at least 5 times a second
/// while it moves; it should return at once.
pub trait ProgressSink {
    /// Receives the newest state.
    fn update(&self, progress: Progress);

    /// The operation yields to the other users of `disk`, such as `nvme0n1`, by its counters.
    fn watches_disk(&self, disk: &str) {
        let _ = disk;
    }

    /// The operation has paused for `duration` in favour of other users of the disk.
    fn gave_way(&self, duration: Duration) {
        let _ = duration;
    }
}

impl<F: Fn(Progress)> ProgressSink for F {
    fn update(&self, progress: Progress) {
        self(progress);
    }
}

/// A sink that gives the progress to `update`, and all else to `caller` as it is.
pub struct MappedProgress<'a, F> {
    /// Receives the progress.
    pub update: F,
    /// Receives the disk and the pauses.
    pub caller: &'a dyn ProgressSink,
}

impl<F: Fn(Progress)> ProgressSink for MappedProgress<'_, F> {
    fn update(&self, progress: Progress) {
        (self.update)(progress);
    }

    fn watches_disk(&self, disk: &str) {
        self.caller.watches_disk(disk);
    }

    fn gave_way(&self, duration: Duration) {
        self.caller.gave_way(duration);
    }
}

/// A sink that drops everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl ProgressSink for Silent {
    fn update(&self, _: Progress) {}
}

/// The caller's side of a long operation: cancellation and progress.
#[derive(Clone, Copy)]
pub struct Control<'a> {
    /// Asks the operation to stop.
    pub cancel: &'a CancelToken,
    /// Receives progress reports.
    pub progress: &'a dyn ProgressSink,
}

impl<'a> Control<'a> {
    /// Joins a token and a sink.
    pub fn new(cancel: &'a CancelToken, progress: &'a dyn ProgressSink) -> Self {
        Self { cancel, progress }
    }

    /// Reports to the sink.
    pub fn report(&self, phase: Phase, done_bytes: u64, total_bytes: u64) {
        self.progress.update(Progress {
            phase,
            done_bytes,
            total_bytes,
        });
    }
}

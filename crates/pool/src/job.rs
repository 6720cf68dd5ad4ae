//! Jobs: long operations on volumes, recorded in the pool while they run and afterwards.
//!
//! A job has a record (`record.rs`) and a heartbeat file (`run_file.rs`). The record holds the
//! request and finally the outcome; it is written atomically twice. The heartbeat file is locked by
//! the worker process, holds the progress, and receives stop requests; it is updated in place and
//! never synced, so it costs nothing and works on a full disk. A job without an outcome whose
//! heartbeat file is unlocked is interrupted: its process has ended. A process that resumes the job
//! takes the lock.

mod operation;
mod record;
mod run_file;
mod status;
mod store;
mod work_file;

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use extant_space::{BackgroundShare, Error, ErrorKind};
use serde::{Deserialize, Serialize};

pub use operation::{
    CloneMethod, CloneVolume, CreateVolume, Download, Materialize, Operation, Resize, Upload,
    Verification, Wipe, WipeMethod,
};
pub(crate) use record::{Outcome, Record, Reservation};
pub(crate) use run_file::{MadeFile, Prepared, RunFile, RunStatus, Stage, Wiped, ask_to_stop};
pub use status::{JobFailure, JobState, JobStatus};
pub(crate) use store::{Alive, Jobs};
pub(crate) use work_file::{complete_name, copy_name, job_of, remove_work_of};

/// Number of a job in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub u64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for JobId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        text.parse().map(Self).map_err(|_| {
            Error::new(ErrorKind::InvalidArgument)
                .detail(format!("'{text}' is not the number of a job"))
        })
    }
}

/// The order of jobs, and their shares of the pool's rate.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// Behind the others.
    Low,
    /// As most.
    #[default]
    Normal,
    /// Before the others.
    High,
}

impl Priority {
    /// The word used in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Normal => "normal",
            Self::High => "high",
        }
    }

    /// The part of the rate that a job gets while others run.
    pub(crate) fn weight(self) -> u64 {
        match self {
            Self::Low => 1,
            Self::Normal => 4,
            Self::High => 16,
        }
    }
}

/// How a job runs while others run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobOptions {
    /// Position in the queue.
    pub priority: Priority,
    /// Yields to other users of the disk, and uses a share of the pool's rate.
    pub background: bool,
    /// Share of the disk while others use it, of a job in the background.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub background_share: Option<BackgroundShare>,
    /// Bytes a second at most.
    pub rate: Option<NonZeroU64>,
}

//! The status of a job as reported.

use extant_space::{Error, ErrorKind, Progress};
use serde::{Deserialize, Serialize};

use super::run_file::{Observed, Stage};
use super::{JobId, JobOptions, Operation, Record};

/// Phase of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// For its turn.
    Waiting,
    /// At work.
    Running,
    /// Its process has ended; it can be resumed or cancelled.
    Interrupted,
    /// Ended well.
    Done,
    /// Ended with an error; the pool is as before.
    Failed,
    /// Ended by request; the pool is as before.
    Cancelled,
}

impl JobState {
    /// The word used in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Interrupted => "interrupted",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Nothing more will happen.
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Cancelled)
    }
}

/// Why a job ended otherwise than well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobFailure {
    /// For programs.
    pub kind: ErrorKind,
    /// For users.
    pub message: String,
}

impl From<&JobFailure> for Error {
    fn from(failure: &JobFailure) -> Self {
        Self::new(failure.kind).detail(&failure.message)
    }
}

/// Snapshot of a job.
#[derive(Clone, Debug, Serialize)]
pub struct JobStatus {
    /// Its number.
    pub id: JobId,
    /// Its phase.
    pub state: JobState,
    /// Its operation.
    #[serde(flatten)]
    pub operation: Operation,
    /// How it runs while others run.
    pub options: JobOptions,
    /// How far it is, or was when it or its process ended.
    pub progress: Option<Progress>,
    /// Time of submission, seconds since 1970.
    pub created: u64,
    /// Time of its end.
    pub ended: Option<u64>,
    /// Why it ended otherwise than well.
    pub failure: Option<JobFailure>,
}

impl JobStatus {
    pub(crate) fn new(record: &Record, observed: Observed) -> Self {
        let outcome = record.outcome.as_ref();
        let failure = outcome.and_then(|outcome| outcome.failure.clone());
        let state = match (outcome, observed.status) {
            (Some(outcome), _) => outcome.state(),
            (None, _) if !observed.is_alive => JobState::Interrupted,
            (None, Some(line)) if line.stage == Stage::Waiting => JobState::Waiting,
            (None, _) => JobState::Running,
        };
        Self {
            id: record.id,
            state,
            operation: record.operation.clone(),
            options: record.options,
            progress: match outcome {
                Some(outcome) => outcome.progress,
                None => observed.status.and_then(|status| status.progress),
            },
            created: record.created,
            ended: outcome.map(|outcome| outcome.ended),
            failure,
        }
    }

    /// The outcome of a job that has ended.
    ///
    /// # Errors
    /// The error that the job ended with.
    pub fn result(&self) -> extant_space::Result<()> {
        match &self.failure {
            None => Ok(()),
            Some(failure) => Err(failure.into()),
        }
    }
}

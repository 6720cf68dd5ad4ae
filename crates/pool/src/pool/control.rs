//! Operations of other processes on a job: list, wait, cancel.

use std::time::{Duration, Instant};

use extant_space::{CancelToken, Error, ErrorKind, Result};

use super::Pool;
use super::submission::no_such_job;
use crate::job::{JobId, JobState, JobStatus, Outcome, ask_to_stop};
use crate::operation;
use crate::storage::Storage;

/// Poll interval while waiting for a job.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The same after a cancel: the job ends soon.
const STOPPING_POLL_INTERVAL: Duration = Duration::from_millis(1);
const STOPPING_TIME: Duration = Duration::from_millis(200);
/// A worker polls for requests far more often; its disk may delay it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

impl Pool {
    /// The jobs that the pool remembers, oldest first.
    pub fn jobs(&self) -> Result<Vec<JobStatus>> {
        match self.state()? {
            Some(state) => state.jobs.statuses(),
            None => Ok(Vec::new()),
        }
    }

    /// The present state of a job.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn job(&self, id: JobId) -> Result<JobStatus> {
        let found = match self.state()? {
            Some(state) => state.jobs.status(id)?,
            None => None,
        };
        found.ok_or_else(|| no_such_job(id))
    }

    /// Waits until a job has ended or is interrupted. Calls `report` with its state about ten
    /// times per second.
    ///
    /// # Errors
    /// `NotFound`; `Cancelled` if the caller's token was cancelled, in which case the job
    /// continues.
    pub fn wait(
        &self,
        id: JobId,
        cancel: &CancelToken,
        report: &mut dyn FnMut(&JobStatus),
    ) -> Result<JobStatus> {
        let mut reported = None::<Instant>;
        loop {
            let status = self.job(id)?;
            let is_over = status.state.has_ended() || status.state == JobState::Interrupted;
            let is_due = reported.is_none_or(|at| at.elapsed() >= Duration::from_millis(100));
            if is_due || is_over {
                reported = Some(Instant::now());
                report(&status);
            }
            if is_over {
                return Ok(status);
            }
            cancel.check()?;
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Cancels a job in any process, and returns when the pool is in its state before the job. A
    /// partial wipe is not undone.
    ///
    /// # Errors
    /// `NotFound`, `AlreadyExists` if it has ended before; `InUse` if its process does not answer.
    pub fn cancel(&self, id: JobId) -> Result<JobStatus> {
        let state = self.make_state()?;
        let record = self.unfinished(&state, id)?;
        ask_to_stop(state.jobs.dir(), id).or_else(|error| match error.kind() {
            // It has just ended.
            ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })?;
        let started = Instant::now();
        loop {
            let status = state.jobs.status(id)?.ok_or_else(|| no_such_job(id))?;
            if status.state.has_ended() {
                return Ok(status);
            }
            if status.state == JobState::Interrupted {
                let storage = self.storage_of_rollback(record.operation.purpose())?;
                self.abandon(&*storage, id)?;
                return self.job(id);
            }
            if started.elapsed() > ANSWER_TIMEOUT {
                return Err(Error::new(ErrorKind::InUse)
                    .detail(format!("job {id} was asked to stop, and does not answer"))
                    .advice("its disk may be stuck; ask again, or end its process"));
            }
            std::thread::sleep(if started.elapsed() < STOPPING_TIME {
                STOPPING_POLL_INTERVAL
            } else {
                POLL_INTERVAL
            });
        }
    }

    /// Ends an interrupted job as cancelled. Whether that was still to be done.
    pub(crate) fn abandon(&self, storage: &dyn Storage, id: JobId) -> Result<bool> {
        let state = self.make_state()?;
        let locked = state.lock()?;
        let (mut record, run) = match self.claim(&state, &locked, id) {
            Ok(Some(claimed)) => claimed,
            Ok(None) => return Ok(false),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(false),
            Err(error) => return Err(error),
        };
        let result = if operation::was_published(storage, &record, &run, self.identity()?)? {
            Ok(())
        } else {
            operation::roll_back(storage, &record, self.identity()?)?;
            Err(Error::new(ErrorKind::Cancelled))
        };
        let progress = run.status().and_then(|status| status.progress);
        record.end(state.jobs.dir(), Outcome::of(&result, progress))?;
        state.jobs.remove_run_file(id)?;
        Ok(true)
    }
}

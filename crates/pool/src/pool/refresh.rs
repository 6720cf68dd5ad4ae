//! Recovery of a pool after the death of processes: their jobs and files.
//!
//! A job whose process has ended is interrupted: a user resumes or cancels it. A job that only
//! lacked its outcome is ended here. Files that belong to no job are removed.

use extant_space::{ErrorKind, Result};
use serde::Serialize;

use super::Pool;
use crate::job::{JobId, JobState, JobStatus, job_of};
use crate::operation::was_published;
use crate::state::PoolState;
use crate::storage::{Purpose, Storage};

/// Treatment of interrupted jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leftovers {
    /// They are reported and kept.
    #[default]
    Keep,
    /// They are cancelled: the pool is as before them.
    Remove,
}

/// Result of [`Pool::refresh`].
#[derive(Clone, Debug, Default, Serialize)]
pub struct Refreshed {
    /// Jobs that can be resumed.
    pub interrupted: Vec<Interrupted>,
    /// Interrupted jobs that were cancelled now.
    pub cancelled: Vec<JobId>,
    /// Jobs that had done their work, and are ended now.
    pub completed: Vec<JobId>,
    /// Files that belonged to no job, and are removed.
    pub removed_files: u64,
    /// Their space in bytes.
    pub removed_bytes: u64,
    /// Names in the directory that are no volumes: links, hidden files, names that are not UTF-8.
    pub other_names: u64,
}

/// A job whose process has ended.
#[derive(Clone, Debug, Serialize)]
pub struct Interrupted {
    /// The job.
    #[serde(flatten)]
    pub job: JobStatus,
    /// Space of its unfinished file in bytes.
    pub allocated_bytes: u64,
}

impl Pool {
    /// Searches the pool for leftovers of dead processes.
    pub fn refresh(&self, leftovers: Leftovers) -> Result<Refreshed> {
        let state = self.state()?;
        let storage = self.storage(match state {
            Some(_) => Purpose::Change,
            None => Purpose::Look,
        })?;
        let storage = &*storage;
        let mut found = Refreshed {
            other_names: storage.for_each_volume(&mut |_, _| {})?,
            ..Refreshed::default()
        };
        let Some(state) = state else {
            return Ok(found);
        };
        let jobs = state.jobs.statuses()?;
        let interrupted = jobs.iter().filter(|job| job.state == JobState::Interrupted);
        // All of them have their turn before the first error is reported.
        let mut refreshed = Ok(());
        for job in interrupted {
            let done = self.refresh_job(storage, &state, job, leftovers, &mut found);
            refreshed = refreshed.and(done);
        }
        self.remove_strays(storage, &state, &mut found)?;
        refreshed.map(|()| found)
    }

    fn refresh_job(
        &self,
        storage: &dyn Storage,
        state: &PoolState,
        job: &JobStatus,
        leftovers: Leftovers,
        found: &mut Refreshed,
    ) -> Result<()> {
        let is_complete = self.is_complete(storage, state, job.id)?;
        if !is_complete && leftovers == Leftovers::Keep {
            let allocated_bytes = allocated_by(storage, job.id)?;
            found.interrupted.push(Interrupted {
                job: job.clone(),
                allocated_bytes,
            });
        } else if self.abandon(storage, job.id)? {
            if is_complete {
                found.completed.push(job.id);
            } else {
                found.cancelled.push(job.id);
            }
        }
        Ok(())
    }

    fn is_complete(&self, storage: &dyn Storage, state: &PoolState, id: JobId) -> Result<bool> {
        let locked = state.lock()?;
        match self.claim(state, &locked, id) {
            Ok(Some((record, run))) => was_published(storage, &record, &run, self.identity()?),
            Ok(None) => Ok(false),
            // It has ended by now.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes files without an unfinished job.
    fn remove_strays(
        &self,
        storage: &dyn Storage,
        state: &PoolState,
        found: &mut Refreshed,
    ) -> Result<()> {
        // Under the lock no job is half made.
        let _locked = state.lock()?;
        let records = state.jobs.records()?;
        for file in storage.work_files()? {
            let is_used = records
                .iter()
                .any(|record| record.outcome.is_none() && job_of(&file.name) == Some(record.id));
            if !is_used {
                storage.remove_work(&file.name)?;
                found.removed_files += 1;
                found.removed_bytes += file.allocated_bytes;
            }
        }
        // The last: a number without files is given again.
        for id in state.jobs.numbers()? {
            match records.iter().find(|record| record.id == id) {
                None => state.jobs.forget(id)?,
                Some(record) if record.outcome.is_some() => state.jobs.remove_run_file(id)?,
                Some(_) => {}
            }
        }
        Ok(())
    }
}

fn allocated_by(storage: &dyn Storage, id: JobId) -> Result<u64> {
    let files = storage.work_files()?.into_iter();
    let own = files.filter(|file| job_of(&file.name) == Some(id));
    Ok(own.map(|file| file.allocated_bytes).sum())
}

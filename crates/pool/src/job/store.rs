//! The jobs of a pool, on disk.
//!
//! Numbers are given under the pool's lock, each one more than the highest that any file has. The
//! most recently ended jobs are kept.

use std::collections::BTreeSet;

use extant_space::Result;

use super::record::{self, Record};
use super::run_file::{self, Observed, Stage};
use super::{JobId, JobStatus};
use extant_hostfs::Directory;

/// Number of ended jobs that are remembered.
const ENDED_MAX: usize = 64;

/// A job that has a process.
#[derive(Debug, PartialEq)]
pub(crate) struct Alive {
    pub(crate) record: Record,
    pub(crate) stage: Stage,
}

/// The directory of jobs.
#[derive(Debug)]
pub(crate) struct Jobs {
    dir: Directory,
}

impl Jobs {
    pub(crate) fn in_directory(dir: Directory) -> Self {
        Self { dir }
    }

    pub(crate) fn dir(&self) -> &Directory {
        &self.dir
    }

    /// Numbers that any file is of.
    pub(crate) fn numbers(&self) -> Result<BTreeSet<JobId>> {
        self.numbers_of("")
    }

    /// Numbers that a file with this at its end is of.
    fn numbers_of(&self, suffix: &str) -> Result<BTreeSet<JobId>> {
        let mut numbers = BTreeSet::new();
        self.dir.for_each_name(|name| {
            let name = name.to_str().ok().filter(|name| name.ends_with(suffix));
            let number = name.and_then(|name| name.split_once('.'));
            numbers.extend(number.and_then(|(number, _)| number.parse::<JobId>().ok()));
        })?;
        Ok(numbers)
    }

    /// The number of the next job. To be asked under the pool's lock.
    pub(crate) fn next_number(&self) -> Result<JobId> {
        let last = self.numbers()?.pop_last();
        Ok(JobId(last.map_or(1, |last| last.0 + 1)))
    }

    /// All records, oldest first. Files without a record are not jobs.
    pub(crate) fn records(&self) -> Result<Vec<Record>> {
        let numbers = self.numbers()?.into_iter();
        let records = numbers.filter_map(|id| Record::read(&self.dir, id).transpose());
        records.collect()
    }

    /// All jobs, oldest first.
    pub(crate) fn statuses(&self) -> Result<Vec<JobStatus>> {
        let records = self.records()?.into_iter();
        records.map(|record| self.status_of(&record)).collect()
    }

    /// The present state of a job; `None` where there is none.
    pub(crate) fn status(&self, id: JobId) -> Result<Option<JobStatus>> {
        let record = Record::read(&self.dir, id)?;
        record.map(|record| self.status_of(&record)).transpose()
    }

    /// Records of the jobs that have not ended, oldest first: those with a run file.
    pub(crate) fn unfinished(&self) -> Result<Vec<Record>> {
        let mut records = Vec::new();
        for id in self.numbers_of(run_file::SUFFIX)? {
            // Without a record: half made, or half forgotten.
            let record = Record::read(&self.dir, id)?;
            records.extend(record.filter(|record| record.outcome.is_none()));
        }
        Ok(records)
    }

    /// Jobs of live processes, running or waiting.
    pub(crate) fn alive(&self) -> Result<Vec<Alive>> {
        let mut alive = Vec::new();
        for record in self.unfinished()? {
            let observed = run_file::observe(&self.dir, record.id)?;
            if observed.is_alive {
                // A status that is just being written belongs to a running job.
                let stage = observed.status.map_or(Stage::Running, |line| line.stage);
                alive.push(Alive { record, stage });
            }
        }
        Ok(alive)
    }

    fn status_of(&self, record: &Record) -> Result<JobStatus> {
        let nothing = Observed {
            is_alive: false,
            status: None,
        };
        if record.outcome.is_some() {
            return Ok(JobStatus::new(record, nothing));
        }
        let observed = run_file::observe(&self.dir, record.id)?;
        if observed.is_alive {
            return Ok(JobStatus::new(record, observed));
        }
        // It may have ended between the two reads.
        match Record::read(&self.dir, record.id)? {
            Some(newest) => Ok(JobStatus::new(&newest, observed)),
            None => Ok(JobStatus::new(record, observed)),
        }
    }

    /// Removes the files of a job other than its record.
    pub(crate) fn remove_run_file(&self, id: JobId) -> Result<()> {
        self.dir.remove(run_file::name(id))?;
        Ok(())
    }

    /// Removes every file of a job.
    pub(crate) fn forget(&self, id: JobId) -> Result<()> {
        for name in [
            run_file::name(id),
            record::spare_name(id),
            format!("{}.new", record::name(id)),
            // The last: without it the others are found by their number.
            record::name(id),
        ] {
            self.dir.remove(&name)?;
        }
        Ok(())
    }

    /// Forgets the oldest of the jobs that have ended, but for the newest.
    pub(crate) fn prune(&self) -> Result<()> {
        let unfinished = self.numbers_of(run_file::SUFFIX)?;
        let mut ended = self.numbers_of(record::SUFFIX)?;
        ended.retain(|id| !unfinished.contains(id));
        let surplus = ended.len().saturating_sub(ENDED_MAX);
        ended
            .iter()
            .take(surplus)
            .try_for_each(|&id| self.forget(id))
    }
}

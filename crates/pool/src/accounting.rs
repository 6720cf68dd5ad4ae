//! Space accounting: the space of a pool, the space it has promised, and admission of new jobs.
//!
//! A job is admitted under the pool's lock if both hold:
//! - the capacity of all volumes, with the tables of images, is at most the space for volumes times
//!   the overcommit;
//! - the free space covers what this job and the running jobs will still allocate.
//!
//! The space for volumes is their allocation plus the free space of the file system, within the
//! limit of the pool. It changes when other programs write to the file system; the reported total
//! is the size of the file system and does not.
//!
//! A reservation is part of a job's record. It counts while a process works on the job, less what
//! the job has allocated, so a dead process leaves no reservation behind. Resuming a job reserves
//! again.
//!
//! Jobs run while they are counted. A file that gets its name during a count may be counted twice
//! but is never missed, so a granted request stays valid. A refusal is final only if the jobs and
//! their files did not change during the count.
//!
//! Space shared by clones counts once per clone.

use std::time::Duration;

use extant_space::{ByteSize, Error, ErrorKind, Remedy, Result};
use serde::Serialize;

use crate::format;
use crate::job::{Alive, JobId, Operation, Stage, job_of};
use crate::limits::Limits;
use crate::state::{Locked, PoolState};
use crate::storage::{Storage, WorkFile};

/// Maximum number of counts when space is freed and allocated meanwhile.
const COUNTS_MAX: u32 = 8;
/// A job that is at its last steps is given so long before the next count.
const NEXT_COUNT: Duration = Duration::from_millis(1);

/// Space and promises of a pool, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Space {
    /// Size of the file system, within the pool's limit. Others may have files there.
    pub total_bytes: u64,
    /// Space for volumes: used by them, or free, within the pool's limit.
    #[serde(skip)]
    pub usable_bytes: u64,
    /// Space used by volumes and unfinished files.
    pub allocated_bytes: u64,
    /// Free on the file system, within the pool's limit.
    pub free_bytes: u64,
    /// Capacity of all volumes, and of those being made.
    pub promised_bytes: u64,
    /// Space that running jobs will still allocate.
    pub reserved_bytes: u64,
    /// Capacity that a new volume may have.
    pub available_bytes: u64,
    /// Volumes counted.
    pub volumes: u64,
}

/// Space requested by a job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    /// Capacity beyond the capacity promised before.
    pub(crate) capacity_bytes: u64,
    /// Space that it will take.
    pub(crate) space_bytes: u64,
}

/// Inputs of a count besides the volumes.
#[derive(PartialEq)]
struct Moment {
    jobs: Vec<Alive>,
    files: Vec<WorkFile>,
    free_bytes: u64,
}

impl Moment {
    fn now(storage: &dyn Storage, state: Option<&PoolState>) -> Result<Self> {
        // The jobs first: a file that gets its name after they were read is counted with its job,
        // whatever else it is counted with.
        let (jobs, files) = match state {
            Some(state) => (state.jobs.alive()?, storage.work_files()?),
            None => (Vec::new(), Vec::new()),
        };
        Ok(Self {
            jobs,
            files,
            free_bytes: storage.free_bytes()?,
        })
    }

    /// No job has taken a step since, and no file has got a name.
    fn has_same_steps(&self, other: &Self) -> bool {
        let stages = |moment: &Self| -> Vec<(JobId, Stage)> {
            let jobs = moment.jobs.iter();
            jobs.map(|job| (job.record.id, job.stage)).collect()
        };
        let names = |moment: &Self| -> Vec<String> {
            let files = moment.files.iter();
            files.map(|file| file.name.clone()).collect()
        };
        stages(self) == stages(other) && names(self) == names(other)
    }
}

impl Space {
    /// The current state, for information only.
    pub(crate) fn of(
        limits: &Limits,
        storage: &dyn Storage,
        state: Option<&PoolState>,
    ) -> Result<Self> {
        let mut before = Moment::now(storage, state)?;
        for _ in 1..COUNTS_MAX {
            let space = Self::count(limits, storage, &before)?;
            let after = Moment::now(storage, state)?;
            if after.has_same_steps(&before) {
                return Ok(space);
            }
            before = after;
        }
        // Jobs begin and end all the time.
        Self::count(limits, storage, &before)
    }

    /// Fails as `check` does for the current space. A refusal because a job was counted in the
    /// middle of a step is counted again: no job is submitted under the lock, so the running ones
    /// reach the end of their steps.
    pub(crate) fn require(
        limits: &Limits,
        storage: &dyn Storage,
        state: &PoolState,
        _: &Locked,
        check: impl Fn(&Self) -> Result<()>,
    ) -> Result<()> {
        let mut before = Moment::now(storage, Some(state))?;
        let mut counts = 0;
        loop {
            let Err(refused) = check(&Self::count(limits, storage, &before)?) else {
                return Ok(());
            };
            counts += 1;
            let after = Moment::now(storage, Some(state))?;
            if after == before || (counts >= COUNTS_MAX && after.has_same_steps(&before)) {
                return Err(refused);
            }
            std::thread::sleep(NEXT_COUNT);
            before = Moment::now(storage, Some(state))?;
        }
    }

    /// Counts the jobs of `before` and the present volumes.
    fn count(limits: &Limits, storage: &dyn Storage, before: &Moment) -> Result<Self> {
        let mut space = Self::default();
        let (makers, changers): (Vec<&Alive>, Vec<&Alive>) = before
            .jobs
            .iter()
            .partition(|job| job.record.operation.makes_volume());
        storage.for_each_volume(&mut |name, stat| {
            let allocated = stat.allocated_bytes;
            let mut capacity = format::promised_bytes(storage, name, stat);
            let own = changers
                .iter()
                .map(|job| &job.record)
                .filter(|record| record.operation.volume() == name);
            for record in own {
                let reservation = record.reservation;
                if matches!(
                    record.operation,
                    Operation::Resize(_) | Operation::Materialize(_)
                ) {
                    capacity = capacity.max(reservation.capacity_bytes);
                }
                let files = before.files.iter();
                let files = files.filter(|file| job_of(&file.name) == Some(record.id));
                let files: u64 = files.map(|file| file.allocated_bytes).sum();
                space.allocated_bytes += files;
                let taken = allocated.saturating_sub(reservation.allocated_before_bytes) + files;
                space.reserved_bytes += reservation.space_bytes.saturating_sub(taken);
            }
            space.volumes += 1;
            space.add(allocated, capacity);
        })?;
        for job in makers {
            let files = before.files.iter();
            let files = files.filter(|file| job_of(&file.name) == Some(job.record.id));
            let taken: Vec<u64> = files.map(|file| file.allocated_bytes).collect();
            if job.stage == Stage::Publishing && taken.is_empty() {
                // Among the volumes already.
                continue;
            }
            let taken: u64 = taken.into_iter().sum();
            let reservation = job.record.reservation;
            space.reserved_bytes += reservation.space_bytes.saturating_sub(taken);
            space.add(taken, reservation.capacity_bytes);
        }
        // Space of interrupted jobs stays in use until they are resumed or cancelled.
        let is_left = |file: &&WorkFile| {
            let mut jobs = before.jobs.iter();
            !jobs.any(|job| job_of(&file.name) == Some(job.record.id))
        };
        let left = before.files.iter().filter(is_left);
        left.for_each(|file| space.add(file.allocated_bytes, 0));
        // Space freed meanwhile is counted as used by files; space taken meanwhile may be missing.
        let free_bytes = before.free_bytes.min(storage.free_bytes()?);
        space.close(free_bytes, storage.total_bytes()?, limits);
        Ok(space)
    }

    fn add(&mut self, allocated_bytes: u64, capacity_bytes: u64) {
        self.allocated_bytes += allocated_bytes;
        self.promised_bytes = self
            .promised_bytes
            .saturating_add(capacity_bytes.max(allocated_bytes));
    }

    fn close(&mut self, free: u64, total: u64, limits: &Limits) {
        let limit = limits.total_bytes.unwrap_or(u64::MAX);
        self.total_bytes = total.min(limit);
        self.usable_bytes = self.allocated_bytes.saturating_add(free).min(limit);
        self.free_bytes = free.min(self.usable_bytes.saturating_sub(self.allocated_bytes));
        self.available_bytes = self.capacity_left(limits);
    }

    fn capacity_left(&self, limits: &Limits) -> u64 {
        let may_be_promised = limits.overcommit.of(self.usable_bytes);
        may_be_promised.saturating_sub(self.promised_bytes)
    }

    /// Fails with the missing amount when `need` is not covered.
    pub(crate) fn check(&self, need: Need, limits: &Limits) -> Result<()> {
        let available = self.capacity_left(limits);
        if need.capacity_bytes > available {
            let error = missing("of capacity wanted", need.capacity_bytes, available);
            return Err(error.advice(
                "choose a smaller capacity, remove volumes, or define the pool with a larger overcommit",
            ));
        }
        let room = self.free_bytes.saturating_sub(self.reserved_bytes);
        if need.space_bytes > room {
            let error = missing("wanted", need.space_bytes, room);
            return Err(error.advice("free some").remedy(Remedy::AllocateLess));
        }
        Ok(())
    }

    /// Fails with the missing amount if the reservations of the running jobs exceed the free space.
    pub(crate) fn check_is_covered(&self, limits: &Limits) -> Result<()> {
        let may_be_promised = limits.overcommit.of(self.usable_bytes);
        if self.promised_bytes > may_be_promised {
            return Err(missing(
                "of capacity promised",
                self.promised_bytes,
                may_be_promised,
            ));
        }
        if self.reserved_bytes > self.free_bytes {
            return Err(missing("wanted", self.reserved_bytes, self.free_bytes));
        }
        Ok(())
    }
}

fn missing(what: &str, wanted: u64, available: u64) -> Error {
    Error::new(ErrorKind::NoSpace).detail(format!(
        "no space: {} {what}, {} available, {} missing",
        ByteSize(wanted),
        ByteSize(available),
        ByteSize(wanted - available)
    ))
}

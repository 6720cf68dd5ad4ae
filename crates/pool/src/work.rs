//! The environment of an operation: its job, storage, rate and progress reports.

use std::num::NonZeroU64;

use extant_hostfs::Pace;
use extant_space::{Progress, Result};
use parking_lot::{Mutex, MutexGuard};

use crate::job::{MadeFile, Prepared, Record, RunFile, RunStatus, Stage, Wiped};
use crate::job_rate::JobRate;
use crate::storage::{Checkpoint, Storage};

/// The status of a job to publish.
pub(crate) struct StatusWriter<'a> {
    run: &'a RunFile,
    statuses: Mutex<Statuses>,
    survival: Mutex<Survival>,
}

/// The state of the job after a crash of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Survival {
    /// None, until its record is made durable.
    Open,
    /// Interrupted: its record is durable, or about to be.
    Survives,
    /// None: it has done its work already, and the volume shows it.
    Ends,
}

/// Locked while a status is written: an older one never replaces a newer.
struct Statuses {
    newest: RunStatus,
    /// The status that other processes see.
    published: Option<RunStatus>,
}

impl<'a> StatusWriter<'a> {
    pub(crate) fn new(run: &'a RunFile, survival: Survival) -> Self {
        let published = run.status();
        let newest = published.unwrap_or(RunStatus::new(Stage::Waiting));
        Self {
            run,
            statuses: Mutex::new(Statuses { newest, published }),
            survival: Mutex::new(survival),
        }
    }

    fn statuses(&self) -> MutexGuard<'_, Statuses> {
        self.statuses.lock()
    }

    pub(crate) fn newest(&self) -> RunStatus {
        self.statuses().newest
    }

    pub(crate) fn set_progress(&self, progress: Progress) {
        self.statuses().newest.progress = Some(progress);
    }

    fn set_wiped(&self, wiped: Wiped) {
        let mut statuses = self.statuses();
        let old = statuses.newest.wiped.map(|old| old.end_byte);
        statuses.newest.wiped = Some(wiped);
        if old != Some(wiped.end_byte) {
            // A status that cannot be written makes the next process do more.
            let _ = self.publish(&mut statuses);
        }
    }

    fn set_prepared(&self, prepared: Prepared) {
        let mut statuses = self.statuses();
        statuses.newest.prepared = Some(prepared);
        // A status that cannot be written makes the next process do more.
        let _ = self.publish(&mut statuses);
    }

    fn set_made(&self, made: MadeFile) -> Result<()> {
        let mut statuses = self.statuses();
        statuses.newest.made = Some(made);
        self.publish(&mut statuses)
    }

    /// Sets and publishes the status.
    pub(crate) fn set(&self, status: RunStatus) -> Result<()> {
        let mut statuses = self.statuses();
        statuses.newest = status;
        self.publish(&mut statuses)
    }

    /// The job is to survive a crash of the machine from here on; `false`: it has ended.
    pub(crate) fn survive(&self) -> bool {
        let mut survival = self.survival.lock();
        if *survival == Survival::Open {
            *survival = Survival::Survives;
        }
        *survival == Survival::Survives
    }

    /// Makes the newest status durable, unless it dies with the job.
    fn sync_before_end(&self) -> Result<()> {
        let mut survival = self.survival.lock();
        match *survival {
            Survival::Open => {
                *survival = Survival::Ends;
                Ok(())
            }
            Survival::Ends => Ok(()),
            Survival::Survives => self.run.sync(),
        }
    }

    /// Publishes the newest status. A failed write affects only observers.
    pub(crate) fn publish_newest(&self) {
        let mut statuses = self.statuses();
        if statuses.published != Some(statuses.newest) {
            let _ = self.publish(&mut statuses);
        }
    }

    fn publish(&self, statuses: &mut Statuses) -> Result<()> {
        self.run.write(statuses.newest)?;
        statuses.published = Some(statuses.newest);
        Ok(())
    }
}

/// The environment of an operation.
pub(crate) struct Work<'a> {
    pub(crate) storage: &'a dyn Storage,
    pub(crate) record: &'a Record,
    pub(crate) status: &'a StatusWriter<'a>,
    pub(crate) rate: &'a JobRate,
    /// Numbers that no other pool of this host has.
    pub(crate) pool_identity: (u64, u64),
    /// An earlier process has worked on it.
    pub(crate) is_resumed: bool,
}

impl Work<'_> {
    /// The pace of whole-file writes.
    pub(crate) fn pace(&self) -> Pace {
        self.rate.pace()
    }

    /// Bytes a second as they are now; `None`: no bound.
    pub(crate) fn rate(&self) -> Option<NonZeroU64> {
        self.rate.now()
    }

    /// How far a wipe is, or was when it was interrupted.
    pub(crate) fn wiped(&self) -> Option<Wiped> {
        self.status.newest().wiped
    }

    /// Records the progress of a wipe durably, for a process that resumes the job.
    pub(crate) fn set_wiped(&self, wiped: Wiped) {
        self.status.set_wiped(wiped);
    }

    /// The file that the job, or its earlier process, has made outside of the pool.
    pub(crate) fn made(&self) -> Option<MadeFile> {
        self.status.newest().made
    }

    /// Records which file the job has made, for a process that resumes the job.
    pub(crate) fn set_made(&self, made: MadeFile) -> Result<()> {
        self.status.set_made(made)
    }

    /// All is done but a rename: from here on a file under the final name is this job's. Where a
    /// process may find the job after a crash of the machine, that is durable on return.
    pub(crate) fn begin_publication(&self) -> Result<()> {
        self.status.set(RunStatus {
            stage: Stage::Publishing,
            ..self.status.newest()
        })?;
        self.status.sync_before_end()
    }
}

impl Checkpoint for Work<'_> {
    fn done_bytes(&self, identity: u64) -> u64 {
        let prepared = self.status.newest().prepared;
        let own = prepared.filter(|prepared| prepared.identity == identity);
        own.map_or(0, |prepared| prepared.end_byte)
    }

    fn set_done_bytes(&self, identity: u64, bytes: u64) {
        self.status.set_prepared(Prepared {
            identity,
            end_byte: bytes,
        });
    }
}

//! Slots of a pool.
//!
//! A pool runs at most `jobs_max` jobs. A waiting job takes a slot if one is free after the running
//! jobs and the waiting jobs that precede it: those of higher priority, then older ones. Each job
//! decides for itself under the pool's lock. A job whose process has ended occupies no slot. In a
//! file-system image a job also waits for the image lock.

use std::time::Duration;

use extant_space::{Control, Phase, Result};

use super::Pool;
use crate::job::{JobState, Record, RunStatus, Stage};
use crate::state::PoolState;
use crate::storage::{ImageWaiter, Storage};
use crate::work::StatusWriter;

/// Poll interval of a waiting job.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Waits until the job may run, takes a slot for it, and opens the storage of the volumes.
pub(super) fn wait_turn<'p>(
    pool: &'p Pool,
    state: &PoolState,
    own: &Record,
    status: &StatusWriter<'_>,
    control: Control<'_>,
) -> Result<Box<dyn Storage + 'p>> {
    let mut waiter = ImageWaiter::default();
    loop {
        control.cancel.check()?;
        // The storage is opened when a slot is likely to be free; the decision is made under the
        // lock.
        let storage = if is_next(pool, state, own)? {
            let purpose = own.operation.purpose();
            pool.storage_of_job(purpose, control.cancel, &mut waiter)?
        } else {
            waiter = ImageWaiter::default();
            None
        };
        if let Some(storage) = storage {
            let _locked = state.lock()?;
            if is_next(pool, state, own)? {
                status.set(RunStatus {
                    stage: Stage::Running,
                    progress: None,
                    // The progress of an earlier process.
                    ..status.newest()
                })?;
                own.report(JobState::Running);
                return Ok(storage);
            }
        }
        control.report(Phase::Wait, 0, 0);
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn is_next(pool: &Pool, state: &PoolState, own: &Record) -> Result<bool> {
    let places = pool.definition().limits().jobs_max.get() as usize;
    let own = (own.options.priority, own.id);
    let before = state.jobs.alive()?.into_iter().filter(|job| {
        let (priority, id) = (job.record.options.priority, job.record.id);
        let goes_first = priority > own.0 || (priority == own.0 && id < own.1);
        id != own.1 && (job.stage != Stage::Waiting || goes_first)
    });
    Ok(before.count() < places)
}

//! Whose turn it is.
//!
//! A pool has so many places (`jobs_max`). A job that waits takes one when there is one left after the jobs at work and the
//! waiting ones before it: those of higher priority, and the older of the same. Jobs judge for themselves, under the
//! pool's lock; a job whose process died holds no place.

use std::time::Duration;

use extant_space::{Control, Phase, Result};

use super::worker::Work;
use super::{Line, Stage};

/// How often a waiting job looks.
const LOOK: Duration = Duration::from_millis(20);

/// Waits for the turn of a job, and takes its place.
pub(super) fn wait_turn(work: &Work<'_>, control: Control<'_>) -> Result<()> {
    loop {
        control.cancel.check()?;
        let locked = work.state.lock()?;
        if is_next(work)? {
            work.set_line(Line {
                stage: Stage::Running,
                progress: None,
            })?;
            return Ok(());
        }
        drop(locked);
        control.report(Phase::Wait, 0, 0);
        std::thread::sleep(LOOK);
    }
}

fn is_next(work: &Work<'_>) -> Result<bool> {
    let places = work.pool.definition().limits().jobs_max.get() as usize;
    let own = (work.record.options.priority, work.record.id);
    let before = work.state.jobs.alive()?.into_iter().filter(|job| {
        let (priority, id) = (job.record.options.priority, job.record.id);
        let goes_first = priority > own.0 || (priority == own.0 && id < own.1);
        id != own.1 && (job.stage != Stage::Waiting || goes_first)
    });
    Ok(before.count() < places)
}

//! A running job of this process.
//!
//! The job's thread executes the operation. A second thread writes the status, shares the pool's
//! rate, and releases a file-system image to waiters, for which it may wait for the disk; a third
//! one, which never waits for the disk, forwards stop requests to the token. The record is written
//! before the heartbeat file is removed, however the job ends.

use std::fs::File;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use extant_space::thread::spawn_scoped;
use extant_space::{CancelToken, Control, ErrorKind, Progress, ProgressSink, Remedy, Result};

use super::{Pool, queue};
use crate::job::{JobId, JobState, Operation, Outcome, Record, RunFile, Stage};
use crate::job_rate::JobRate;
use crate::operation;
use crate::state::PoolState;
use crate::storage::{Done, Storage};
use crate::work::{StatusWriter, Survival, Work};

/// Poll interval for stop requests, each a read from the page cache.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Interval of checks for waiters, and for a status to publish.
const UPDATE_INTERVAL: Duration = Duration::from_millis(20);
/// How long an operation that makes a volume runs before its record is made durable.
const RECORD_SYNC_DELAY: Duration = Duration::from_millis(50);
/// Interval of status updates.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(100);
/// Interval at which the pool's rate is shared again.
const RATE_SHARE_INTERVAL: Duration = Duration::from_millis(200);

/// Treatment of a job whose own process cancels it (the token of its [`Control`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStop {
    /// It is cancelled: the pool is as before.
    Cancel,
    /// It is interrupted, and can be resumed.
    Interrupt,
}

/// A job that this process works on. Dropped before it ran, it is interrupted.
#[derive(Debug)]
pub struct Job<'p> {
    pool: &'p Pool,
    state: PoolState,
    record: Record,
    run: RunFile,
    survival: Survival,
    /// An earlier process has worked on it.
    was_interrupted: bool,
}

impl<'p> Job<'p> {
    /// A job just submitted, by this process.
    pub(super) fn new(pool: &'p Pool, state: PoolState, record: Record, run: RunFile) -> Self {
        let survival = match &record.operation {
            // Done again after a crash, it would replace what was written since.
            Operation::Upload(upload) if upload.replace => Survival::Survives,
            operation if operation.makes_volume() => Survival::Open,
            _ => Survival::Survives,
        };
        Self {
            pool,
            state,
            record,
            run,
            survival,
            was_interrupted: false,
        }
    }

    /// A job that another process has begun, or was to begin.
    pub(super) fn continued(
        pool: &'p Pool,
        state: PoolState,
        record: Record,
        run: RunFile,
    ) -> Self {
        let status = run.status();
        Self {
            survival: Survival::Survives,
            was_interrupted: status.is_some_and(|status| status.stage != Stage::Waiting),
            ..Self::new(pool, state, record, run)
        }
    }

    /// Its number.
    pub fn id(&self) -> JobId {
        self.record.id
    }

    /// Its operation.
    pub fn operation(&self) -> &Operation {
        &self.record.operation
    }

    /// Lets another process continue the job: one that inherits the open file and calls
    /// [`Pool::take_over`]. The job always has a worker.
    pub fn hand_over(self) -> File {
        self.run.into_file()
    }

    /// Waits for its turn and performs its operation.
    ///
    /// A request of [`Pool::cancel`] cancels the token of `control` as well. After an error the
    /// pool is as before, except for data already wiped and for an interrupted job, which can be
    /// resumed: after a stop if `on_stop` says so, and where the storage fails in a way that others
    /// can mend.
    pub fn run(self, on_stop: OnStop, control: Control<'_>) -> Result<()> {
        self.run_reporting(on_stop, control).map(drop)
    }

    /// The same; returns the work done.
    pub fn run_reporting(mut self, on_stop: OnStop, control: Control<'_>) -> Result<Done> {
        let has_begun = self
            .run
            .status()
            .is_none_or(|status| status.stage != Stage::Waiting);
        let mut storage = None;
        let result = self.work(&mut storage, control);
        let error = match result {
            Ok(done) => {
                drop(storage);
                return self.end(Ok(())).map(|()| done);
            }
            Err(error) => error,
        };
        let is_interrupted = error.kind() == ErrorKind::Cancelled
            && on_stop == OnStop::Interrupt
            && !self.run.must_stop();
        if is_interrupted {
            self.record.report(JobState::Interrupted);
            return Err(error);
        }
        // The last sync of a killed process may continue, and hold its file.
        let is_held = self.was_interrupted && error.kind() == ErrorKind::InUse;
        let is_kept = is_held
            || storage
                .as_deref()
                .is_some_and(|storage| storage.keeps_work_after(&error));
        if is_kept && !self.run.must_stop() {
            self.record.report(JobState::Interrupted);
            return Err(error.remedy(Remedy::ResumeJob));
        }
        let undone = if has_begun || storage.is_some() {
            self.roll_back()
        } else {
            // Other processes may use the storage for long.
            Ok(())
        };
        drop(storage);
        match undone {
            Ok(()) => self.end(Err(error)).map(|()| Done::default()),
            // The job stays interrupted until the disk answers again.
            Err(_) => Err(error.remedy(Remedy::ResumeJob)),
        }
    }

    /// Not with the job's own files: their calls fail when the job is cancelled while others have
    /// the image.
    fn roll_back(&self) -> Result<()> {
        let purpose = self.record.operation.purpose();
        let storage = self.pool.storage_of_rollback(purpose)?;
        operation::roll_back(&*storage, &self.record, self.pool.identity()?)
    }

    /// Leaves its files open for the rollback.
    fn work(
        &self,
        opened: &mut Option<Box<dyn Storage + 'p>>,
        control: Control<'_>,
    ) -> Result<Done> {
        let status = StatusWriter::new(&self.run, self.survival);
        let identity = self.pool.identity()?;
        if status.newest().stage == Stage::Publishing {
            let storage = self.pool.storage(self.record.operation.purpose())?;
            if operation::was_published(&*storage, &self.record, &self.run, identity)? {
                return Ok(Done::default());
            }
        }
        let is_resumed = status.newest().stage == Stage::Running;
        let progress = ProgressRelay {
            status: &status,
            caller: control.progress,
        };
        let rate = JobRate::new(self.record.options, self.pool.definition().limits());
        let (done, is_done) = channel::<()>();
        let (ended, has_ended) = channel::<()>();
        thread::scope(|scope| {
            let watch = || self.watch_for_stop(control.cancel, has_ended);
            spawn_scoped(scope, "job stop", watch)?;
            let publish = || self.publish_status(&status, &rate, is_done);
            spawn_scoped(scope, "job status", publish)?;
            let control = Control::new(control.cancel, &progress);
            let turn = queue::wait_turn(self.pool, &self.state, &self.record, &status, control);
            let result = turn.and_then(|storage| {
                let work = Work {
                    storage: &**opened.insert(storage),
                    record: &self.record,
                    status: &status,
                    rate: &rate,
                    pool_identity: identity,
                    is_resumed,
                };
                operation::perform(&work, control)
            });
            drop((done, ended));
            result
        })
    }

    /// Cancels the operation when another process requests it.
    fn watch_for_stop(&self, cancel: &CancelToken, is_done: Receiver<()>) {
        while is_done.recv_timeout(STOP_POLL_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            if self.run.must_stop() {
                return cancel.cancel();
            }
        }
    }

    /// Runs concurrently with the operation until that ends.
    fn publish_status(&self, status: &StatusWriter<'_>, rate: &JobRate, is_done: Receiver<()>) {
        // The records of other jobs are durable. A volume that is made soon needs no job after a
        // crash, and would wait for these syncs.
        let makes_volume = self.record.operation.makes_volume();
        if !makes_volume
            || is_done.recv_timeout(RECORD_SYNC_DELAY) == Err(RecvTimeoutError::Timeout)
        {
            // The file has its place on the disk then, before the operation waits for its last
            // status to be durable.
            let _ = self.run.sync();
            if makes_volume && status.survive() {
                let _ = self.record.sync_new(self.state.jobs.dir());
            }
        }
        let mut published: Option<Instant> = None;
        let mut shared: Option<Instant> = None;
        while is_done.recv_timeout(UPDATE_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            self.pool.give_way();
            if shared.is_none_or(|at| at.elapsed() >= RATE_SHARE_INTERVAL) {
                // After an error the share is unchanged.
                let _ = rate.share(&self.record, &self.state);
                shared = Some(Instant::now());
            }
            if published.is_none_or(|at| at.elapsed() >= PUBLISH_INTERVAL) {
                status.publish_newest();
                published = Some(Instant::now());
            }
        }
        // For the process that resumes a stopped job.
        status.publish_newest();
    }

    fn end(&mut self, result: Result<()>) -> Result<()> {
        let jobs = &self.state.jobs;
        let progress = self.run.status().and_then(|status| status.progress);
        let ended = self
            .record
            .end(jobs.dir(), Outcome::of(&result, progress))
            .and_then(|()| jobs.remove_run_file(self.record.id));
        // Without a record the job is forgotten: its work is done or undone either way.
        let ended = ended.or_else(|_| jobs.forget(self.record.id));
        result.and(ended)
    }
}

/// Progress is written to the job's status and reported to the caller.
struct ProgressRelay<'a> {
    status: &'a StatusWriter<'a>,
    caller: &'a dyn ProgressSink,
}

impl ProgressSink for ProgressRelay<'_> {
    fn update(&self, progress: Progress) {
        self.status.set_progress(progress);
        self.caller.update(progress);
    }

    fn watches_disk(&self, disk: &str) {
        self.caller.watches_disk(disk);
    }

    fn gave_way(&self, duration: Duration) {
        self.caller.gave_way(duration);
    }
}

//! A running job of this process.
//!
//! The job's thread executes the operation. A second thread writes the status, shares the pool's
//! rate, and releases a file-system image to waiters, for which it may wait for the disk; a third
//! one, which never waits for the disk, forwards stop requests to the token. The record is written
//! before the heartbeat file is removed, however the job ends.

use std::fs::File;
use std::num::NonZeroU64;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use extant_hostfs::Pace;
use extant_space::{CancelToken, Control, ErrorKind, Progress, ProgressSink, Result};

use super::rate::JobRate;
use super::{Done, JobId, Line, MadeFile, Outcome, Record, RunFile, Stage, Wiped, queue};
use crate::operation;
use crate::pool::Pool;
use crate::state::State;
use crate::storage::Storage;

/// Poll interval for stop requests, each a read from the page cache.
const LISTEN: Duration = Duration::from_millis(5);
/// Interval of status updates.
const LOOK: Duration = Duration::from_millis(20);
/// How often the line is written.
const TELL: Duration = Duration::from_millis(100);
/// Interval at which the pool's rate is shared again.
const SHARE: Duration = Duration::from_millis(200);

/// What happens to a job whose own process cancels it (the token of its [`Control`]).
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
    state: State,
    record: Record,
    run: RunFile,
}

impl<'p> Job<'p> {
    pub(super) fn new(pool: &'p Pool, state: State, record: Record, run: RunFile) -> Self {
        Self {
            pool,
            state,
            record,
            run,
        }
    }

    /// Its number.
    pub fn id(&self) -> JobId {
        self.record.id
    }

    /// Its operation.
    pub fn operation(&self) -> &super::Operation {
        &self.record.operation
    }

    /// Lets another process continue the job: one that inherits the open file and calls
    /// [`Pool::take_over`]. The job always has a worker.
    pub fn hand_over(self) -> File {
        self.run.into_file()
    }

    /// Waits for its turn and does it.
    ///
    /// A request of [`Pool::cancel`] cancels the token of `control` as well. After an error the
    /// pool is as before, but for what a wipe has wiped, and for an interrupted job, which can be
    /// resumed.
    pub fn run(self, on_stop: OnStop, control: Control<'_>) -> Result<()> {
        self.run_reporting(on_stop, control).map(drop)
    }

    /// The same; what was done.
    pub fn run_reporting(mut self, on_stop: OnStop, control: Control<'_>) -> Result<Done> {
        let has_begun = self
            .run
            .line()
            .is_none_or(|line| line.stage != Stage::Waiting);
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
            return Err(error);
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
            // It stays interrupted, for a disk that answers again.
            Err(_) => Err(error),
        }
    }

    /// Not with the job's own files: their calls fail when the job is cancelled while others have
    /// the image.
    fn roll_back(&self) -> Result<()> {
        let storage = self.pool.storage(self.record.operation.purpose())?;
        operation::roll_back(self.pool, &*storage, &self.record)
    }

    /// Leaves what it opened: who rolls back finds it open.
    fn work(
        &self,
        opened: &mut Option<Box<dyn Storage + 'p>>,
        control: Control<'_>,
    ) -> Result<Done> {
        let teller = Teller::new(&self.run);
        if teller.newest().stage == Stage::Publishing {
            let storage = self.pool.storage(self.record.operation.purpose())?;
            if operation::was_published(self.pool, &*storage, &self.record, &self.run)? {
                return Ok(Done::default());
            }
        }
        let is_resumed = teller.newest().stage == Stage::Running;
        let progress = Told {
            teller: &teller,
            caller: control.progress,
        };
        let rate = JobRate::new(self.record.options, self.pool.definition().limits());
        let (done, is_done) = channel::<()>();
        let (ended, has_ended) = channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(|| self.listen(control.cancel, has_ended));
            scope.spawn(|| self.keep_line(&teller, &rate, is_done));
            let control = Control::new(control.cancel, &progress);
            let turn = queue::wait_turn(self.pool, &self.state, &self.record, &teller, control);
            let result = turn.and_then(|storage| {
                let work = Work {
                    pool: self.pool,
                    storage: &**opened.insert(storage),
                    record: &self.record,
                    teller: &teller,
                    rate: &rate,
                    is_resumed,
                };
                operation::perform(&work, control)
            });
            drop((done, ended));
            result
        })
    }

    /// Cancels the operation when another process requests it.
    fn listen(&self, cancel: &CancelToken, is_done: Receiver<()>) {
        while is_done.recv_timeout(LISTEN) == Err(RecvTimeoutError::Timeout) {
            if self.run.must_stop() {
                return cancel.cancel();
            }
        }
    }

    /// Runs beside the operation until that is done.
    fn keep_line(&self, teller: &Teller<'_>, rate: &JobRate, is_done: Receiver<()>) {
        // The file has its place on the disk then, before the operation waits for its last line to
        // be there.
        let _ = self.run.sync();
        let mut told: Option<Instant> = None;
        let mut shared: Option<Instant> = None;
        while is_done.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
            self.pool.give_way();
            if shared.is_none_or(|at| at.elapsed() >= SHARE) {
                // A look that fails leaves the part as it was.
                let _ = rate.share(&self.record, &self.state);
                shared = Some(Instant::now());
            }
            if told.is_none_or(|at| at.elapsed() >= TELL) {
                teller.tell_newest();
                told = Some(Instant::now());
            }
        }
        // For who resumes a job that was stopped.
        teller.tell_newest();
    }

    fn end(&mut self, result: Result<()>) -> Result<()> {
        let jobs = &self.state.jobs;
        let progress = self.run.line().and_then(|line| line.progress);
        let ended = self
            .record
            .end(jobs.folder(), Outcome::of(&result, progress))
            .and_then(|()| jobs.remove_run_file(self.record.id));
        // Without a record the job is forgotten: its work is done or undone either way.
        let ended = ended.or_else(|_| jobs.forget(self.record.id));
        result.and(ended)
    }
}

/// Progress goes to the job's line and to the caller.
struct Told<'a> {
    teller: &'a Teller<'a>,
    caller: &'a dyn ProgressSink,
}

impl ProgressSink for Told<'_> {
    fn update(&self, progress: Progress) {
        self.teller.set_progress(progress);
        self.caller.update(progress);
    }

    fn gave_way(&self, duration: Duration) {
        self.caller.gave_way(duration);
    }
}

/// The line that others see, as it is to be written.
pub(super) struct Teller<'a> {
    run: &'a RunFile,
    lines: Mutex<Lines>,
}

/// Locked while a line is written: an older one never replaces a newer.
struct Lines {
    newest: Line,
    /// As others see it.
    told: Option<Line>,
}

impl<'a> Teller<'a> {
    fn new(run: &'a RunFile) -> Self {
        let told = run.line();
        let newest = told.unwrap_or(Line::new(Stage::Waiting));
        Self {
            run,
            lines: Mutex::new(Lines { newest, told }),
        }
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().expect("no thread panics with it")
    }

    pub(super) fn newest(&self) -> Line {
        self.lines().newest
    }

    fn set_progress(&self, progress: Progress) {
        self.lines().newest.progress = Some(progress);
    }

    fn set_wiped(&self, wiped: Wiped) {
        let mut lines = self.lines();
        let old = lines.newest.wiped.map(|old| old.end_byte);
        lines.newest.wiped = Some(wiped);
        if old != Some(wiped.end_byte) {
            // A line that cannot be written makes the next process do more.
            let _ = self.tell(&mut lines);
        }
    }

    fn set_made(&self, made: MadeFile) -> Result<()> {
        let mut lines = self.lines();
        lines.newest.made = Some(made);
        self.tell(&mut lines)
    }

    /// Publishes the current status of the job.
    pub(super) fn set(&self, line: Line) -> Result<()> {
        let mut lines = self.lines();
        lines.newest = line;
        self.tell(&mut lines)
    }

    /// Publishes the newest status. A failed write affects only observers.
    fn tell_newest(&self) {
        let mut lines = self.lines();
        if lines.told != Some(lines.newest) {
            let _ = self.tell(&mut lines);
        }
    }

    fn tell(&self, lines: &mut Lines) -> Result<()> {
        self.run.tell(lines.newest)?;
        lines.told = Some(lines.newest);
        Ok(())
    }
}

/// The environment of an operation.
pub(crate) struct Work<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) storage: &'a dyn Storage,
    pub(crate) record: &'a Record,
    teller: &'a Teller<'a>,
    rate: &'a JobRate,
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
        self.teller.newest().wiped
    }

    /// Records durably how far a wipe has come, for a process that resumes the job.
    pub(crate) fn set_wiped(&self, wiped: Wiped) {
        self.teller.set_wiped(wiped);
    }

    /// The file that the job, or its earlier process, has made outside of the pool.
    pub(crate) fn made(&self) -> Option<MadeFile> {
        self.teller.newest().made
    }

    /// Records which file the job has made, for a process that resumes the job.
    pub(crate) fn set_made(&self, made: MadeFile) -> Result<()> {
        self.teller.set_made(made)
    }

    /// All is done but a rename: from here on a file under the final name is this job's. Durable on
    /// return.
    pub(crate) fn begin_publication(&self) -> Result<()> {
        self.teller.set(Line {
            stage: Stage::Publishing,
            ..self.teller.newest()
        })?;
        self.teller.run.sync()
    }
}

//! Jobs: running them, and those of other processes.

use std::ffi::{c_char, c_int, c_void};
use std::fs::File;
use std::ptr;
use std::sync::{Arc, Mutex};

use extant_pool::{Job, JobId, JobState, JobStatus, OnStop, Operation, Pool};
use extant_space::{Error, ErrorKind, Result};

use super::arguments::{
    MESSAGE_BYTES, NAME_BYTES, OperationControl, OperationProgress, Room, characters, choice,
    with_control,
};
use super::error::call;
use super::pool::{OpenPool, of_handle, visitor};
use crate::outcome::{Failure, Status};

/// Phase of a job.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobPhase {
    /// For its turn.
    Waiting,
    /// At work.
    Running,
    /// Its process has ended or gave it up; it can be resumed or cancelled.
    Interrupted,
    /// Ended well.
    Done,
    /// Ended with an error; the pool is as before.
    Failed,
    /// Ended by request; the pool is as before.
    Cancelled,
}

/// Operation of a job.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobOperation {
    /// A new volume.
    Create,
    /// A new volume with the content of another.
    Clone,
    /// Another capacity.
    Resize,
    /// The content is destroyed.
    Wipe,
    /// Holes and unwritten parts become written.
    Materialize,
    /// A volume gets the content of a file.
    Upload,
    /// A file gets the content of a volume.
    Download,
    /// An operation of a later version.
    Other,
}

/// Treatment of a job whose `extant_job_run` is cancelled by its `control`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobOnStop {
    /// It is cancelled: the pool is as before.
    Cancel,
    /// It is interrupted, and `extant_job_resume` continues it.
    Interrupt,
}

/// A job that this process is to run. One thread at a time may run it; its number may be asked by
/// others.
pub struct OwnJob {
    pool: Arc<Pool>,
    id: JobId,
    /// The lock of the worker, until it runs.
    lock: Mutex<Option<File>>,
}

/// Snapshot of a job. Set `struct_size` before the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct JobFacts {
    /// Bytes of this structure.
    pub struct_size: usize,
    /// Its number in its pool.
    pub id: u64,
    /// `extant_job_state`.
    pub state: u32,
    /// `extant_job_operation`.
    pub operation: u32,
    /// How far it is, or was when it or its process ended; zeros before its first step.
    pub progress: OperationProgress,
    /// Time of submission, seconds since 1970.
    pub created: u64,
    /// Time of its end, seconds since 1970; 0: it has not ended.
    pub ended: u64,
    /// `extant_status` with which it ended.
    pub status: u32,
    /// The `errno` that fits best, of a job that ended otherwise than well; else 0.
    pub error_number: i32,
    /// The volume that it makes or works on.
    pub volume: [c_char; NAME_BYTES],
    /// Why it ended otherwise than well, a line for people; else empty.
    pub message: [c_char; MESSAGE_BYTES],
}

/// Bytes of the first version of `JobFacts`; a fixed number.
const INFO_BYTES: usize = 1360;

/// Takes one job after the other; anything but 0 ends the visit, which is no error.
pub type JobCallback =
    Option<unsafe extern "C" fn(job: *const JobFacts, user: *mut c_void) -> c_int>;

/// The number of a job in its pool, by which all processes know it; 0 for null.
///
/// # Safety
/// `job` is null or from a call of this library, and not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_job_id(job: *const OwnJob) -> u64 {
    // SAFETY: as promised.
    unsafe { job.as_ref() }.map_or(0, |job| job.id.0)
}

/// Waits for the job's turn and does its work, on this thread, with progress. `extant_job_cancel`
/// of any process stops it too. A job runs once.
///
/// `on_stop` is an `extant_job_on_stop`. After an error the pool is as before, except for an
/// interrupted job: after a cancel if `on_stop` says so, and where the storage fails in a way that
/// can be mended.
///
/// `control` and `error` may be null.
///
/// # Safety
/// Pointers that are not null are valid for their type. `error` receives null, or an object for
/// `extant_error_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_job_run(
    job: *const OwnJob,
    on_stop: u32,
    control: *const OperationControl,
    error: *mut *mut Failure,
) -> Status {
    let work = || {
        // SAFETY: the caller's promises, passed on.
        let Some(job) = (unsafe { job.as_ref() }) else {
            return Err(Error::new(ErrorKind::InvalidArgument).detail("job is null"));
        };
        let all = [JobOnStop::Cancel, JobOnStop::Interrupt];
        let on_stop = match choice(on_stop, &all, "on_stop")? {
            JobOnStop::Cancel => OnStop::Cancel,
            JobOnStop::Interrupt => OnStop::Interrupt,
        };
        let lock = job.lock.lock().map_or(None, |mut lock| lock.take());
        let lock = lock.ok_or_else(|| {
            Error::new(ErrorKind::InvalidArgument)
                .detail(format!("job {} has been run already", job.id))
        })?;
        // The call's own, whatever is done with the handle meanwhile.
        let (pool, id) = (Arc::clone(&job.pool), job.id);
        let own = pool.take_over(id, lock)?;
        // SAFETY: likewise.
        unsafe { with_control(control, |control| own.run(on_stop, control)) }
    };
    // SAFETY: likewise.
    unsafe { call(error, work) }
}

/// Frees a job. One that has not run is interrupted: `extant_job_resume` continues it, in any
/// process.
///
/// # Safety
/// `job` is null or from a call of this library, not freed yet and not at work.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_job_free(job: *mut OwnJob) {
    if !job.is_null() {
        // SAFETY: as promised.
        drop(unsafe { Box::from_raw(job) });
    }
}

/// Resumes the interrupted job `id`: this process is to run it. Its needs are reserved again.
///
/// `EXTANT_STATUS_IN_USE` while a process works on it, `EXTANT_STATUS_ALREADY_EXISTS` if it has
/// ended. `error` may be null.
///
/// # Safety
/// Pointers that are not null are valid for their type. `job` receives null, or an object for
/// `extant_job_free`; `error` null, or one for `extant_error_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_job_resume(
    pool: *const OpenPool,
    id: u64,
    job: *mut *mut OwnJob,
    error: *mut *mut Failure,
) -> Status {
    // SAFETY: the caller's promises, passed on.
    unsafe { give_job(pool, job, error, |pool| pool.resume(JobId(id))) }
}

/// Visits the jobs that a pool remembers, oldest first: those of all processes.
///
/// `error` may be null.
///
/// # Safety
/// `visit` takes `user`; pointers that are not null are valid for their type. `error` receives
/// null, or an object for `extant_error_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_job_list(
    pool: *const OpenPool,
    visit: JobCallback,
    user: *mut c_void,
    error: *mut *mut Failure,
) -> Status {
    let work = || {
        let visit = visitor(visit)?;
        // SAFETY: the caller's promises, passed on.
        for job in unsafe { of_handle(pool) }?.jobs()? {
            // SAFETY: likewise.
            if unsafe { visit(&JobFacts::of(&job), user) } != 0 {
                break;
            }
        }
        Ok(())
    };
    // SAFETY: likewise.
    unsafe { call(error, work) }
}

/// Describes the job `id`, of any process.
///
/// `error` may be null.
///
/// # Safety
/// Pointers that are not null are valid for their type. `error` receives null, or an object for
/// `extant_error_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_job_get_info(
    pool: *const OpenPool,
    id: u64,
    info: *mut JobFacts,
    error: *mut *mut Failure,
) -> Status {
    let work = || {
        // SAFETY: the caller's promises, passed on.
        let pool = unsafe { of_handle(pool) }?;
        // SAFETY: likewise.
        let room = unsafe { Room::of(info, INFO_BYTES) }?;
        room.fill(JobFacts::of(&pool.job(JobId(id))?));
        Ok(())
    };
    // SAFETY: likewise.
    unsafe { call(error, work) }
}

/// Waits until the job `id`, of any process, has ended or is interrupted, with its progress about
/// 10 times a second; `info` then says how it ended. A cancel ends the wait; the job continues.
///
/// `control`, `info` and `error` may be null.
///
/// # Safety
/// Pointers that are not null are valid for their type. `error` receives null, or an object for
/// `extant_error_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_job_wait(
    pool: *const OpenPool,
    id: u64,
    control: *const OperationControl,
    info: *mut JobFacts,
    error: *mut *mut Failure,
) -> Status {
    let work = || {
        // SAFETY: the caller's promises, passed on.
        let pool = unsafe { of_handle(pool) }?;
        // SAFETY: likewise.
        let room = unsafe { Room::of(info, INFO_BYTES) }?;
        let wait = |control: extant_space::Control<'_>| {
            pool.wait(JobId(id), control.cancel, &mut |status| {
                if let Some(progress) = status.progress {
                    control.progress.update(progress);
                }
            })
        };
        // SAFETY: likewise.
        room.fill(JobFacts::of(&unsafe { with_control(control, wait) }?));
        Ok(())
    };
    // SAFETY: likewise.
    unsafe { call(error, work) }
}

/// Cancels the job `id`, of any process, and returns when the pool is as before it; `info` then
/// says how it ended, which may be well where it was done first.
///
/// `EXTANT_STATUS_ALREADY_EXISTS` if it had ended before, `EXTANT_STATUS_IN_USE` if its process
/// does not answer for 30 seconds: free a job of this process that is not run yet before it is
/// cancelled. `info` and `error` may be null.
///
/// # Safety
/// Pointers that are not null are valid for their type. `error` receives null, or an object for
/// `extant_error_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_job_cancel(
    pool: *const OpenPool,
    id: u64,
    info: *mut JobFacts,
    error: *mut *mut Failure,
) -> Status {
    let work = || {
        // SAFETY: the caller's promises, passed on.
        let pool = unsafe { of_handle(pool) }?;
        // SAFETY: likewise.
        let room = unsafe { Room::of(info, INFO_BYTES) }?;
        room.fill(JobFacts::of(&pool.cancel(JobId(id))?));
        Ok(())
    };
    // SAFETY: likewise.
    unsafe { call(error, work) }
}

/// Runs a call that gives out a job.
///
/// # Safety
/// `pool` is null or valid; `job` and `error` are null or can be written to.
pub(super) unsafe fn give_job(
    pool: *const OpenPool,
    job: *mut *mut OwnJob,
    error: *mut *mut Failure,
    make: impl FnOnce(&Pool) -> Result<Job<'_>>,
) -> Status {
    let work = || {
        if job.is_null() {
            return Err(Error::new(ErrorKind::InvalidArgument).detail("job is null"));
        }
        // SAFETY: as promised.
        unsafe { job.write(ptr::null_mut()) };
        // SAFETY: as promised.
        let pool = unsafe { of_handle(pool) }?;
        let made = make(&pool)?;
        let own = OwnJob {
            pool: Arc::clone(&pool),
            id: made.id(),
            lock: Mutex::new(Some(made.hand_over())),
        };
        // SAFETY: as promised.
        unsafe { job.write(Box::into_raw(Box::new(own))) };
        Ok(())
    };
    // SAFETY: as promised.
    unsafe { call(error, work) }
}

impl JobFacts {
    fn of(status: &JobStatus) -> Self {
        let failure = status.failure.as_ref();
        Self {
            struct_size: size_of::<Self>(),
            id: status.id.0,
            state: phase(status.state) as u32,
            operation: operation(&status.operation) as u32,
            progress: status.progress.map(Into::into).unwrap_or_default(),
            created: status.created,
            ended: status.ended.unwrap_or(0),
            status: failure.map_or(Status::Ok, |failure| failure.kind.into()) as u32,
            error_number: failure.map_or(0, |failure| failure.kind.errno()),
            volume: characters(status.operation.volume().as_str()),
            message: characters(failure.map_or("", |failure| &failure.message)),
        }
    }
}

fn phase(state: JobState) -> JobPhase {
    match state {
        JobState::Waiting => JobPhase::Waiting,
        JobState::Running => JobPhase::Running,
        JobState::Interrupted => JobPhase::Interrupted,
        JobState::Done => JobPhase::Done,
        JobState::Failed => JobPhase::Failed,
        JobState::Cancelled => JobPhase::Cancelled,
    }
}

fn operation(operation: &Operation) -> JobOperation {
    match operation {
        Operation::Create(_) => JobOperation::Create,
        Operation::Clone(_) => JobOperation::Clone,
        Operation::Resize(_) => JobOperation::Resize,
        Operation::Wipe(_) => JobOperation::Wipe,
        Operation::Materialize(_) => JobOperation::Materialize,
        Operation::Upload(_) => JobOperation::Upload,
        Operation::Download(_) => JobOperation::Download,
        _ => JobOperation::Other,
    }
}

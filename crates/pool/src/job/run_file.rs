//! The heartbeat file of a job: its worker, its progress, and stop requests.
//!
//! The file has a fixed size and is updated in place. Its lock (flock) is held for the life of the
//! worker process. The first bytes are a request of other processes, the rest is the worker's
//! status. Neither is synced, because both are meaningless after a restart of the machine, except
//! for the stage before a publication: it identifies the owner of the file that has the volume's
//! name.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use extant_space::{Error, ErrorKind, Progress, Result};
use extant_sys::wait::poll_until;
use rustix::fs::{AtFlags, OFlags, Statx, StatxFlags, makedev, statx};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::JobId;
use crate::storage::nanoseconds;
use extant_hostfs::Directory;

pub(super) const SUFFIX: &str = ".run";
const SIZE: usize = 512;
/// The request is first, logically in a sector of its own: it is written by other processes.
const REQUEST_SIZE: usize = 8;
const GO_ON: &[u8; REQUEST_SIZE] = b"go\x20on  \n";
const STOP: &[u8; REQUEST_SIZE] = b"stop   \n";
/// A status is written in one call of a few hundred bytes.
const READS_MAX: u32 = 8;
/// A process that probes the lock holds it for a moment, and so does a process just killed.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);

const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// State of the worker of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Stage {
    /// For its turn.
    Waiting,
    /// At work.
    Running,
    /// All is done but the last rename, which may have happened or not.
    Publishing,
}

/// The worker's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunStatus {
    pub(crate) stage: Stage,
    pub(crate) progress: Option<Progress>,
    /// Progress of a wipe. The file cannot show it: wiped bytes are written, as before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) wiped: Option<Wiped>,
    /// Progress of an unfinished file that cannot show it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) prepared: Option<Prepared>,
    /// The unfinished file of a download, in a directory to which others may write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) made: Option<MadeFile>,
}

/// A file that a job has made outside the pool. Any other file under its name is not the job's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MadeFile {
    device: u64,
    inode: u64,
    /// Nanoseconds since 1970, as numbers of inodes are used again; 0 where the file system keeps
    /// no such time.
    born_ns: u64,
}

impl MadeFile {
    /// That of an open file.
    pub(crate) fn of(file: &File) -> Result<Self> {
        let stat = statx(file, "", AtFlags::EMPTY_PATH, Self::WANTED);
        Ok(Self::from(stat.map_err(io::Error::from)?))
    }

    /// The identity of the file `name`; `None`: there is none. Links are not followed.
    pub(crate) fn at(dir: &Directory, name: &str) -> Result<Option<Self>> {
        match statx(dir, name, AtFlags::SYMLINK_NOFOLLOW, Self::WANTED) {
            Ok(stat) => Ok(Some(Self::from(stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(Error::from(io::Error::from(errno)).at(dir.path().join(name))),
        }
    }

    const WANTED: StatxFlags = StatxFlags::INO.union(StatxFlags::BTIME);
}

impl From<Statx> for MadeFile {
    fn from(stat: Statx) -> Self {
        let born = stat.stx_btime;
        Self {
            device: makedev(stat.stx_dev_major, stat.stx_dev_minor),
            inode: stat.stx_ino,
            born_ns: nanoseconds(born.tv_sec, born.tv_nsec.into()).unwrap_or(0),
        }
    }
}

/// Progress of a wipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wiped {
    /// All before this byte is, durably.
    pub(crate) end_byte: u64,
    /// Time of the volume's last change before that: nanoseconds since 1970, by the clock of its
    /// file system. Later changes may be lost with the process.
    pub(crate) durable_ns: u64,
    /// The last change of the volume that the job saw, which was its own.
    pub(crate) changed_ns: u64,
}

/// How far an unfinished file is prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Prepared {
    /// Of the file: another one under its name has to be prepared from the start.
    pub(crate) identity: u64,
    /// All before this byte is, durably.
    pub(crate) end_byte: u64,
}

impl RunStatus {
    /// The status of a job that has not begun.
    pub(crate) fn new(stage: Stage) -> Self {
        Self {
            stage,
            progress: None,
            wiped: None,
            prepared: None,
            made: None,
        }
    }
}

/// A heartbeat file locked by this process. Released on drop.
#[derive(Debug)]
pub(crate) struct RunFile {
    /// `None` once it was handed over.
    file: Option<File>,
}

impl RunFile {
    /// Makes the file of a new job, locked.
    pub(crate) fn create(jobs: &Directory, id: JobId) -> Result<Self> {
        let name = name(id);
        let file = jobs.new_file(&name)?;
        let made = file
            .try_lock()
            .map_err(io::Error::from)
            .and_then(|()| file.write_all_at(&[b' '; SIZE], 0))
            .and_then(|()| file.write_all_at(GO_ON, 0));
        made.map_err(|source| Error::from(source).at(jobs.path().join(name)))?;
        let run = Self { file: Some(file) };
        run.write(RunStatus::new(Stage::Waiting))?;
        Ok(run)
    }

    /// Takes over a job whose worker has ended; `None` if the worker is alive. A missing file is
    /// created again.
    pub(crate) fn take(jobs: &Directory, id: JobId) -> Result<Option<Self>> {
        let file = jobs.file(name(id), OFlags::RDWR | OFlags::CREATE)?;
        let locked = poll_until(LOCK_TIMEOUT, LOCK_POLL_INTERVAL, || match file.try_lock() {
            Err(TryLockError::WouldBlock) => None,
            answer => Some(answer),
        });
        match locked {
            Some(Ok(())) => Ok(Some(Self { file: Some(file) })),
            None | Some(Err(TryLockError::WouldBlock)) => Ok(None),
            Some(Err(TryLockError::Error(source))) => Err(source.into()),
        }
    }

    /// The file of a job that another process has locked for this one, and has handed over open.
    pub(crate) fn handed_over(file: File, jobs: &Directory, id: JobId) -> Result<Self> {
        let same = jobs.stat(name(id))?.is_some_and(|named| {
            rustix::fs::fstat(&file)
                .is_ok_and(|own| (own.st_dev, own.st_ino) == (named.st_dev, named.st_ino))
        });
        // Has no effect on this process's own lock; acquires a free one.
        if same && file.try_lock().is_ok() {
            return Ok(Self { file: Some(file) });
        }
        Err(Error::new(ErrorKind::InvalidArgument)
            .detail(format!("the inherited file is not the lock of job {id}")))
    }

    /// The locked file, for another process to continue with.
    pub(crate) fn into_file(mut self) -> File {
        self.file.take().expect("handed over once")
    }

    fn file(&self) -> &File {
        self.file.as_ref().expect("not handed over")
    }

    /// Clears the stop request.
    pub(crate) fn clear_request(&self) -> Result<()> {
        Ok(self.file().write_all_at(GO_ON, 0)?)
    }

    /// Whether a stop was requested.
    pub(crate) fn must_stop(&self) -> bool {
        let mut request = [0; REQUEST_SIZE];
        self.file().read_exact_at(&mut request, 0).is_ok() && &request == STOP
    }

    /// Publishes the newest status.
    pub(crate) fn write(&self, status: RunStatus) -> Result<()> {
        let mut bytes = serde_json::to_vec(&status).expect("plain data");
        debug_assert!(bytes.len() < SIZE - REQUEST_SIZE);
        bytes.resize(SIZE - REQUEST_SIZE - 1, b' ');
        bytes.push(b'\n');
        Ok(self.file().write_all_at(&bytes, REQUEST_SIZE as u64)?)
    }

    /// The present status.
    pub(crate) fn status(&self) -> Option<RunStatus> {
        status_of(self.file())
    }

    /// Makes the status durable.
    pub(crate) fn sync(&self) -> Result<()> {
        Ok(self.file().sync_data()?)
    }
}

impl Drop for RunFile {
    /// Unlocks, and does not leave that to the close: a process just forked by another thread has
    /// the file open for a moment.
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            let _ = file.unlock();
        }
    }
}

/// A job's worker as seen by other processes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observed {
    pub(crate) is_alive: bool,
    pub(crate) status: Option<RunStatus>,
}

/// Reads the state of a job from another process. The file may be missing if the job has just
/// ended.
pub(crate) fn observe(jobs: &Directory, id: JobId) -> Result<Observed> {
    let file = match jobs.file(name(id), OFlags::RDONLY) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Ok(Observed {
                is_alive: false,
                status: None,
            });
        }
        Err(error) => return Err(error),
    };
    // Acquired for a moment if it is free, and released by the close.
    let is_alive = matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
    Ok(Observed {
        is_alive,
        status: status_of(&file),
    })
}

/// Asks the worker of a job to stop.
pub(crate) fn ask_to_stop(jobs: &Directory, id: JobId) -> Result<()> {
    let file = jobs.file(name(id), OFlags::RDWR)?;
    Ok(file.write_all_at(STOP, 0)?)
}

pub(crate) fn name(id: JobId) -> String {
    format!("{id}{SUFFIX}")
}

/// A status that is being changed is read again; `None` where there is none.
fn status_of(file: &File) -> Option<RunStatus> {
    (0..READS_MAX).find_map(|_| {
        let mut bytes = [0; SIZE - REQUEST_SIZE];
        file.read_exact_at(&mut bytes, REQUEST_SIZE as u64).ok()?;
        serde_json::from_slice(&bytes).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn life_of_a_job_is_its_lock() {
        let place = tempfile::tempdir().unwrap();
        let jobs = Directory::open(place.path()).unwrap();
        let run = RunFile::create(&jobs, JobId(1)).unwrap();
        assert!(observe(&jobs, JobId(1)).unwrap().is_alive);
        assert!(RunFile::take(&jobs, JobId(1)).unwrap().is_none());
        drop(run);
        assert!(!observe(&jobs, JobId(1)).unwrap().is_alive);
        assert!(RunFile::take(&jobs, JobId(1)).unwrap().is_some());
    }

    #[test]
    fn request_and_line_do_not_touch_each_other() {
        let place = tempfile::tempdir().unwrap();
        let jobs = Directory::open(place.path()).unwrap();
        let run = RunFile::create(&jobs, JobId(1)).unwrap();
        assert!(!run.must_stop());
        ask_to_stop(&jobs, JobId(1)).unwrap();
        let line = RunStatus {
            stage: Stage::Running,
            progress: Some(Progress {
                phase: extant_space::Phase::Write,
                done_bytes: u64::MAX,
                total_bytes: u64::MAX,
            }),
            wiped: Some(Wiped {
                end_byte: u64::MAX,
                durable_ns: u64::MAX,
                changed_ns: u64::MAX,
            }),
            prepared: Some(Prepared {
                identity: u64::MAX,
                end_byte: u64::MAX,
            }),
            made: Some(MadeFile {
                device: u64::MAX,
                inode: u64::MAX,
                born_ns: u64::MAX,
            }),
        };
        run.write(line).unwrap();
        assert!(run.must_stop());
        assert_eq!(observe(&jobs, JobId(1)).unwrap().status, Some(line));
        run.clear_request().unwrap();
        assert!(!run.must_stop());
    }

    #[test]
    fn lock_of_another_job_is_not_taken_for_ones_own() {
        let place = tempfile::tempdir().unwrap();
        let jobs = Directory::open(place.path()).unwrap();
        let one = RunFile::create(&jobs, JobId(1)).unwrap().into_file();
        let _two = RunFile::create(&jobs, JobId(2)).unwrap();
        assert!(RunFile::handed_over(one.try_clone().unwrap(), &jobs, JobId(2)).is_err());
        assert!(RunFile::handed_over(one, &jobs, JobId(1)).is_ok());
    }
}

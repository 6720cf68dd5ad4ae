//! The state of a pool, in the directory `.extant`; for a file-system image, in `IMAGE.extant`
//! beside it.
//!
//! ```text
//! .extant/lock          held for short steps: numbers, reservations, slots; counts acquisitions
//! .extant/door          turnstile: held by a starved waiter, which gets the lock next
//! .extant/identifier    that of the definition, if any
//! .extant/directory     file-system image: the directory of the volumes in it
//! .extant/turn, locks   file-system image: image lock, waiters, locks of volumes (storage/image/)
//! .extant/jobs/         N.json, N.spare, N.run (see job.rs)
//! .extant/work/         unfinished files (storage/directory.rs)
//! ```
//!
//! The directory belongs to the user who manages the pool and is closed to others: they cannot hold
//! its locks or redirect paths below it.

use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use extant_space::{Error, ErrorKind, Result};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use crate::folder::Folder;
use crate::job::Jobs;

/// Its name in the directory of a pool.
pub(crate) const FOLDER: &str = ".extant";
const LOCK: &str = "lock";
const DOOR: &str = "door";
/// Holds the identifier of the definition.
pub(crate) const IDENTIFIER: &str = "identifier";
const DIRECTORY: &str = "directory";
/// Write permission of the group and of others.
const OTHERS_WRITE: u32 = 0o022;
/// Longer paths are none that anything takes.
const PATH_MAX: u64 = 4096;
/// Steps under the lock take milliseconds, and many may come before.
const PATIENCE: Duration = Duration::from_secs(30);

/// Poll interval of the lock, initially and later.
const LOOK: Duration = Duration::from_millis(1);
const LOOK_MAX: Duration = Duration::from_millis(16);
/// A waiter that waits longer has starved.
const LUCK: Duration = Duration::from_millis(500);

/// The state directory, open.
#[derive(Debug)]
pub(crate) struct State {
    folder: Folder,
    pub(crate) jobs: Jobs,
}

/// A waiter for the lock.
struct Wait {
    patience: Duration,
    /// The acquisition count at the last poll.
    taken: u64,
    since: Instant,
}

impl Wait {
    fn new(lock: &File, patience: Duration) -> Self {
        Self {
            patience,
            taken: times_taken(lock),
            since: Instant::now(),
        }
    }

    /// Whether no process has acquired the lock for too long.
    fn is_over(&mut self, lock: &File) -> bool {
        let taken = times_taken(lock);
        if taken != self.taken {
            self.taken = taken;
            self.since = Instant::now();
        }
        self.since.elapsed() >= self.patience
    }
}

fn times_taken(lock: &File) -> u64 {
    let mut count = [0; 8];
    let read = lock.read_exact_at(&mut count, 0);
    read.map_or(0, |()| u64::from_le_bytes(count))
}

/// For who has taken it.
fn count_up(lock: &File) {
    let count = times_taken(lock).wrapping_add(1);
    // If the disk is full, the count stays, and waiters give up as if the lock were not acquired.
    let _ = lock.write_all_at(&count.to_le_bytes(), 0);
}

fn try_lock(file: &File) -> Result<bool> {
    try_flock(file, FlockOperation::NonBlockingLockExclusive)
}

/// Whether the turnstile is open.
fn is_open(door: &File) -> Result<bool> {
    let is_open = try_flock(door, FlockOperation::NonBlockingLockShared)?;
    if is_open {
        drop(Unlock(door));
    }
    Ok(is_open)
}

fn try_flock(file: &File, operation: FlockOperation) -> Result<bool> {
    match flock(file, operation) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(false),
        Err(errno) => Err(Error::from(io::Error::from(errno)).during("lock")),
    }
}

/// Not left to the close: a process just forked by another thread has the file open for a moment.
struct Unlock<'a>(&'a File);

impl Drop for Unlock<'_> {
    fn drop(&mut self) {
        let _ = flock(self.0, FlockOperation::Unlock);
    }
}

/// Keeps other processes, and other threads, from accounting at the same time.
#[derive(Debug)]
pub(crate) struct Locked {
    file: File,
}

impl Drop for Locked {
    fn drop(&mut self) {
        drop(Unlock(&self.file));
    }
}

impl State {
    /// Opens it; `None` if the pool has no state.
    pub(crate) fn open(above: &Folder, name: &str) -> Result<Option<Self>> {
        match above.child(name).and_then(check_owner) {
            Ok(folder) => Self::of(folder).map(Some),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens it, creating it if the pool has no state.
    pub(crate) fn make(above: &Folder, name: &str) -> Result<Self> {
        Self::of(make_own_folder(above, name)?)
    }

    pub(crate) fn folder(&self) -> &Folder {
        &self.folder
    }

    fn of(folder: Folder) -> Result<Self> {
        Ok(Self {
            jobs: Jobs::in_folder(folder.make_child("jobs")?),
            folder,
        })
    }

    /// Acquires the lock. The wait has no limit while the lock changes owners.
    ///
    /// Acquisition is opportunistic. A waiter that has starved closes the turnstile, which stops
    /// new attempts until it owns the lock.
    pub(crate) fn lock(&self) -> Result<Locked> {
        let lock = self.folder.file(LOCK, OFlags::RDWR | OFlags::CREATE)?;
        let door = match self.folder.file(DOOR, OFlags::RDWR | OFlags::CREATE) {
            Ok(door) => Some(door),
            // A full disk does not prevent removals from a pool without state.
            Err(error) if error.kind() == ErrorKind::NoSpace => None,
            Err(error) => return Err(error),
        };
        let came = Instant::now();
        let mut wait = Wait::new(&lock, PATIENCE);
        let mut shut = None;
        let mut pause = LOOK;
        loop {
            let may_try = match &door {
                Some(door) if shut.is_none() => is_open(door)?,
                _ => true,
            };
            if may_try && try_lock(&lock)? {
                count_up(&lock);
                return Ok(Locked { file: lock });
            }
            if wait.is_over(&lock) {
                return Err(Error::new(ErrorKind::InUse)
                    .at(self.folder.path())
                    .detail("another process holds the pool's lock"));
            }
            if let Some(door) = &door
                && shut.is_none()
                && came.elapsed() >= LUCK
                && try_lock(door)?
            {
                shut = Some(Unlock(door));
            }
            std::thread::sleep(pause);
            // Many waiters polling fast would take the processor from the owner.
            pause = match shut {
                Some(_) => LOOK,
                None => (2 * pause).min(LOOK_MAX),
            };
        }
    }

    /// The identifier of the definition that the pool was made for.
    pub(crate) fn identifier(&self) -> Result<Option<String>> {
        let bytes = self.folder.read(IDENTIFIER, 256)?;
        Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned()))
    }

    pub(crate) fn set_identifier(&self, identifier: &str) -> Result<()> {
        self.folder
            .write(IDENTIFIER, format!("{identifier}\n").as_bytes())
    }

    /// Refuses another directory of an image than the one that its jobs are about; the first that
    /// is named is kept.
    pub(crate) fn check_directory(&self, wanted: &Path) -> Result<()> {
        let found = match self.folder.read(DIRECTORY, PATH_MAX)? {
            Some(found) => found,
            None => {
                let _locked = self.lock()?;
                match self.folder.read(DIRECTORY, PATH_MAX)? {
                    // Another process was first.
                    Some(found) => found,
                    None => return self.write_directory(wanted),
                }
            }
        };
        if found == wanted.as_os_str().as_bytes() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::InUse)
            .at(self.folder.path())
            .detail(format!(
                "the pool of this image is in its directory {}, and one image is one pool",
                String::from_utf8_lossy(&found)
            ))
            .advice("use that pool, or define it again when it has no jobs"))
    }

    /// From now on it is another one, unless jobs are about the old.
    pub(crate) fn set_directory(&self, directory: &Path) -> Result<()> {
        if self.jobs.unfinished()?.is_empty() {
            self.write_directory(directory)
        } else {
            self.check_directory(directory)
        }
    }

    fn write_directory(&self, directory: &Path) -> Result<()> {
        self.folder
            .write(DIRECTORY, directory.as_os_str().as_bytes())
    }
}

/// Opens the directory `name` of a pool, creating it if necessary.
pub(crate) fn make_own_folder(pool: &Folder, name: &str) -> Result<Folder> {
    pool.make_child(name).and_then(check_owner)
}

fn check_owner(folder: Folder) -> Result<Folder> {
    let stat = folder.own_stat()?;
    let detail = if stat.st_uid != rustix::process::geteuid().as_raw() {
        format!(
            "the pool is managed by the user with number {}",
            stat.st_uid
        )
    } else if stat.st_mode & OTHERS_WRITE != 0 {
        // Files of other users there would be taken for the pool's own.
        "other users may write to the state directory of the pool".to_owned()
    } else {
        return Ok(folder);
    };
    Err(Error::new(ErrorKind::PermissionDenied)
        .at(folder.path())
        .detail(detail))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use super::*;

    #[test]
    fn state_is_made_once_and_its_lock_is_exclusive() {
        let place = tempfile::tempdir().unwrap();
        let pool = Folder::open(place.path()).unwrap();
        assert!(State::open(&pool, FOLDER).unwrap().is_none());
        let state = State::make(&pool, FOLDER).unwrap();
        let locked = state.lock().unwrap();
        let again = State::make(&pool, FOLDER).unwrap();
        let other = again.folder.file(LOCK, OFlags::RDWR).unwrap();
        let refused = flock(&other, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(refused, Err(Errno::WOULDBLOCK));
        drop(locked);
        again.lock().unwrap();
    }

    #[test]
    fn who_takes_the_lock_again_and_again_lets_others_have_it() {
        let place = tempfile::tempdir().unwrap();
        let pool = Folder::open(place.path()).unwrap();
        let state = State::make(&pool, FOLDER).unwrap();
        let (taken, has_other) = (AtomicU32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !has_other.load(Ordering::Relaxed) {
                    let _locked = state.lock().unwrap();
                    taken.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(LUCK / 5);
                }
            });
            while taken.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            let before = taken.load(Ordering::Relaxed);
            let locked = state.lock();
            let between = taken.load(Ordering::Relaxed) - before;
            has_other.store(true, Ordering::Relaxed);
            assert!(locked.is_ok() && between < 12, "{between}");
        });
    }

    #[test]
    fn patience_lasts_as_long_as_the_lock_goes_around() {
        let lock = tempfile::tempfile().unwrap();
        assert!(Wait::new(&lock, Duration::ZERO).is_over(&lock));
        let mut patient = Wait::new(&lock, Duration::from_millis(100));
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(50));
            count_up(&lock);
            assert!(!patient.is_over(&lock));
        }
        std::thread::sleep(Duration::from_millis(120));
        assert!(patient.is_over(&lock));
    }

    #[test]
    fn folder_that_others_may_write_to_is_not_the_pools_own() {
        let place = tempfile::tempdir().unwrap();
        let pool = Folder::open(place.path()).unwrap();
        State::make(&pool, FOLDER).unwrap();
        for mode in [0o770, 0o702] {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(place.path().join(FOLDER), mode).unwrap();
            for opened in [
                State::make(&pool, FOLDER).map(Some),
                State::open(&pool, FOLDER),
            ] {
                assert_eq!(opened.unwrap_err().kind(), ErrorKind::PermissionDenied);
            }
        }
    }

    #[test]
    fn link_in_place_of_the_state_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), place.path().join(FOLDER)).unwrap();
        let pool = Folder::open(place.path()).unwrap();
        assert!(State::make(&pool, FOLDER).is_err());
        assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    }
}

//! The state of a pool, in the directory `.extant`; for a file-system image, in `IMAGE.extant` in
//! the same directory.
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
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use extant_hostfs::{Directory, describe_holders_or_other};
use extant_space::{Error, ErrorKind, Result};
use rustix::fs::OFlags;

use crate::fair_lock::{FairLock, FairWaiter, HeldLock, LockMode, Lockable};
use crate::job::Jobs;
use crate::state_directory::{IDENTIFIER, make_state_directory, open_state_directory};

const LOCK: &str = "lock";
const TURNSTILE: &str = "door";
const DIRECTORY: &str = "directory";
/// No system call accepts longer paths.
const PATH_MAX: u64 = 4096;
/// Longest time in which no process acquires the lock: steps under it take milliseconds.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);
/// A waiter that waits longer has starved.
const STARVED_AFTER: Duration = Duration::from_millis(500);
/// Poll interval of the lock, initially and later.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
const POLL_INTERVAL_MAX: Duration = Duration::from_millis(16);

/// The state directory, open.
#[derive(Debug)]
pub(crate) struct PoolState {
    dir: Directory,
    pub(crate) jobs: Jobs,
}

/// Detects a lock that does not change owners.
struct StallTimer {
    timeout: Duration,
    /// The acquisition count at the last poll.
    taken: u64,
    since: Instant,
}

impl StallTimer {
    fn new(lock: &File, timeout: Duration) -> Self {
        Self {
            timeout,
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
        self.since.elapsed() >= self.timeout
    }
}

fn times_taken(lock: &File) -> u64 {
    let mut count = [0; 8];
    let read = lock.read_exact_at(&mut count, 0);
    read.map_or(0, |()| u64::from_le_bytes(count))
}

/// Counts an acquisition, by the owner of the lock.
fn count_up(lock: &File) {
    let count = times_taken(lock).wrapping_add(1);
    // If the disk is full, the count does not change, and waiters give up as if the lock were not
    // acquired.
    let _ = lock.write_all_at(&count.to_le_bytes(), 0);
}

/// Keeps other processes, and other threads, from accounting at the same time.
#[derive(Debug)]
pub(crate) struct Locked {
    _held: HeldLock,
}

impl PoolState {
    /// Opens it; `None` if the pool has no state.
    pub(crate) fn open(above: &Directory, name: &str) -> Result<Option<Self>> {
        match open_state_directory(above, name) {
            Ok(dir) => Self::of(dir).map(Some),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens it, creating it if the pool has no state.
    pub(crate) fn make(above: &Directory, name: &str) -> Result<Self> {
        Self::of(make_state_directory(above, name)?)
    }

    pub(crate) fn dir(&self) -> &Directory {
        &self.dir
    }

    fn of(dir: Directory) -> Result<Self> {
        Ok(Self {
            jobs: Jobs::in_directory(dir.make_child("jobs")?),
            dir,
        })
    }

    /// Acquires the lock. The wait has no limit while the lock changes owners.
    ///
    /// Acquisition is opportunistic. A waiter that has starved closes the turnstile, which stops
    /// new attempts until it owns the lock.
    pub(crate) fn lock(&self) -> Result<Locked> {
        let open = |name| self.dir.file(name, OFlags::RDWR | OFlags::CREATE);
        let lock = open(LOCK)?;
        let count = lock
            .try_clone()
            .map_err(|source| Error::from(source).at(self.dir.path()))?;
        let turnstile = match open(TURNSTILE) {
            Ok(turnstile) => Some(Lockable::file(turnstile)),
            // A full disk does not prevent removals from a pool without state.
            Err(error) if error.kind() == ErrorKind::NoSpace => None,
            Err(error) => return Err(error),
        };
        let fair = FairLock {
            lock: Lockable::file(lock),
            turnstile,
            starved_after: STARVED_AFTER,
        };
        let mut waiter = FairWaiter::default();
        let mut stall = StallTimer::new(&count, LOCK_TIMEOUT);
        let mut pause = POLL_INTERVAL;
        loop {
            if let Some(held) = waiter.try_acquire(&fair, LockMode::Exclusive)? {
                count_up(&count);
                return Ok(Locked { _held: held });
            }
            if stall.is_over(&count) {
                let who = describe_holders_or_other(&self.dir.path().join(LOCK));
                return Err(Error::new(ErrorKind::InUse)
                    .at(self.dir.path())
                    .detail(format!("the pool's lock is held by {who}")));
            }
            std::thread::sleep(pause);
            // Many waiters polling fast would take the processor from the owner.
            pause = if waiter.has_turnstile() {
                POLL_INTERVAL
            } else {
                (2 * pause).min(POLL_INTERVAL_MAX)
            };
        }
    }

    /// The identifier of the definition that the pool was made for.
    pub(crate) fn identifier(&self) -> Result<Option<String>> {
        let bytes = self.dir.read(IDENTIFIER, 256)?;
        Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned()))
    }

    pub(crate) fn set_identifier(&self, identifier: &str) -> Result<()> {
        self.dir
            .write(IDENTIFIER, format!("{identifier}\n").as_bytes())
    }

    /// Refuses another directory of an image than the one that its jobs are about; the first that
    /// is named is kept.
    pub(crate) fn check_directory(&self, wanted: &Path) -> Result<()> {
        let found = match self.dir.read(DIRECTORY, PATH_MAX)? {
            Some(found) => found,
            None => {
                let _locked = self.lock()?;
                match self.dir.read(DIRECTORY, PATH_MAX)? {
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
            .at(self.dir.path())
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
        self.dir.write(DIRECTORY, directory.as_os_str().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use super::*;
    use crate::state_directory::STATE_DIRECTORY;

    #[test]
    fn state_is_made_once_and_its_lock_is_exclusive() {
        let place = tempfile::tempdir().unwrap();
        let pool = Directory::open(place.path()).unwrap();
        assert!(PoolState::open(&pool, STATE_DIRECTORY).unwrap().is_none());
        let state = PoolState::make(&pool, STATE_DIRECTORY).unwrap();
        let locked = state.lock().unwrap();
        let again = PoolState::make(&pool, STATE_DIRECTORY).unwrap();
        let other = again.dir.file(LOCK, OFlags::RDWR).unwrap();
        assert!(matches!(
            other.try_lock(),
            Err(std::fs::TryLockError::WouldBlock)
        ));
        drop(locked);
        again.lock().unwrap();
    }

    #[test]
    fn process_that_takes_the_lock_again_and_again_starves_no_other() {
        let place = tempfile::tempdir().unwrap();
        let pool = Directory::open(place.path()).unwrap();
        let state = PoolState::make(&pool, STATE_DIRECTORY).unwrap();
        let (taken, has_other) = (AtomicU32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !has_other.load(Ordering::Relaxed) {
                    let _locked = state.lock().unwrap();
                    taken.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(STARVED_AFTER / 5);
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
    fn lock_is_not_stalled_while_it_changes_owners() {
        let lock = tempfile::tempfile().unwrap();
        assert!(StallTimer::new(&lock, Duration::ZERO).is_over(&lock));
        let mut stall = StallTimer::new(&lock, Duration::from_millis(100));
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(50));
            count_up(&lock);
            assert!(!stall.is_over(&lock));
        }
        std::thread::sleep(Duration::from_millis(120));
        assert!(stall.is_over(&lock));
    }

    #[test]
    fn directory_that_others_may_write_to_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let pool = Directory::open(place.path()).unwrap();
        PoolState::make(&pool, STATE_DIRECTORY).unwrap();
        for mode in [0o770, 0o702] {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(place.path().join(STATE_DIRECTORY), mode).unwrap();
            for opened in [
                PoolState::make(&pool, STATE_DIRECTORY).map(Some),
                PoolState::open(&pool, STATE_DIRECTORY),
            ] {
                assert_eq!(opened.unwrap_err().kind(), ErrorKind::PermissionDenied);
            }
        }
    }

    #[test]
    fn link_in_place_of_the_state_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), place.path().join(STATE_DIRECTORY)).unwrap();
        let pool = Directory::open(place.path()).unwrap();
        assert!(PoolState::make(&pool, STATE_DIRECTORY).is_err());
        assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    }
}

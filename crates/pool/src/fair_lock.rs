//! A fair lock between processes.
//!
//! The lock has a turnstile in front of it. A waiter that has waited long enough closes the
//! turnstile, which stops all other attempts until it owns the lock. While the turnstile is open,
//! acquisition is opportunistic.
//!
//! Both are advisory locks that the kernel releases when their process ends: of a whole file
//! (`flock`), or of one byte of a file (`F_OFD_SETLK`).

use std::fs::{File, TryLockError};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use extant_space::{Error, Result};
use extant_sys::range_lock;
use rustix::io::Errno;

/// How an object is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockMode {
    /// Together with other readers.
    Shared,
    /// By one process.
    Exclusive,
}

/// An object that processes lock.
#[derive(Clone, Debug)]
pub(crate) struct Lockable {
    file: Arc<File>,
    /// `None`: the whole file.
    byte: Option<u64>,
}

/// A held lock. Released on drop, not by the close: a process just forked by another thread has the
/// file open for a moment.
#[derive(Debug)]
#[must_use]
pub(crate) struct HeldLock(Lockable);

impl Lockable {
    pub(crate) fn file(file: File) -> Self {
        Self {
            file: Arc::new(file),
            byte: None,
        }
    }

    pub(crate) fn byte(file: File, byte: u64) -> Self {
        Self {
            file: Arc::new(file),
            byte: Some(byte),
        }
    }

    /// `None` while another holder excludes it.
    pub(crate) fn try_lock(&self, mode: LockMode) -> Result<Option<HeldLock>> {
        let is_locked = match (self.byte, mode) {
            (None, LockMode::Shared) => whole(self.file.try_lock_shared()),
            (None, LockMode::Exclusive) => whole(self.file.try_lock()),
            (Some(byte), LockMode::Shared) => one(range_lock::share(&*self.file, byte, 1)),
            (Some(byte), LockMode::Exclusive) => one(range_lock::exclude(&*self.file, byte, 1)),
        };
        match is_locked {
            Ok(is_locked) => Ok(is_locked.then(|| HeldLock(self.clone()))),
            Err(source) => Err(Error::from(source).during("lock")),
        }
    }
}

fn whole(locked: std::result::Result<(), TryLockError>) -> io::Result<bool> {
    match locked {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(source)) if source.kind() == io::ErrorKind::Interrupted => {
            Ok(false)
        }
        Err(TryLockError::Error(source)) => Err(source),
    }
}

fn one(locked: io::Result<()>) -> io::Result<bool> {
    match locked {
        Ok(()) => Ok(true),
        Err(source) => match Errno::from_io_error(&source) {
            Some(Errno::AGAIN | Errno::ACCESS) => Ok(false),
            _ => Err(source),
        },
    }
}

impl HeldLock {
    pub(crate) fn as_file(&self) -> &File {
        &self.0.file
    }
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        let _ = match self.0.byte {
            None => self.0.file.unlock(),
            Some(byte) => range_lock::release(&*self.0.file, byte, 1),
        };
    }
}

/// A lock and its turnstile.
#[derive(Debug)]
pub(crate) struct FairLock {
    pub(crate) lock: Lockable,
    /// `None`: acquisition is not fair.
    pub(crate) turnstile: Option<Lockable>,
    /// A waiter that waits longer closes the turnstile.
    pub(crate) starved_after: Duration,
}

/// A waiter for a fair lock.
#[derive(Debug, Default)]
pub(crate) struct FairWaiter {
    since: Option<Instant>,
    turnstile: Option<HeldLock>,
}

impl FairWaiter {
    /// Whether this waiter is the next owner.
    pub(crate) fn has_turnstile(&self) -> bool {
        self.turnstile.is_some()
    }

    /// Acquires the lock. `None` while another process owns it: the caller tries again soon with
    /// the same waiter.
    pub(crate) fn try_acquire(
        &mut self,
        fair: &FairLock,
        mode: LockMode,
    ) -> Result<Option<HeldLock>> {
        let since = *self.since.get_or_insert_with(Instant::now);
        if let (Some(turnstile), None) = (&fair.turnstile, &self.turnstile) {
            if since.elapsed() >= fair.starved_after {
                self.turnstile = turnstile.try_lock(LockMode::Exclusive)?;
                if self.turnstile.is_none() {
                    return Ok(None);
                }
            } else if turnstile.try_lock(LockMode::Shared)?.is_none() {
                return Ok(None);
            }
        }
        let held = fair.lock.try_lock(mode)?;
        if held.is_some() {
            *self = Self::default();
        }
        Ok(held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lock in two open files, as in two processes, by bytes or by whole files.
    fn twice(by_byte: bool, starved_after: Duration) -> [FairLock; 2] {
        let directory = tempfile::tempdir().unwrap();
        let open = |name: &str, byte| {
            let path = directory.path().join(name);
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(false);
            let file = options.open(path).unwrap();
            if by_byte {
                Lockable::byte(file, byte)
            } else {
                Lockable::file(file)
            }
        };
        [(); 2].map(|()| FairLock {
            lock: open("lock", 7),
            turnstile: Some(open("turnstile", 8)),
            starved_after,
        })
    }

    #[test]
    fn waiter_with_the_turnstile_is_the_next_owner() {
        for by_byte in [false, true] {
            let [one, other] = twice(by_byte, Duration::ZERO);
            let acquire =
                |waiter: &mut FairWaiter, fair, mode| waiter.try_acquire(fair, mode).unwrap();
            let reading = acquire(&mut FairWaiter::default(), &one, LockMode::Shared);
            let mut waiting = FairWaiter::default();
            assert!(acquire(&mut waiting, &other, LockMode::Exclusive).is_none());
            assert!(waiting.has_turnstile());
            let mut late = FairWaiter::default();
            assert!(acquire(&mut late, &one, LockMode::Shared).is_none());
            drop(reading);
            assert!(acquire(&mut late, &one, LockMode::Shared).is_none());
            let changing = acquire(&mut waiting, &other, LockMode::Exclusive).unwrap();
            assert!(!waiting.has_turnstile());
            drop(changing);
            assert!(acquire(&mut late, &one, LockMode::Shared).is_some());
        }
    }

    #[test]
    fn acquisition_is_opportunistic_until_a_waiter_starves() {
        let [one, other] = twice(false, Duration::from_millis(20));
        let held = one.lock.try_lock(LockMode::Exclusive).unwrap();
        let mut starving = FairWaiter::default();
        let mode = LockMode::Exclusive;
        assert!(starving.try_acquire(&other, mode).unwrap().is_none());
        assert!(!starving.has_turnstile());
        drop(held);
        let held = FairWaiter::default().try_acquire(&one, mode).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert!(starving.try_acquire(&other, mode).unwrap().is_none());
        assert!(starving.has_turnstile());
        drop(held);
        assert!(
            FairWaiter::default()
                .try_acquire(&one, mode)
                .unwrap()
                .is_none()
        );
        assert!(starving.try_acquire(&other, mode).unwrap().is_some());
    }
}

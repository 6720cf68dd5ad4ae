//! What processes see of each other while they have the image closed.
//!
//! In a file of the state directory one byte stands for each object. A process that holds an object
//! or waits for one locks its byte (`F_OFD_SETLK`); the kernel releases the lock when the process
//! ends:
//!
//! - an inode number: the volume, shared by readers;
//! - the turnstile in front of the image lock (`turn.rs`);
//! - new waiters for the image lock, and resuming waiters, which have released it and need it
//!   again.
//!
//! Where such locks are not supported, no process sees waiters, and none releases the image early.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use extant_ext4::InodeNumber;
use extant_space::{Error, ErrorKind, Result};
use extant_sys::range_lock;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::folder::Folder;
use crate::storage::{LockMode, Purpose};

const NAME: &str = "locks";
/// Past the numbers of all inodes.
const DOOR: u64 = 1 << 40;
const CALLERS: u64 = DOOR + 1;
const RETURNING: u64 = DOOR + 2;

/// The locks of volumes: between the threads of this process by a table, between processes by
/// bytes.
#[derive(Debug)]
pub(super) struct VolumeLocks {
    /// `None`: invisible to other processes.
    file: Option<File>,
    held: Mutex<HashMap<InodeNumber, Vec<LockMode>>>,
}

impl VolumeLocks {
    pub(super) fn new(own: Option<&Folder>, purpose: Purpose) -> Result<Self> {
        let file = own.map(|own| open(own, purpose)).transpose()?;
        Ok(Self {
            file: file.flatten(),
            held: Mutex::default(),
        })
    }

    /// Takes a lock; false if another process holds a conflicting one.
    pub(super) fn try_lock(&self, inode: InodeNumber, mode: LockMode) -> Result<bool> {
        let mut held = self.held();
        let own = held.entry(inode).or_default();
        let is_free = match mode {
            LockMode::Alone => own.is_empty(),
            LockMode::Shared => !own.contains(&LockMode::Alone),
        };
        let is_first = own.is_empty();
        if is_free {
            own.push(mode);
        }
        let Some(file) = self.file.as_ref().filter(|_| is_free && is_first) else {
            return Ok(is_free);
        };
        let taken = take(file, inode.0.into(), mode);
        if !matches!(taken, Ok(true)) {
            held.remove(&inode);
        }
        taken
    }

    pub(super) fn unlock(&self, inode: InodeNumber) {
        let mut held = self.held();
        let Some(own) = held.get_mut(&inode) else {
            return;
        };
        // All of them are of one mode.
        own.pop();
        if own.is_empty() {
            held.remove(&inode);
            if let Some(file) = &self.file {
                let _ = range_lock::release(file, inode.0.into(), 1);
            }
        }
    }

    /// Whether any process waits for the image lock.
    pub(super) fn anybody_waits(&self) -> bool {
        self.is_held(CALLERS) || self.is_held(RETURNING)
    }

    /// Whether a new waiter exists, which has not had the image yet.
    pub(super) fn callers_wait(&self) -> bool {
        self.is_held(CALLERS)
    }

    fn is_held(&self, byte: u64) -> bool {
        let Some(file) = &self.file else {
            return false;
        };
        range_lock::is_held_elsewhere(file, byte, 1).unwrap_or(false)
    }

    fn held(&self) -> MutexGuard<'_, HashMap<InodeNumber, Vec<LockMode>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A locked byte. Released on drop.
#[derive(Debug)]
struct Held {
    file: File,
    byte: u64,
}

impl Drop for Held {
    /// Not left to the close: a process just forked by another thread has the file open for a
    /// moment.
    fn drop(&mut self) {
        let _ = range_lock::release(&self.file, self.byte, 1);
    }
}

/// The closed turnstile. Opened on drop.
#[derive(Debug)]
pub(super) struct Door {
    _held: Option<Held>,
}

impl Door {
    /// Goes through; `None` while it is shut.
    pub(super) fn take(own: &Folder, purpose: Purpose) -> Result<Option<Self>> {
        let Some(file) = open(own, purpose)? else {
            return Ok(Some(Self { _held: None }));
        };
        Ok(if take(&file, DOOR, LockMode::Alone)? {
            Some(Self {
                _held: Some(Held { file, byte: DOOR }),
            })
        } else {
            None
        })
    }
}

/// Shows other processes that this one waits for the image lock, until dropped.
#[derive(Debug)]
pub(super) struct Waits {
    _held: Held,
}

impl Waits {
    /// A new waiter. `None` if it cannot be shown.
    pub(super) fn as_caller(own: &Folder) -> Option<Self> {
        Self::show(own, CALLERS)
    }

    /// A waiter that has released the image and needs it again.
    pub(super) fn as_returning(own: &Folder) -> Option<Self> {
        Self::show(own, RETURNING)
    }

    fn show(own: &Folder, byte: u64) -> Option<Self> {
        let file = open(own, Purpose::Look).ok()??;
        range_lock::share(&file, byte, 1).ok()?;
        Some(Self {
            _held: Held { file, byte },
        })
    }
}

/// Opens the file of the locks; `None` if it cannot be made. Then this process never releases an
/// image early, and no other process can have it open.
fn open(own: &Folder, purpose: Purpose) -> Result<Option<File>> {
    let file = match own.file(NAME, OFlags::RDWR | OFlags::CREATE) {
        Ok(file) => file,
        Err(error) => match error.kind() {
            ErrorKind::ReadOnly | ErrorKind::NoSpace | ErrorKind::QuotaExceeded => return Ok(None),
            ErrorKind::PermissionDenied if purpose == Purpose::Look => return Ok(None),
            _ => return Err(error),
        },
    };
    let are_there = range_lock::is_held_elsewhere(&file, DOOR, 1).is_ok();
    Ok(are_there.then_some(file))
}

fn take(file: &File, byte: u64, mode: LockMode) -> Result<bool> {
    let taken = match mode {
        LockMode::Shared => range_lock::share(file, byte, 1),
        LockMode::Alone => range_lock::exclude(file, byte, 1),
    };
    match taken {
        Ok(()) => Ok(true),
        Err(error) if is_held(&error) => Ok(false),
        Err(error) => Err(Error::from(error).during("lock")),
    }
}

fn is_held(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::AGAIN | Errno::ACCESS))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: InodeNumber = InodeNumber(12);

    fn both(own: &Folder) -> [VolumeLocks; 2] {
        [(); 2].map(|()| VolumeLocks::new(Some(own), Purpose::Change).unwrap())
    }

    #[test]
    fn volumes_are_locked_for_threads_and_for_processes() {
        let place = tempfile::tempdir().unwrap();
        let own = Folder::open(place.path()).unwrap();
        let [one, other] = both(&own);
        let lock = |locks: &VolumeLocks, mode| locks.try_lock(ONE, mode).unwrap();
        assert!(lock(&one, LockMode::Shared) && lock(&one, LockMode::Shared));
        assert!(lock(&other, LockMode::Shared));
        assert!(!lock(&one, LockMode::Alone) && !lock(&other, LockMode::Alone));
        one.unlock(ONE);
        other.unlock(ONE);
        assert!(!lock(&other, LockMode::Alone), "one of two is left");
        one.unlock(ONE);
        assert!(lock(&other, LockMode::Alone));
        assert!(!lock(&one, LockMode::Shared) && !lock(&other, LockMode::Shared));
        assert!(one.try_lock(InodeNumber(13), LockMode::Alone).unwrap());
        drop(other);
        assert!(lock(&one, LockMode::Alone));
    }

    #[test]
    fn who_waits_is_seen_until_it_does_not_wait_any_more() {
        let place = tempfile::tempdir().unwrap();
        let own = Folder::open(place.path()).unwrap();
        let [locks, _] = both(&own);
        assert!(!locks.anybody_waits());
        let returning = Waits::as_returning(&own).unwrap();
        assert!(locks.anybody_waits() && !locks.callers_wait());
        let callers = [(); 2].map(|()| Waits::as_caller(&own).unwrap());
        drop(returning);
        let [first, second] = callers;
        drop(first);
        assert!(locks.callers_wait());
        drop(second);
        assert!(!locks.anybody_waits());
    }

    #[test]
    fn door_lets_one_through_at_a_time() {
        let place = tempfile::tempdir().unwrap();
        let own = Folder::open(place.path()).unwrap();
        let door = Door::take(&own, Purpose::Change).unwrap().unwrap();
        assert!(Door::take(&own, Purpose::Look).unwrap().is_none());
        drop(door);
        assert!(Door::take(&own, Purpose::Look).unwrap().is_some());
    }
}

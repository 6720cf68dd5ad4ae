//! Locks of volumes that are not files of the host, visible to other processes while an image is
//! closed.
//!
//! In a file of the state directory one byte stands for each object. A process that holds an object
//! or waits for one locks its byte (`F_OFD_SETLK`); the kernel releases the lock when the process
//! ends:
//!
//! - an inode number, the number of a partition, or a hash of the name of an image: the volume,
//!   shared by readers;
//! - the turnstile in front of the image lock (`image_lock.rs`);
//! - new waiters for the image lock, and resuming waiters, which have released it and need it
//!   again.
//!
//! If such locks are not supported, no process sees waiters, and none releases the image early.

use std::collections::HashMap;
use std::fs::File;

use extant_hostfs::Directory;
use extant_space::{ErrorKind, Result};
use extant_sys::range_lock;
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::OFlags;

use crate::fair_lock::{HeldLock, LockMode, Lockable};
use crate::storage::Purpose;

const NAME: &str = "locks";
/// Past the numbers of all inodes.
const TURNSTILE: u64 = 1 << 40;
const NEW_WAITERS: u64 = TURNSTILE + 1;
const RETURNING_WAITERS: u64 = TURNSTILE + 2;

/// The locks of volumes: between the threads of this process by a table, between processes by
/// bytes.
#[derive(Debug)]
pub(in crate::storage) struct VolumeLocks {
    /// `None`: invisible to other processes.
    file: Option<File>,
    held: Mutex<HashMap<u64, VolumeHolders>>,
}

/// The threads of this process that hold a volume.
#[derive(Debug)]
struct VolumeHolders {
    mode: LockMode,
    count: usize,
    /// The lock between processes.
    _held: Option<HeldLock>,
}

impl VolumeLocks {
    pub(in crate::storage) fn new(own: Option<&Directory>, purpose: Purpose) -> Result<Self> {
        let file = own.map(|own| open(own, purpose)).transpose()?;
        Ok(Self {
            file: file.flatten(),
            held: Mutex::default(),
        })
    }

    /// Takes a lock; false if another process holds a conflicting one.
    pub(in crate::storage) fn try_lock(&self, object: u64, mode: LockMode) -> Result<bool> {
        let mut held = self.held();
        if let Some(holders) = held.get_mut(&object) {
            let is_free = (holders.mode, mode) == (LockMode::Shared, LockMode::Shared);
            holders.count += usize::from(is_free);
            return Ok(is_free);
        }
        let between_processes = match &self.file {
            None => None,
            Some(file) => {
                let file = file.try_clone()?;
                match Lockable::byte(file, object).try_lock(mode)? {
                    None => return Ok(false),
                    locked => locked,
                }
            }
        };
        let holders = VolumeHolders {
            mode,
            count: 1,
            _held: between_processes,
        };
        held.insert(object, holders);
        Ok(true)
    }

    pub(in crate::storage) fn unlock(&self, object: u64) {
        let mut held = self.held();
        let Some(holders) = held.get_mut(&object) else {
            return;
        };
        holders.count -= 1;
        if holders.count == 0 {
            held.remove(&object);
        }
    }

    /// Whether any process waits for the image lock.
    pub(in crate::storage) fn has_waiters(&self) -> bool {
        self.is_held(NEW_WAITERS) || self.is_held(RETURNING_WAITERS)
    }

    /// Whether a new waiter exists, which has not had the image yet.
    pub(in crate::storage) fn has_new_waiters(&self) -> bool {
        self.is_held(NEW_WAITERS)
    }

    fn is_held(&self, byte: u64) -> bool {
        let Some(file) = &self.file else {
            return false;
        };
        range_lock::is_held_elsewhere(file, byte, 1).unwrap_or(false)
    }

    fn held(&self) -> MutexGuard<'_, HashMap<u64, VolumeHolders>> {
        self.held.lock()
    }
}

/// The turnstile in front of the image lock; `None` if it cannot be made.
pub(in crate::storage) fn turnstile(own: &Directory, purpose: Purpose) -> Result<Option<Lockable>> {
    let file = open(own, purpose)?;
    Ok(file.map(|file| Lockable::byte(file, TURNSTILE)))
}

/// Shows other processes that this one waits for the image lock, until dropped.
#[derive(Debug)]
pub(in crate::storage) struct VisibleWaiter {
    _held: HeldLock,
}

impl VisibleWaiter {
    /// A new waiter. `None` if it cannot be shown.
    pub(in crate::storage) fn new_one(own: &Directory) -> Option<Self> {
        Self::show(own, NEW_WAITERS)
    }

    /// A waiter that has released the image and needs it again.
    pub(in crate::storage) fn returning(own: &Directory) -> Option<Self> {
        Self::show(own, RETURNING_WAITERS)
    }

    fn show(own: &Directory, byte: u64) -> Option<Self> {
        let file = open(own, Purpose::Look).ok()??;
        let held = Lockable::byte(file, byte).try_lock(LockMode::Shared);
        Some(Self { _held: held.ok()?? })
    }
}

/// Opens the file of the locks; `None` if it cannot be made. Then this process never releases an
/// image early, and no other process can open it.
fn open(own: &Directory, purpose: Purpose) -> Result<Option<File>> {
    let file = match own.file(NAME, OFlags::RDWR | OFlags::CREATE) {
        Ok(file) => file,
        Err(error) => match error.kind() {
            ErrorKind::ReadOnly | ErrorKind::NoSpace | ErrorKind::QuotaExceeded => return Ok(None),
            ErrorKind::PermissionDenied if purpose == Purpose::Look => return Ok(None),
            _ => return Err(error),
        },
    };
    let are_there = range_lock::is_held_elsewhere(&file, TURNSTILE, 1).is_ok();
    Ok(are_there.then_some(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: u64 = 12;

    fn both(own: &Directory) -> [VolumeLocks; 2] {
        [(); 2].map(|()| VolumeLocks::new(Some(own), Purpose::Change).unwrap())
    }

    #[test]
    fn volumes_are_locked_for_threads_and_for_processes() {
        let place = tempfile::tempdir().unwrap();
        let own = Directory::open(place.path()).unwrap();
        let [one, other] = both(&own);
        let lock = |locks: &VolumeLocks, mode| locks.try_lock(ONE, mode).unwrap();
        assert!(lock(&one, LockMode::Shared) && lock(&one, LockMode::Shared));
        assert!(lock(&other, LockMode::Shared));
        assert!(!lock(&one, LockMode::Exclusive) && !lock(&other, LockMode::Exclusive));
        one.unlock(ONE);
        other.unlock(ONE);
        assert!(!lock(&other, LockMode::Exclusive), "one of two is left");
        one.unlock(ONE);
        assert!(lock(&other, LockMode::Exclusive));
        assert!(!lock(&one, LockMode::Shared) && !lock(&other, LockMode::Shared));
        assert!(one.try_lock(13, LockMode::Exclusive).unwrap());
        drop(other);
        assert!(lock(&one, LockMode::Exclusive));
    }

    #[test]
    fn waiter_is_visible_until_it_stops_waiting() {
        let place = tempfile::tempdir().unwrap();
        let own = Directory::open(place.path()).unwrap();
        let [locks, _] = both(&own);
        assert!(!locks.has_waiters());
        let returning = VisibleWaiter::returning(&own).unwrap();
        assert!(locks.has_waiters() && !locks.has_new_waiters());
        let callers = [(); 2].map(|()| VisibleWaiter::new_one(&own).unwrap());
        drop(returning);
        let [first, second] = callers;
        drop(first);
        assert!(locks.has_new_waiters());
        drop(second);
        assert!(!locks.has_waiters());
    }
}

//! The image lock: which process of the pool has the image open.
//!
//! It is a flock on a file of the state directory, shared by readers. Waiters do not access the
//! image, so the owner has it exclusively. A process that changes the image writes its process id
//! into the file.
//!
//! Every waiter closes the turnstile at once (`fair_lock.rs`): otherwise readers could overlap
//! without end. The turnstile is a byte of the file of locks (`volume_locks.rs`).

use std::os::unix::fs::FileExt;
use std::time::Duration;

use extant_hostfs::Directory;
use extant_space::{ErrorKind, Result};
use rustix::fs::OFlags;

use crate::fair_lock::{FairLock, FairWaiter, HeldLock, LockMode, Lockable};
use crate::storage::Purpose;
use crate::storage::volume_locks::{VisibleWaiter, turnstile};

const NAME: &str = "turn";
/// A number and the end of its line.
const BYTES: usize = 11;

/// The held lock. Released on drop.
#[derive(Debug)]
pub(super) struct ImageLock {
    /// `None`: a reader's, before any process has changed anything.
    _held: Option<HeldLock>,
}

impl ImageLock {
    /// The lock of the state directory `own`; `None` for a reader if no process has ever changed
    /// anything.
    fn open(own: &Directory, purpose: Purpose) -> Result<Option<FairLock>> {
        let access = match purpose {
            Purpose::Look => OFlags::RDONLY,
            Purpose::Change => OFlags::RDWR | OFlags::CREATE,
        };
        let file = match own.file(NAME, access) {
            Err(error) if error.kind() == ErrorKind::NotFound && purpose == Purpose::Look => {
                return Ok(None);
            }
            opened => opened?,
        };
        Ok(Some(FairLock {
            lock: Lockable::file(file),
            turnstile: turnstile(own, purpose)?,
            starved_after: Duration::ZERO,
        }))
    }

    /// One step of a waiter; `None` while others hold the lock.
    pub(super) fn try_acquire(
        waiter: &mut FairWaiter,
        own: &Directory,
        purpose: Purpose,
    ) -> Result<Option<Self>> {
        let Some(fair) = Self::open(own, purpose)? else {
            return Ok(Some(Self { _held: None }));
        };
        let mode = match purpose {
            Purpose::Look => LockMode::Shared,
            Purpose::Change => LockMode::Exclusive,
        };
        let held = waiter
            .try_acquire(&fair, mode)
            .map_err(|error| error.at(own.path().join(NAME)))?;
        let Some(held) = held else {
            return Ok(None);
        };
        if purpose == Purpose::Change {
            let pid = std::process::id();
            // It is for messages only.
            let _ = held
                .as_file()
                .write_all_at(format!("{pid:>10}\n").as_bytes(), 0);
        }
        Ok(Some(Self { _held: Some(held) }))
    }

    /// The process that had the lock last to change something.
    pub(super) fn holder(own: &Directory) -> Option<u32> {
        let bytes = own.read(NAME, BYTES as u64).ok()??;
        std::str::from_utf8(&bytes).ok()?.trim().parse().ok()
    }
}

/// A waiter for the image lock, visible to others while it waits. If it has closed the turnstile,
/// it is the next owner.
#[derive(Debug, Default)]
pub(crate) struct ImageWaiter {
    waiter: FairWaiter,
    visible: Option<VisibleWaiter>,
}

impl ImageWaiter {
    /// Acquires the lock; `None` while another process owns it; then the caller calls again soon.
    pub(super) fn take(&mut self, own: &Directory, purpose: Purpose) -> Result<Option<ImageLock>> {
        let lock = ImageLock::try_acquire(&mut self.waiter, own, purpose)?;
        if lock.is_some() {
            *self = Self::default()
        } else {
            self.show(own)
        }
        Ok(lock)
    }

    /// Makes the waiter visible to others.
    pub(super) fn show(&mut self, own: &Directory) {
        self.visible = self.visible.take().or_else(|| VisibleWaiter::new_one(own));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_is_exclusive_for_changes_and_shared_by_readers() {
        let place = tempfile::tempdir().unwrap();
        let own = Directory::open(place.path()).unwrap();
        let take = |purpose| ImageWaiter::default().take(&own, purpose).unwrap();
        let before_all = take(Purpose::Look).expect("no process has changed anything");
        assert_eq!(ImageLock::holder(&own), None);
        let changing = take(Purpose::Change).expect("it is free");
        assert_eq!(ImageLock::holder(&own), Some(std::process::id()));
        assert!(take(Purpose::Look).is_none());
        assert!(take(Purpose::Change).is_none());
        drop((before_all, changing));
        let readers = [take(Purpose::Look), take(Purpose::Look)];
        assert!(readers.iter().all(Option::is_some));
        assert!(take(Purpose::Change).is_none());
        drop(readers);
        assert!(take(Purpose::Change).is_some());
    }

    #[test]
    fn waiter_for_a_change_is_the_next_owner_whatever_readers_come() {
        let place = tempfile::tempdir().unwrap();
        let own = Directory::open(place.path()).unwrap();
        let take = |waiter: &mut ImageWaiter, purpose| waiter.take(&own, purpose).unwrap();
        drop(take(&mut ImageWaiter::default(), Purpose::Change));
        let looking = take(&mut ImageWaiter::default(), Purpose::Look).unwrap();
        let mut waiting = ImageWaiter::default();
        assert!(take(&mut waiting, Purpose::Change).is_none());
        let mut late = ImageWaiter::default();
        assert!(take(&mut late, Purpose::Look).is_none());
        drop(looking);
        assert!(take(&mut late, Purpose::Look).is_none());
        let changing = take(&mut waiting, Purpose::Change).unwrap();
        drop(changing);
        assert!(take(&mut late, Purpose::Look).is_some());
    }
}

//! The image lock: which process of the pool has the image open.
//!
//! It is a flock on a file of the state directory, shared by readers. A waiter does not touch the
//! image, so the owner is alone with it. A process that changes the image writes its process id
//! into the file.
//!
//! Acquisition passes the turnstile (`locks.rs`), which a waiting process keeps closed: otherwise
//! readers could overlap for ever.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use extant_space::{Error, ErrorKind, Result};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use super::locks::{Door, Waits};
use crate::folder::Folder;
use crate::storage::Purpose;

const NAME: &str = "turn";
/// A number and the end of its line.
const BYTES: usize = 11;

/// The lock. Released on drop.
#[derive(Debug)]
pub(super) struct Turn {
    file: Option<File>,
}

impl Turn {
    /// Acquires the image lock for the owner of the turnstile; `None` while others hold it.
    pub(super) fn take_through(_: &Door, own: &Folder, purpose: Purpose) -> Result<Option<Self>> {
        let (access, operation) = match purpose {
            Purpose::Look => (OFlags::RDONLY, FlockOperation::NonBlockingLockShared),
            Purpose::Change => (
                OFlags::RDWR | OFlags::CREATE,
                FlockOperation::NonBlockingLockExclusive,
            ),
        };
        let file = match own.file(NAME, access) {
            // No process has ever changed anything.
            Err(error) if error.kind() == ErrorKind::NotFound && purpose == Purpose::Look => {
                return Ok(Some(Self { file: None }));
            }
            opened => opened?,
        };
        match flock(&file, operation) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK | Errno::INTR) => return Ok(None),
            Err(errno) => {
                return Err(Error::from(io::Error::from(errno))
                    .at(own.path().join(NAME))
                    .during("lock"));
            }
        }
        if purpose == Purpose::Change {
            let pid = std::process::id();
            // It is for messages only.
            let _ = file.write_all_at(format!("{pid:>10}\n").as_bytes(), 0);
        }
        Ok(Some(Self { file: Some(file) }))
    }

    /// The process that had the turn last to change something.
    pub(super) fn holder(own: &Folder) -> Option<u32> {
        let bytes = own.read(NAME, BYTES as u64).ok()??;
        std::str::from_utf8(&bytes).ok()?.trim().parse().ok()
    }
}

/// A waiter for the image lock. With the turnstile closed it is the next owner. It is visible to
/// others while it waits.
#[derive(Debug, Default)]
pub(crate) struct Comer {
    door: Option<Door>,
    waits: Option<Waits>,
}

impl Comer {
    /// Takes the turn; `None` while others have it, and then it is to be asked for again soon.
    pub(super) fn take(&mut self, own: &Folder, purpose: Purpose) -> Result<Option<Turn>> {
        if self.door.is_none() {
            self.door = Door::take(own, purpose)?;
        }
        let turn = match &self.door {
            Some(door) => Turn::take_through(door, own, purpose)?,
            None => None,
        };
        if turn.is_some() {
            *self = Self::default()
        } else {
            self.show(own)
        }
        Ok(turn)
    }

    /// Makes the waiter visible to others.
    pub(super) fn show(&mut self, own: &Folder) {
        self.waits = self.waits.take().or_else(|| Waits::as_caller(own));
    }
}

impl Drop for Turn {
    /// Not left to the close: a process just forked by another thread has the file open for a
    /// moment.
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            let _ = flock(file, FlockOperation::Unlock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_changes_has_the_turn_alone_and_lookers_share_it() {
        let place = tempfile::tempdir().unwrap();
        let own = Folder::open(place.path()).unwrap();
        let take = |purpose| Comer::default().take(&own, purpose).unwrap();
        let before_all = take(Purpose::Look).expect("no process has changed anything");
        assert_eq!(Turn::holder(&own), None);
        let changing = take(Purpose::Change).expect("it is free");
        assert_eq!(Turn::holder(&own), Some(std::process::id()));
        assert!(take(Purpose::Look).is_none());
        assert!(take(Purpose::Change).is_none());
        drop((before_all, changing));
        let lookers = [take(Purpose::Look), take(Purpose::Look)];
        assert!(lookers.iter().all(Option::is_some));
        assert!(take(Purpose::Change).is_none());
        drop(lookers);
        assert!(take(Purpose::Change).is_some());
    }

    #[test]
    fn who_waits_to_change_something_is_the_next_whoever_comes_to_look() {
        let place = tempfile::tempdir().unwrap();
        let own = Folder::open(place.path()).unwrap();
        let take = |comer: &mut Comer, purpose| comer.take(&own, purpose).unwrap();
        drop(take(&mut Comer::default(), Purpose::Change));
        let looking = take(&mut Comer::default(), Purpose::Look).unwrap();
        let mut waiting = Comer::default();
        assert!(take(&mut waiting, Purpose::Change).is_none());
        let mut late = Comer::default();
        assert!(take(&mut late, Purpose::Look).is_none());
        drop(looking);
        assert!(take(&mut late, Purpose::Look).is_none());
        let changing = take(&mut waiting, Purpose::Change).unwrap();
        drop(changing);
        assert!(take(&mut late, Purpose::Look).is_some());
    }
}

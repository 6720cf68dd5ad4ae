//! Whose turn it is to have the image open, among the processes of one pool.
//!
//! The lock (flock) on a file of the pool's own folder: shared by those who look. Who waits for it leaves the image alone, so that
//! whoever has it meets nobody there. Who changes something writes the number of its process into the file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use extant_space::{Error, ErrorKind, Result};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use crate::folder::Folder;
use crate::storage::Purpose;

const NAME: &str = "turn";
/// A number and the end of its line.
const BYTES: usize = 11;

/// The lock. Given back when dropped.
#[derive(Debug)]
pub(super) struct Turn {
    file: Option<File>,
}

impl Turn {
    /// Takes the turn; `None` while others have it.
    pub(super) fn take(own: &Folder, purpose: Purpose) -> Result<Option<Self>> {
        let (access, operation) = match purpose {
            Purpose::Look => (OFlags::RDONLY, FlockOperation::NonBlockingLockShared),
            Purpose::Change => (
                OFlags::RDWR | OFlags::CREATE,
                FlockOperation::NonBlockingLockExclusive,
            ),
        };
        let file = match own.file(NAME, access) {
            // Nobody has ever changed anything.
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

impl Drop for Turn {
    /// Not left to the close: a process just forked by another thread has the file open for a moment.
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
        let take = |purpose| Turn::take(&own, purpose).unwrap();
        let before_all = take(Purpose::Look).expect("nobody has changed anything");
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
}

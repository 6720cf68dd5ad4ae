//! Locks of volumes, and whether other processes use them.

use std::time::Duration;

use extant_space::{Error, ErrorKind, Remedy, Result};
use extant_sys::wait::poll_until;

use crate::fair_lock::LockMode;
use crate::storage::VolumeFile;

/// How long a volume may seem locked, or open, after its last job has ended.
const LAST_WRITES_TIMEOUT: Duration = Duration::from_secs(1);

/// Poll interval of a lock, and of the processes that have a volume open.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(10);
const HOLDERS_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A lock on a volume, released on drop.
#[must_use]
pub(crate) struct VolumeLock<'a> {
    file: &'a dyn VolumeFile,
}

impl Drop for VolumeLock<'_> {
    /// Not left to the close: a process that syncs the file, or was just forked, may have it open
    /// for longer.
    fn drop(&mut self) {
        self.file.unlock();
    }
}

/// Keeps other jobs off the volume.
pub(crate) fn lock_alone(file: &dyn VolumeFile) -> Result<VolumeLock<'_>> {
    lock(file, LockMode::Exclusive)
}

/// Keeps other jobs from changing the volume.
pub(crate) fn lock_for_reading(file: &dyn VolumeFile) -> Result<VolumeLock<'_>> {
    lock(file, LockMode::Shared)
}

/// A process that was killed keeps its lock for the moment that its last writes take.
fn lock(file: &dyn VolumeFile, mode: LockMode) -> Result<VolumeLock<'_>> {
    let locked = poll_until(LAST_WRITES_TIMEOUT, LOCK_POLL_INTERVAL, || {
        match file.try_lock(mode) {
            Ok(false) => None,
            answer => Some(answer),
        }
    });
    match locked {
        Some(locked) => locked.map(|_| VolumeLock { file }),
        None => {
            let detail = match file.holders() {
                Some(who) => format!("another process works on the volume: {who}"),
                None => "another process works on the volume".to_owned(),
            };
            Err(Error::new(ErrorKind::InUse).at(file.path()).detail(detail))
        }
    }
}

/// Refuses to destroy data that is in use.
pub(crate) fn check_not_open(file: &dyn VolumeFile) -> Result<()> {
    let mut holders = None;
    // A process just forked holds its parent's open files until it calls `exec`.
    let unused = poll_until(LAST_WRITES_TIMEOUT, HOLDERS_POLL_INTERVAL, || {
        holders = file.holders();
        holders.is_none().then_some(())
    });
    match (unused, holders) {
        (None, Some(who)) => Err(Error::new(ErrorKind::InUse)
            .at(file.path())
            .detail(format!("the volume is open elsewhere: {who}"))
            .advice("stop it")
            .remedy(Remedy::IgnoreUsers)),
        _ => Ok(()),
    }
}

//! QEMU's image locks.
//!
//! One byte of the file stands for each permission. A user holds shared locks from byte 100 on for
//! its permissions, and from byte 200 on for the permissions that it denies others; then it checks
//! that no other process holds the opposite lock. The locks belong to the open file and end with
//! it.

use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::time::Duration;

use extant_space::{Error, ErrorKind, Result};
use extant_sys::range_lock;
use extant_sys::wait::poll_until;

/// First byte of the permissions in use.
const DONE: u64 = 100;
/// First byte of the permissions denied to others.
const REFUSED: u64 = 200;

/// Timeout for conflicting locks: a process that was just started holds the files of its parent for
/// a moment.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);

const READ: u64 = 0;
const WRITE: u64 = 1;
const RESIZE: u64 = 3;

/// The access for which an image is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockAccess {
    /// Reading; others may read as well.
    Read,
    /// Everything.
    Write,
}

/// Locks the image in `file` until the file is closed.
///
/// # Errors
/// `InUse` if a conflicting user has it open. On file systems without such locks nothing is
/// excluded.
pub fn lock(file: impl AsFd, wanted: LockAccess) -> Result<()> {
    let mut refused = Ok(());
    let locked = poll_until(LOCK_TIMEOUT, LOCK_TIMEOUT / 20, || {
        match try_lock(&file, wanted) {
            Err(error) if error.kind() == ErrorKind::InUse => {
                refused = Err(error);
                None
            }
            answer => Some(answer),
        }
    });
    let locked = locked.unwrap_or(refused);
    locked.map_err(|error| name_holders(error, &file))
}

/// Adds the known users to the error.
fn name_holders(error: Error, file: &impl AsFd) -> Error {
    if error.kind() != ErrorKind::InUse {
        return error;
    }
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    match extant_hostfs::describe_holders(Path::new(&path)) {
        Some(who) => error.detail(format!("the image is in use: {who}")),
        None => error,
    }
}

/// Releases the locks before the close, because a process just forked by another thread has the
/// file open for a moment.
pub fn unlock(file: impl AsFd) {
    for first in [DONE, REFUSED] {
        // The close does the same, a moment later.
        let _ = range_lock::release(&file, first, RESIZE + 1);
    }
}

fn try_lock(file: &impl AsFd, wanted: LockAccess) -> Result<()> {
    let done: &[u64] = match wanted {
        LockAccess::Read => &[READ],
        LockAccess::Write => &[READ, WRITE, RESIZE],
    };
    let refused = [WRITE, RESIZE];
    let held = done.iter().map(|what| DONE + what);
    let held: Vec<_> = held.chain(refused.map(|what| REFUSED + what)).collect();
    for byte in &held {
        match range_lock::share(file, *byte, 1) {
            Err(error) if is_unknown(&error) => return Ok(()),
            // Shared locks exclude only exclusive ones, which QEMU takes for a moment when it makes
            // an image.
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                return Err(give_up(file, &held, "a program that makes it"));
            }
            other => other?,
        }
    }
    let against = done
        .iter()
        .map(|what| (REFUSED + what, "a program that does not share it"));
    let against = against.chain(refused.map(|what| (DONE + what, "a program that writes to it")));
    for (byte, who) in against {
        if range_lock::is_held_elsewhere(file, byte, 1)? {
            return Err(give_up(file, &held, who));
        }
    }
    Ok(())
}

fn give_up(file: &impl AsFd, held: &[u64], who: &str) -> Error {
    for byte in held {
        // The descriptor is closed soon, which does the same.
        let _ = range_lock::release(file, *byte, 1);
    }
    Error::new(ErrorKind::InUse)
        .detail(format!("the image is in use: {who} has it open"))
        .advice("stop the virtual machine or the program that uses it")
}

fn is_unknown(error: &std::io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINVAL | libc::ENOSYS | libc::ENOLCK | libc::EOPNOTSUPP)
    )
}

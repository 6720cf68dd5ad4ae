//! Single calls that the crates below do not offer.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Waits for the write-out of the `len` bytes from `offset`, or only starts it.
pub(crate) fn sync_file_range(
    file: &File,
    offset: u64,
    len: u64,
    wait: WriteOut,
) -> io::Result<()> {
    let flags = match wait {
        WriteOut::Start => libc::SYNC_FILE_RANGE_WRITE,
        WriteOut::Finish => {
            libc::SYNC_FILE_RANGE_WAIT_BEFORE
                | libc::SYNC_FILE_RANGE_WRITE
                | libc::SYNC_FILE_RANGE_WAIT_AFTER
        }
    };
    let offset = i64::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    let len = i64::try_from(len).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    // SAFETY: a system call on a descriptor that lives for its duration; no memory is passed.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), offset, len, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What [`sync_file_range`] waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteOut {
    /// Nothing.
    Start,
    /// Everything in the range is on the device.
    Finish,
}

/// glibc's `posix_fallocate(3)`, which writes where the file system cannot allocate.
pub(crate) fn posix_fallocate(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let offset = i64::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    let len = i64::try_from(len).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    // SAFETY: a call on a descriptor that lives for its duration; no memory is passed.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), offset, len) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

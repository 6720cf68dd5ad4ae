//! Single calls that the crates below do not offer.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

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

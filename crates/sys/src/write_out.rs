//! Write-out of cached data to the device: `sync_file_range(2)`.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use extant_space::ByteRange;

/// Completion that [`write_out`] waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOut {
    /// Nothing.
    Start,
    /// Everything in the range is on the device.
    Finish,
}

/// Starts the write-out of cached data in `range`. Does nothing where there is no device to write
/// to (tmpfs), and where the file system has no such call (some FUSE): a later sync does it there.
pub fn write_out(file: &File, range: ByteRange, wait: WriteOut) -> io::Result<()> {
    let flags = match wait {
        WriteOut::Start => libc::SYNC_FILE_RANGE_WRITE,
        WriteOut::Finish => {
            libc::SYNC_FILE_RANGE_WAIT_BEFORE
                | libc::SYNC_FILE_RANGE_WRITE
                | libc::SYNC_FILE_RANGE_WAIT_AFTER
        }
    };
    let too_large = |_| io::Error::from_raw_os_error(libc::EFBIG);
    let offset = i64::try_from(range.start()).map_err(too_large)?;
    let len = i64::try_from(range.len()).map_err(too_large)?;
    // SAFETY: a system call on a descriptor that lives for its duration; no memory is passed.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), offset, len, flags) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            error if has_no_write_out(&error) => Ok(()),
            error => Err(error),
        },
    }
}

fn has_no_write_out(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ESPIPE | libc::EINVAL | libc::ENOSYS)
    )
}

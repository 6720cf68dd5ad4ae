//! Inherited descriptors, identified by number.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// A duplicate of descriptor `number` with `FD_CLOEXEC`. The original remains open.
///
/// # Errors
/// `EBADF` when the descriptor is not open.
pub fn copy(number: RawFd) -> io::Result<OwnedFd> {
    /// Not one of the standard streams.
    const DESCRIPTOR_MIN: libc::c_int = 3;
    // SAFETY: the kernel validates the number, and the open file is not changed.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, DESCRIPTOR_MIN) };
    if copy == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just created it, and no other code owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn copy_leads_to_the_same_and_outlives_the_number() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut copied = File::from(copy(writer.as_raw_fd()).unwrap());
        drop(writer);
        copied.write_all(b"x").unwrap();
        drop(copied);
        let mut read = Vec::new();
        reader.read_to_end(&mut read).unwrap();
        assert_eq!(read, b"x");
    }

    #[test]
    fn number_that_nothing_is_open_under_is_an_error() {
        for number in [-1, RawFd::MAX] {
            let error = copy(number).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EBADF));
        }
    }
}

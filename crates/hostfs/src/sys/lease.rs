//! `F_SETLEASE`: being told before anybody else gets at a file.
//!
//! A write lease is granted only while nobody else has the file open. Whoever
//! opens it later waits in the kernel (up to `/proc/sys/fs/lease-break-time`,
//! 45 s) until the lease is given back. The holder is told by a signal; a
//! library cannot claim one, so it is redirected to `SIGURG`, which is ignored by
//! default, and the lease is asked instead: `F_GETLEASE` answers with what a
//! waiting opener wants it to become.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

// Not in the libc crate (linux/fcntl.h).
const F_SETSIG: libc::c_int = 10;

fn fcntl(file: &File, command: libc::c_int, argument: libc::c_int) -> io::Result<libc::c_int> {
    // SAFETY: all commands used here take an integer; the descriptor lives for the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, argument) } {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

/// A write lease, given back when dropped.
pub(crate) struct WriteLease<'f> {
    file: &'f File,
}

impl<'f> WriteLease<'f> {
    /// Takes the lease. `EAGAIN`: somebody has the file open. `EINVAL`: the file
    /// system has no leases. `EACCES`: the file is another user's.
    pub(crate) fn take(file: &'f File) -> io::Result<Self> {
        fcntl(file, F_SETSIG, libc::SIGURG)?;
        fcntl(file, libc::F_SETLEASE, libc::F_WRLCK)?;
        Ok(Self { file })
    }

    /// Somebody waits to open the file.
    pub(crate) fn is_contended(&self) -> bool {
        // A lease that can no longer be read was broken by force.
        fcntl(self.file, libc::F_GETLEASE, 0).is_ok_and(|kind| kind != libc::F_WRLCK)
    }
}

impl Drop for WriteLease<'_> {
    fn drop(&mut self) {
        // Fails only when the kernel has taken the lease away already.
        let _ = fcntl(self.file, libc::F_SETLEASE, libc::F_UNLCK);
    }
}

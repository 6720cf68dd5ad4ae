//! `F_SETLEASE`: notification before another process opens a file.
//!
//! A write lease is granted only while no other process has the file open. A later open waits in
//! the kernel (up to `/proc/sys/fs/lease-break-time`, 45 s) until the lease is released. The kernel
//! notifies the holder by a signal; a library cannot claim one, so it is redirected to `SIGURG`,
//! which is ignored by default, and the lease is polled: `F_GETLEASE` returns the type that a
//! waiting opener requests.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

// Not in the libc crate (linux/fcntl.h).
const F_SETSIG: libc::c_int = 10;
const F_GETSIG: libc::c_int = 11;
const F_SETOWN_EX: libc::c_int = 15;
const F_GETOWN_EX: libc::c_int = 16;

/// `struct f_owner_ex` (linux/fcntl.h): the thread that receives the signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
struct Owner {
    kind: libc::c_int,
    pid: libc::pid_t,
}

fn fcntl(file: &File, command: libc::c_int, argument: libc::c_int) -> io::Result<libc::c_int> {
    // SAFETY: all commands used here take an integer; the descriptor lives for the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, argument) } {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

fn owner(file: &File, command: libc::c_int, owner: &mut Owner) -> io::Result<()> {
    // SAFETY: both commands used here take this structure, which lives for the call, as does the
    // descriptor.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, std::ptr::from_mut(owner)) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// A write lease, released on drop. The caller may have a lease of its own on the open file: its
/// lease, signal and owner are restored.
pub(crate) struct WriteLease<'f> {
    file: &'f File,
    lease: libc::c_int,
    signal: libc::c_int,
    owner: Owner,
}

impl<'f> WriteLease<'f> {
    /// Takes the lease. `EAGAIN`: another process has the file open. `EINVAL`: the file
    /// system has no leases. `EACCES`: the file is another user's.
    pub(crate) fn take(file: &'f File) -> io::Result<Self> {
        let mut before = Owner::default();
        owner(file, F_GETOWN_EX, &mut before)?;
        let taken = Self {
            file,
            lease: fcntl(file, libc::F_GETLEASE, 0)?,
            signal: fcntl(file, F_GETSIG, 0)?,
            owner: before,
        };
        // From here on dropping it restores the previous state.
        fcntl(file, F_SETSIG, libc::SIGURG)?;
        fcntl(file, libc::F_SETLEASE, libc::F_WRLCK)?;
        Ok(taken)
    }

    /// Whether another process waits to open the file.
    pub(crate) fn is_contended(&self) -> bool {
        // A lease that can no longer be read was broken by force.
        fcntl(self.file, libc::F_GETLEASE, 0).is_ok_and(|kind| kind != libc::F_WRLCK)
    }
}

impl Drop for WriteLease<'_> {
    fn drop(&mut self) {
        // Fails only when the kernel has taken the lease away already. The caller's own lease is
        // kept.
        if self.lease != libc::F_WRLCK {
            let _ = fcntl(self.file, libc::F_SETLEASE, self.lease);
        }
        let _ = fcntl(self.file, F_SETSIG, self.signal);
        let _ = owner(self.file, F_SETOWN_EX, &mut self.owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_file_has_its_lease_signal_and_owner_afterwards() {
        let place = tempfile::NamedTempFile::new().unwrap();
        let file = place.as_file();
        let state = || {
            let mut found = Owner::default();
            owner(file, F_GETOWN_EX, &mut found).unwrap();
            let lease = fcntl(file, libc::F_GETLEASE, 0).unwrap();
            (lease, fcntl(file, F_GETSIG, 0).unwrap(), found)
        };
        let fresh = state();
        drop(WriteLease::take(file).unwrap());
        assert_eq!(state(), fresh);
        // A caller with its own lease and its own choice of signal.
        fcntl(file, F_SETSIG, libc::SIGWINCH).unwrap();
        fcntl(file, libc::F_SETLEASE, libc::F_WRLCK).unwrap();
        let own = state();
        assert_eq!((own.0, own.1), (libc::F_WRLCK, libc::SIGWINCH));
        drop(WriteLease::take(file).unwrap());
        assert_eq!(state(), own);
    }
}

//! Closing the last descriptor of a removed file without waiting for it.
//!
//! The kernel frees the blocks of a removed file when it is closed, and on a file
//! system mounted with `discard` and no journal tells the disk about each of them
//! meanwhile: a quarter of a second a GiB, with no way to interrupt. A thread would
//! not help, as a process ends only after all of its threads; a process of its own
//! does.

use std::fs::File;
use std::io::{self, PipeWriter};
use std::os::fd::{AsRawFd, RawFd};

/// Keeps `file` open in a process of its own until what is returned is dropped. Whoever drops
/// that last, after the file, waits for nothing, and nor does the end of this process.
///
/// `None`, and nothing changes, where there is no such process to be had.
pub(crate) fn hold_elsewhere(file: &File) -> Option<PipeWriter> {
    let (wait, go) = io::pipe().ok()?;
    // SAFETY: the child calls only async-signal-safe functions and ends in `_exit`; it takes
    // no locks and touches no memory of other threads.
    match unsafe { libc::fork() } {
        // SAFETY: as above; the descriptors are open in the child as they are here.
        0 => unsafe { hold(file.as_raw_fd(), wait.as_raw_fd()) },
        pid if pid > 0 => {
            let mut status = 0;
            // SAFETY: waits for the child made above, which ends at once.
            unsafe { libc::waitpid(pid, &raw mut status, 0) };
            Some(go)
        }
        _ => None,
    }
}

/// The child. Makes a grandchild, which nobody has to wait for, and ends; the grandchild keeps
/// `file` open until everybody else has closed the other end of `wait`.
///
/// # Safety
/// To be called in a process just forked, with two open descriptors.
unsafe fn hold(file: RawFd, wait: RawFd) -> ! {
    // SAFETY: system calls on descriptors of this process alone, which has one thread.
    unsafe {
        if libc::fork() == 0 {
            libc::setsid();
            // Nothing of the parent's is kept open: not its terminal, not its pipes.
            if libc::dup2(file, 0) == 0 && libc::dup2(wait, 1) == 1 {
                libc::syscall(libc::SYS_close_range, 2, libc::c_uint::MAX, 0);
                let mut byte = 0u8;
                libc::read(1, (&raw mut byte).cast(), 1);
            }
        }
        libc::_exit(0)
    }
}

//! Calls that nothing interrupts, made by a process of its own.
//!
//! `fdatasync` waits for the disk, and the last `close` of a removed file waits for its
//! blocks to be freed, with `discard` for the disk as well: a quarter of a second a GiB and
//! more. A thread would not help a caller who is told to stop, as a process ends only
//! after all of its threads. What is waited for here is a pipe, which can be left.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Keeps `file` open elsewhere until what is returned is dropped. Whoever drops that last,
/// after the file, waits for nothing, and nor does the end of this process.
///
/// `None`, and nothing changes, where there is no such process to be had.
pub(crate) fn hold(file: &File) -> Option<PipeWriter> {
    let (wait, go) = io::pipe().ok()?;
    // The grandchild's end of `go` is closed with everything else that it does not need.
    start(Task::Hold, file.as_raw_fd(), wait.as_raw_fd()).then_some(go)
}

/// An `fdatasync` under way elsewhere.
pub(crate) struct Sync {
    answer: PipeReader,
}

impl Sync {
    /// Starts it; `None` where there is no process to be had.
    pub(crate) fn start(file: &File) -> Option<Self> {
        let (answer, tell) = io::pipe().ok()?;
        start(Task::Sync, file.as_raw_fd(), tell.as_raw_fd()).then_some(Self { answer })
    }

    /// Its result; `None` when there is none within `timeout`.
    pub(crate) fn wait(&mut self, timeout: Duration) -> io::Result<Option<io::Result<()>>> {
        let timeout = Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let mut events = [PollFd::from_borrowed_fd(self.answer.as_fd(), PollFlags::IN)];
        match poll(&mut events, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
            Ok(_) => {}
            Err(errno) => return Err(errno.into()),
        }
        let mut errno = [0; 4];
        Ok(Some(match self.answer.read_exact(&mut errno) {
            Ok(()) => match i32::from_ne_bytes(errno) {
                0 => Ok(()),
                errno => Err(io::Error::from_raw_os_error(errno)),
            },
            // It was killed; nothing is known of the sync.
            Err(_) => Err(io::Error::from_raw_os_error(libc::EINTR)),
        }))
    }
}

#[derive(Clone, Copy)]
enum Task {
    Hold,
    Sync,
}

/// Makes the process. It is a grandchild, so that nobody has to wait for it.
fn start(task: Task, file: RawFd, pipe: RawFd) -> bool {
    // SAFETY: the child calls only async-signal-safe functions and ends in `_exit`; it takes
    // no locks and touches no memory of other threads.
    match unsafe { libc::fork() } {
        // SAFETY: as above; the descriptors are open in the child as they are here.
        0 => unsafe { run(task, file, pipe) },
        pid if pid > 0 => {
            let mut status = 0;
            // SAFETY: waits for the child made above, which ends at once.
            while unsafe { libc::waitpid(pid, &raw mut status, 0) } < 0
                && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
            {}
            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
        }
        _ => false,
    }
}

/// The child: makes the grandchild and ends, with status 0 when there is one.
///
/// # Safety
/// To be called in a process just forked, with two open descriptors.
unsafe fn run(task: Task, file: RawFd, pipe: RawFd) -> ! {
    // SAFETY: system calls on descriptors of this process alone, which has one thread, and on
    // local variables.
    unsafe {
        let grandchild = libc::fork();
        if grandchild != 0 {
            libc::_exit(i32::from(grandchild < 0));
        }
        libc::setsid();
        // Nothing else of the parent's is kept open: not its terminal, not its pipes. By way of
        // high numbers, as either may be 0 or 1 already.
        let file = libc::fcntl(file, libc::F_DUPFD, 100);
        let pipe = libc::fcntl(pipe, libc::F_DUPFD, 100);
        if file < 0 || pipe < 0 || libc::dup2(file, 0) != 0 || libc::dup2(pipe, 1) != 1 {
            libc::_exit(1);
        }
        libc::syscall(libc::SYS_close_range, 2, libc::c_uint::MAX, 0);
        match task {
            Task::Hold => {
                let mut byte = 0u8;
                libc::read(1, (&raw mut byte).cast(), 1);
            }
            Task::Sync => {
                let errno: libc::c_int = match libc::fdatasync(0) {
                    0 => 0,
                    _ => *libc::__errno_location(),
                };
                libc::write(1, (&raw const errno).cast(), size_of_val(&errno));
            }
        }
        libc::_exit(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sync_elsewhere_answers() {
        let file = tempfile::tempfile().unwrap();
        let mut sync = Sync::start(&file).unwrap();
        let answer = (0..500).find_map(|_| sync.wait(Duration::from_millis(20)).unwrap());
        assert!(answer.expect("within ten seconds").is_ok());
    }

    #[test]
    fn sync_elsewhere_tells_the_error() {
        let (reader, _writer) = io::pipe().unwrap();
        let pipe = File::from(std::os::fd::OwnedFd::from(reader));
        let mut sync = Sync::start(&pipe).unwrap();
        let answer = (0..500).find_map(|_| sync.wait(Duration::from_millis(20)).unwrap());
        let error = answer.expect("within ten seconds").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    fn held_file_stays_open_until_let_go() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_path_buf();
        let holder = hold(file.as_file()).unwrap();
        assert_eq!(crate::holders::holders(&path).len(), 1);
        drop(holder);
        let is_free = (0..500).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            crate::holders::holders(&path).is_empty()
        });
        assert!(is_free);
    }
}

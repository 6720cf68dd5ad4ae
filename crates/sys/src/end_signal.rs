//! Signal of ended calls, to be waited for together with the input of a queue.
//!
//! Model: an eventfd counts ended calls. It is read once for all that it counts, so a waiter takes
//! every ended call after each wait; a signal left over from before only ends a wait early.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::retry_on_intr;

/// An eventfd.
pub(crate) struct EndSignal(OwnedFd);

impl EndSignal {
    pub(crate) fn new() -> io::Result<Self> {
        let signal = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(signal))
    }

    /// A call has ended.
    pub(crate) fn notify(&self) {
        // It fails only if the counter is full, and then it is signalled already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Waits until a call has ended since the last wait, or there is input.
    pub(crate) fn wait(&self, input: BorrowedFd<'_>) {
        if wait_readable(self.0.as_fd(), input) {
            let _ = rustix::io::read(&self.0, &mut [0; 8]);
        }
    }
}

impl AsFd for EndSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until `ends` or `input` is readable, and returns whether `ends` is.
pub(crate) fn wait_readable(ends: BorrowedFd<'_>, input: BorrowedFd<'_>) -> bool {
    let mut events = [ends, input].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    // A failure is a look too early, and another follows.
    let _ = retry_on_intr(|| poll(&mut events, None));
    !events[0].revents().is_empty()
}

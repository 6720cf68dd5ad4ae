//! Writes of zeros through io_uring.
//!
//! Every request reads from the one buffer of zeros, which the engine owns, so
//! that memory handed to the kernel outlives the requests: the engine waits for
//! all of them before it lets go of the buffer.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use extant_sys::buffer::AlignedBuffer;
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};

/// One request that has ended: the tag it was given and its result.
pub(crate) struct Completion {
    pub(crate) tag: u64,
    pub(crate) result: io::Result<u32>,
}

/// A ring and the zeros it writes.
pub(crate) struct UringWriter<'f> {
    ring: IoUring,
    zeros: AlignedBuffer,
    file: &'f File,
    in_flight: u32,
}

impl<'f> UringWriter<'f> {
    /// A ring for at most `depth` requests at a time. Fails where the kernel has no
    /// io_uring, forbids it, or is too old to wait with a timeout (before 5.11).
    pub(crate) fn new(
        file: &'f File,
        zeros: AlignedBuffer,
        depth: u32,
    ) -> Result<Self, AlignedBuffer> {
        match IoUring::new(depth) {
            Ok(ring) if ring.params().is_feature_ext_arg() => Ok(Self {
                ring,
                zeros,
                file,
                in_flight: 0,
            }),
            _ => Err(zeros),
        }
    }

    /// Starts writing `len` zeros at `offset`.
    ///
    /// # Panics
    /// When `len` is more than the buffer or the ring is full.
    pub(crate) fn submit(&mut self, tag: u64, offset: u64, len: u32) -> io::Result<()> {
        assert!(len as usize <= self.zeros.as_slice().len());
        let entry = opcode::Write::new(
            Fd(self.file.as_raw_fd()),
            self.zeros.as_slice().as_ptr(),
            len,
        )
        .offset(offset)
        .build()
        .user_data(tag);
        // SAFETY: the buffer belongs to `self` and is freed only after every request has
        // ended (`Drop`); the file is borrowed for as long.
        unsafe { self.ring.submission().push(&entry) }.expect("more requests than the ring holds");
        self.in_flight += 1;
        self.ring.submit()?;
        Ok(())
    }

    /// The next request that ended; `None` when none did within `timeout`.
    pub(crate) fn wait(&mut self, timeout: Duration) -> io::Result<Option<Completion>> {
        if let Some(completion) = self.take() {
            return Ok(Some(completion));
        }
        let timeout = Timespec::from(timeout);
        let args = SubmitArgs::new().timespec(&timeout);
        match self.ring.submitter().submit_with_args(1, &args) {
            Ok(_) => {}
            // A signal may be a request to stop: the caller checks.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR)) => {}
            Err(error) => return Err(error),
        }
        Ok(self.take())
    }

    fn take(&mut self) -> Option<Completion> {
        let entry = self.ring.completion().next()?;
        self.in_flight -= 1;
        let result = match entry.result() {
            errno if errno < 0 => Err(io::Error::from_raw_os_error(-errno)),
            written => Ok(written as u32),
        };
        Some(Completion {
            tag: entry.user_data(),
            result,
        })
    }
}

impl Drop for UringWriter<'_> {
    fn drop(&mut self) {
        // The kernel may read the buffer until the last request has ended.
        while self.in_flight > 0 {
            if self.wait(Duration::from_secs(1)).is_err() {
                // Freeing memory that the kernel still reads would be worse than losing it.
                std::process::abort();
            }
        }
    }
}

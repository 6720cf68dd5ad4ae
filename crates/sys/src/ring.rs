//! Many calls at a time through io_uring.
//!
//! Model: a [`Ring`] runs a [`CallQueue`] to its end. It holds each [`Call`] in a fixed slot, with
//! all the memory that the kernel uses, and returns it with its result.
//!
//! Safety invariants:
//! - a call in a slot is not moved or dropped while the kernel may use its memory: [`Ring::run`]
//!   returns or unwinds only after every call that the kernel has;
//! - a ring with calls that the kernel never consumed is not used again.
//!
//! If the ring itself fails, plain calls perform the rest of the queue.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode, squeue};

use crate::call::{Call, Memory, PARTS_MAX};
use crate::end_signal::wait_readable;
use crate::queue::{CallQueue, run_plain};

// IORING_ENTER_GETEVENTS of linux/io_uring.h.
const ENTER_GETEVENTS: u32 = 1;
// _IO(0x12, 0) of linux/blkdev.h: discard as a command of a ring, since Linux 6.12.
const BLOCK_URING_CMD_DISCARD: u32 = 0x1200;
/// The most that the kernel reads or writes in one call.
const BYTES_MAX: usize = 0x7fff_f000;

/// An io_uring for a number of calls at a time.
pub struct Ring {
    ring: IoUring,
    depth: u32,
    discards: Discards,
}

/// How a ring discards.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Discards {
    Command,
    /// The kernel is older than the command.
    Ioctl,
}

impl Ring {
    /// A ring for at most `depth` calls at a time. Fails if the kernel has no io_uring, forbids it,
    /// or lacks the operations (before 5.6).
    pub fn new(depth: u32) -> io::Result<Self> {
        let ring = IoUring::builder().setup_clamp().build(depth.max(1))?;
        let depth = depth.clamp(1, ring.params().sq_entries());
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let needed = [
            opcode::Read::CODE,
            opcode::Write::CODE,
            opcode::Readv::CODE,
            opcode::Writev::CODE,
            opcode::Fsync::CODE,
            opcode::Fallocate::CODE,
        ];
        let has_all = needed.into_iter().all(|code| probe.is_supported(code));
        if !has_all || !ring.params().is_feature_nodrop() {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let discards = if probe.is_supported(opcode::UringCmd16::CODE) {
            Discards::Command
        } else {
            Discards::Ioctl
        };
        Ok(Self {
            ring,
            depth,
            discards,
        })
    }

    /// Whether the kernel can wait with a timeout (since 5.11), which
    /// [`CallQueue::recheck_interval`] needs.
    pub fn has_timeouts(&self) -> bool {
        self.ring.params().is_feature_ext_arg()
    }

    /// Runs `queue` until nothing is in flight and there is no next call. Returns the ring, unless
    /// it failed.
    pub fn run<'a>(mut self, file: &File, queue: &mut dyn CallQueue<'a>) -> Option<Self> {
        let mut discards = self.discards;
        let mut flights = Flights::new(&mut self, file);
        loop {
            while flights.has_room()
                && let Some((tag, mut call)) = queue.next()
            {
                if discards == Discards::Ioctl && matches!(call, Call::Discard(_)) {
                    let result = call.execute(file);
                    queue.ended(tag, call, result);
                    continue;
                }
                flights.start(tag, call);
            }
            if flights.in_flight == 0 {
                break;
            }
            let input = queue.input().filter(|_| flights.has_room());
            let submitted = match input {
                None => flights.submit_and_wait(queue.recheck_interval()),
                Some(input) => flights.submit_and_wait_with(input),
            };
            if submitted.is_err() {
                flights.abandon(queue);
                run_plain(file, queue);
                return None;
            }
            while let Some((tag, mut call, mut result)) = flights.take() {
                if matches!(call, Call::Discard(_)) && is_unknown(&result) {
                    // An older kernel, or a disk without discard: the older call knows which.
                    discards = Discards::Ioctl;
                    result = call.execute(file);
                }
                queue.ended(tag, call, result);
            }
        }
        drop(flights);
        self.discards = discards;
        Some(self)
    }
}

fn is_unknown(result: &io::Result<usize>) -> bool {
    let errno = result.as_ref().err().and_then(io::Error::raw_os_error);
    matches!(errno, Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOTTY))
}

/// The calls in flight. Dropped, it waits for those that the kernel has.
struct Flights<'r, 'a> {
    ring: &'r mut IoUring,
    file: &'r File,
    /// Never longer than its capacity: calls stay where they are.
    slots: Vec<Option<(usize, Call<'a>)>>,
    free: Vec<usize>,
    depth: usize,
    in_flight: usize,
}

impl<'r, 'a> Flights<'r, 'a> {
    fn new(ring: &'r mut Ring, file: &'r File) -> Self {
        let depth = ring.depth as usize;
        Self {
            ring: &mut ring.ring,
            file,
            slots: Vec::with_capacity(depth),
            free: Vec::new(),
            depth,
            in_flight: 0,
        }
    }

    fn has_room(&self) -> bool {
        self.in_flight < self.depth
    }

    /// Puts a call into a slot and the submission queue. The kernel sees it with the next
    /// submission.
    fn start(&mut self, tag: usize, call: Call<'a>) {
        let slot = self.free.pop().unwrap_or_else(|| {
            assert!(
                self.slots.len() < self.depth,
                "more calls than the ring holds"
            );
            self.slots.push(None);
            self.slots.len() - 1
        });
        let (_, call) = self.slots[slot].insert((tag, call));
        let entry = entry(self.file, call).user_data(slot as u64);
        // SAFETY: the memory that the entry names belongs to the call, whose slot is neither moved
        // nor emptied before the kernel is done with it (`take`, `drop`); the file is borrowed for
        // as long.
        unsafe { self.ring.submission().push(&entry) }.expect("as many entries as slots");
        self.in_flight += 1;
    }

    /// Submits, and waits until a call has ended, or until `timeout`.
    fn submit_and_wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.submit(1, timeout)
    }

    /// Submits, and waits until a call has ended or there is input.
    fn submit_and_wait_with(&mut self, input: BorrowedFd<'_>) -> io::Result<()> {
        if !self.ring.submission().is_empty() {
            self.submit(0, None)?;
        }
        if self.ring.completion().is_empty() {
            // The ring is readable while it has results.
            let ring = self.ring.as_raw_fd();
            // SAFETY: the ring is open as long as it is borrowed here.
            wait_readable(unsafe { BorrowedFd::borrow_raw(ring) }, input);
        }
        Ok(())
    }

    /// Submits, and waits for `least` calls to end, or until `timeout`.
    fn submit(&mut self, least: usize, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = timeout.filter(|_| self.ring.params().is_feature_ext_arg());
        let timeout = timeout.map(Timespec::from);
        loop {
            let submitted = match &timeout {
                None => self.ring.submit_and_wait(least),
                Some(timeout) => {
                    let args = SubmitArgs::new().timespec(timeout);
                    self.ring.submitter().submit_with_args(least, &args)
                }
            };
            let Err(error) = submitted else {
                return Ok(());
            };
            match error.raw_os_error() {
                Some(libc::ETIME) => return Ok(()),
                Some(libc::EINTR) => {}
                // Out of memory for requests, or too many results: better once one has ended.
                Some(libc::EAGAIN | libc::EBUSY) if self.in_kernel() > 0 => return self.wait(),
                _ => return Err(error),
            }
        }
    }

    /// Waits for a call that the kernel has, without submitting more.
    fn wait(&self) -> io::Result<()> {
        // SAFETY: nothing is submitted, and no argument is passed.
        let result = unsafe {
            let submitter = self.ring.submitter();
            submitter.enter::<libc::sigset_t>(0, 1, ENTER_GETEVENTS, None)
        };
        match result {
            Err(error) if error.raw_os_error() != Some(libc::EINTR) => Err(error),
            _ => Ok(()),
        }
    }

    /// How many calls the kernel has taken and not ended.
    fn in_kernel(&mut self) -> usize {
        self.in_flight - self.ring.submission().len()
    }

    fn take(&mut self) -> Option<(usize, Call<'a>, io::Result<usize>)> {
        let entry = self.ring.completion().next()?;
        let slot = entry.user_data() as usize;
        let (tag, call) = self.slots[slot].take().expect("a slot in use");
        self.free.push(slot);
        self.in_flight -= 1;
        let result = match entry.result() {
            errno if errno < 0 => Err(io::Error::from_raw_os_error(-errno)),
            moved => Ok(moved as usize),
        };
        Some((tag, call, result))
    }

    /// Waits for the calls in the kernel, and runs those here that it never accepted.
    fn abandon(mut self, queue: &mut dyn CallQueue<'a>) {
        let file = self.file;
        while self.in_kernel() > 0 {
            self.wait_or_abort();
            while let Some((tag, call, result)) = self.take() {
                queue.ended(tag, call, result);
            }
        }
        for slot in 0..self.slots.len() {
            if let Some((tag, mut call)) = self.slots[slot].take() {
                let result = call.execute(file);
                queue.ended(tag, call, result);
            }
        }
    }

    fn wait_or_abort(&self) {
        if self.wait().is_err() {
            // Freeing memory that the kernel still uses would be worse than losing the process.
            std::process::abort();
        }
    }
}

impl Drop for Flights<'_, '_> {
    fn drop(&mut self) {
        // After a panic; else nothing is in flight.
        while self.in_flight > 0 && self.in_kernel() > 0 {
            self.wait_or_abort();
            while self.take().is_some() {}
        }
    }
}

/// The submission entry of `call`; it points into the memory of the call.
fn entry(file: &File, call: &mut Call<'_>) -> squeue::Entry {
    let fd = Fd(file.as_raw_fd());
    match call {
        Call::Read { offset, into } => {
            let part = match into {
                Memory::Buffer(buffer, part) => &mut buffer.as_mut_slice()[part.clone()],
                Memory::Parts(parts) => match &mut parts[..] {
                    [part] => part,
                    parts => {
                        let count = parts.len().min(PARTS_MAX) as u32;
                        return opcode::Readv::new(fd, parts.as_ptr().cast(), count)
                            .offset(*offset)
                            .build();
                    }
                },
                Memory::Shared(shared) => {
                    let parts = shared.call_parts();
                    return opcode::Readv::new(fd, parts.as_ptr(), parts.len() as u32)
                        .offset(*offset)
                        .build();
                }
            };
            let length = part.len().min(BYTES_MAX) as u32;
            opcode::Read::new(fd, part.as_mut_ptr(), length)
                .offset(*offset)
                .build()
        }
        Call::Write {
            offset,
            from,
            durability,
        } => {
            let flags = durability.rw_flags();
            let part = match from {
                Memory::Buffer(buffer, part) => &buffer.as_slice()[part.clone()],
                Memory::Parts(parts) => match &parts[..] {
                    [part] => part,
                    parts => {
                        let count = parts.len().min(PARTS_MAX) as u32;
                        return opcode::Writev::new(fd, parts.as_ptr().cast(), count)
                            .offset(*offset)
                            .rw_flags(flags)
                            .build();
                    }
                },
                Memory::Shared(shared) => {
                    let parts = shared.call_parts();
                    return opcode::Writev::new(fd, parts.as_ptr(), parts.len() as u32)
                        .offset(*offset)
                        .rw_flags(flags)
                        .build();
                }
            };
            let length = part.len().min(BYTES_MAX) as u32;
            opcode::Write::new(fd, part.as_ptr(), length)
                .offset(*offset)
                .rw_flags(flags)
                .build()
        }
        Call::Fallocate { mode, range } => opcode::Fallocate::new(fd, range.len())
            .offset(range.start())
            .mode(mode.bits() as i32)
            .build(),
        Call::Discard(range) => {
            let mut length = [0; 16];
            length[..8].copy_from_slice(&range.len().to_ne_bytes());
            opcode::UringCmd16::new(fd, BLOCK_URING_CMD_DISCARD)
                .addr(Some(range.start()))
                .cmd(length)
                .build()
        }
        Call::SyncData => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
    }
}

#[cfg(test)]
mod tests;

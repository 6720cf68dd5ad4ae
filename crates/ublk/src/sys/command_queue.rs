//! A queue of a disk: commands that fetch requests, and the buffers of their data.
//!
//! Model: each request of the kernel has a tag below the queue's depth. The driver has a command
//! with a buffer for each tag, and completes it when a request with that tag arrives. A write's
//! data is in the buffer then. The server returns the buffer with the result: the driver copies the
//! data of a read from it, completes the request, and keeps the buffer for the next one.
//!
//! Safety invariants:
//! - a buffer is either in `lent`, where only the kernel uses it, or with the caller;
//! - the kernel copies in the context of the thread that submitted the command, so buffers in
//!   `lent` are never freed: they leak if the queue ends before the kernel returned them.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use extant_sys::buffer::AlignedBuffer;
use io_uring::types::Fd;
use io_uring::{IoUring, opcode};
use zerocopy::IntoBytes;

use crate::protocol::{Descriptor, QUEUE_DEPTH_MAX, QueueCommand, QueueOperation};

/// `IORING_ENTER_GETEVENTS` of linux/io_uring.h: runs deferred completions.
const ENTER_GETEVENTS: u32 = 1;

/// The commands of a queue, for the thread that made it alone.
pub(crate) struct CommandQueue {
    ring: IoUring,
    device: Arc<File>,
    descriptors: Descriptors,
    queue: u16,
    /// By tag: the buffer that the kernel has.
    lent: Vec<Option<AlignedBuffer>>,
    /// Tags whose command the kernel or the caller has; the others have ended with the disk.
    live: usize,
}

/// A request that arrived.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub tag: u16,
    pub descriptor: Descriptor,
    pub buffer: AlignedBuffer,
}

impl CommandQueue {
    /// Fetches requests for each tag of the queue, with buffers of `buffer_bytes`, a power of two.
    ///
    /// # Errors
    /// Those of io_uring and of memory.
    pub(crate) fn new(
        device: Arc<File>,
        queue: u16,
        depth: u16,
        buffer_bytes: usize,
    ) -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .dontfork()
            .build(depth.into())?;
        let descriptors = Descriptors::map(&device, queue, depth)?;
        let mut commands = Self {
            ring,
            device,
            descriptors,
            queue,
            lent: (0..depth).map(|_| None).collect(),
            live: depth.into(),
        };
        for tag in 0..depth {
            let buffer = AlignedBuffer::new(buffer_bytes)?;
            commands.push(QueueOperation::Fetch, tag, buffer, 0)?;
        }
        commands.ring.submit()?;
        Ok(commands)
    }

    /// Completes a request, and passes the buffer to the kernel for the next one. The command is
    /// submitted by the next call of `poll` or `wait`.
    pub(crate) fn commit(
        &mut self,
        tag: u16,
        buffer: AlignedBuffer,
        result: i32,
    ) -> io::Result<()> {
        self.push(QueueOperation::CommitAndFetch, tag, buffer, result)
    }

    /// Submits commands, and adds the requests that have arrived to `arrived`.
    pub(crate) fn poll(&mut self, arrived: &mut VecDeque<Fetched>) -> io::Result<()> {
        let submitted = self.ring.submission().len() as u32;
        // SAFETY: no argument is passed; the entries are those of `push`.
        let entered = unsafe {
            let ring = self.ring.submitter();
            ring.enter::<()>(submitted, 0, ENTER_GETEVENTS, None)
        };
        self.collect(entered, arrived)
    }

    /// The same, and waits for a request or the end of the disk.
    pub(crate) fn wait(&mut self, arrived: &mut VecDeque<Fetched>) -> io::Result<()> {
        let entered = self.ring.submit_and_wait(1);
        self.collect(entered, arrived)
    }

    /// The disk has been stopped, and no request follows.
    pub(crate) fn is_finished(&self) -> bool {
        self.live == 0
    }

    /// Becomes readable when a request has arrived.
    pub(crate) fn readable(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring is open as long as it is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }

    fn collect(
        &mut self,
        entered: io::Result<usize>,
        arrived: &mut VecDeque<Fetched>,
    ) -> io::Result<()> {
        match entered {
            Err(error) if error.raw_os_error() != Some(libc::EINTR) => return Err(error),
            _ => {}
        }
        for completion in self.ring.completion() {
            let tag = completion.user_data() as u16;
            let buffer = self.lent[usize::from(tag)].take();
            let buffer = buffer.expect("a completion of a lent buffer");
            match completion.result() {
                0 => arrived.push_back(Fetched {
                    tag,
                    descriptor: self.descriptors.get(tag),
                    buffer,
                }),
                // UBLK_IO_RES_ABORT, or an error: no request will come with this tag.
                _ => self.live -= 1,
            }
        }
        Ok(())
    }

    fn push(
        &mut self,
        operation: QueueOperation,
        tag: u16,
        buffer: AlignedBuffer,
        result: i32,
    ) -> io::Result<()> {
        let command = QueueCommand {
            q_id: self.queue,
            tag,
            result,
            addr: buffer.as_slice().as_ptr() as u64,
        };
        let mut bytes = [0; 16];
        bytes.copy_from_slice(command.as_bytes());
        let entry = opcode::UringCmd16::new(Fd(self.device.as_raw_fd()), operation as u32)
            .cmd(bytes)
            .build()
            .user_data(tag.into());
        let slot = &mut self.lent[usize::from(tag)];
        assert!(slot.is_none(), "tag {tag} is passed to the kernel twice");
        *slot = Some(buffer);
        // SAFETY: the entry names the buffer in `lent` and the device, which `self` keeps open; see
        // the invariants.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.ring.submit()?;
        }
        Ok(())
    }
}

impl Drop for CommandQueue {
    fn drop(&mut self) {
        mem::forget(mem::take(&mut self.lent));
    }
}

/// The descriptors of a queue's requests, in memory that the driver writes.
struct Descriptors {
    start: NonNull<Descriptor>,
    bytes: usize,
    depth: u16,
}

impl Descriptors {
    fn map(device: &File, queue: u16, depth: u16) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let bytes = (usize::from(depth) * size_of::<Descriptor>()).next_multiple_of(page);
        let offset = usize::from(queue) * QUEUE_DEPTH_MAX * size_of::<Descriptor>();
        // SAFETY: a new mapping touches no memory in use.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                device.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).expect("mmap never returns address 0 here");
        Ok(Self {
            start,
            bytes,
            depth,
        })
    }

    fn get(&self, tag: u16) -> Descriptor {
        assert!(tag < self.depth, "tag {tag} of {}", self.depth);
        // SAFETY: the mapping has `depth` descriptors, of any bits, and the driver changes one only
        // while it has the command of its tag.
        unsafe { self.start.add(tag.into()).read_volatile() }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `map`, and no reference to it exists.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

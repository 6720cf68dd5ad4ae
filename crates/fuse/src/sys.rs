//! FUSE over io_uring: one request at a time, in memory that the kernel and a thread own
//! alternately.
//!
//! Model: a [`FuseRing`] has one entry in one of the connection's queues, of which there is one for
//! each possible CPU, and an io_uring of its own. [`FuseRing::exchange`] passes the memory to the
//! kernel, with the reply to the last request in it, and gets it back with the next request: one
//! system call. A queue has as many entries as rings were made for it.
//!
//! There is a ring for each thread, because the kernel fills an entry in the context of the thread
//! that passed it: a thread that is blocked by one request must not have another entry in the
//! kernel.
//!
//! Safety invariants:
//! - the kernel uses the memory only from `register` or the beginning of `exchange` to its end, and
//!   no other code does then;
//! - memory that the kernel may still use is never freed.
//!
//! Format: `include/uapi/linux/fuse.h` of Linux (`fuse_uring_req_header`, `fuse_uring_cmd_req`),
//! Linux 6.14 or newer.

use std::fmt;
use std::fs;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

use io_uring::types::Fd;
use io_uring::{IoUring, opcode, squeue};

use extant_sys::buffer::AlignedBuffer;

/// The header of a request, later that of its reply.
pub const IN_OUT: Range<usize> = 0..128;
/// The structure of a request's operation. Its length is the header's `len` less header and
/// payload.
pub const OPERATION: Range<usize> = 128..256;
/// Offset of the rest of a request, and of the reply without its header. The kernel does not use
/// the part between this and [`SPARE`].
pub const PAYLOAD_START: usize = 4096;
/// The first byte in front of the payload that the kernel does not use.
pub const SPARE: usize = 512;

/// `commit_id` and `payload_sz` of `fuse_uring_ent_in_out`, which follows the operation.
const COMMIT_ID: Range<usize> = 264..272;
const PAYLOAD_SIZE: Range<usize> = 272..276;
const HEADERS_LENGTH: usize = 288;
/// Two `iovec`: the headers and the payload. They are read when the entry is registered.
const PARTS: Range<usize> = 288..320;

// FUSE_IO_URING_CMD_REGISTER and FUSE_IO_URING_CMD_COMMIT_AND_FETCH.
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// `len` of `struct io_uring_sqe`.
const SQE_LEN_OFFSET: usize = 24;

/// The number of queues that a connection has: one for each possible CPU.
pub fn queue_count() -> io::Result<u16> {
    let possible = fs::read_to_string("/sys/devices/system/cpu/possible")?;
    count_cpus(possible.trim()).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Number of CPUs in a list like `0-3,8`.
fn count_cpus(list: &str) -> Option<u16> {
    list.split(',').try_fold(0_u16, |count, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        count.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

/// One entry of a queue, and the memory that it exchanges with the kernel.
pub struct FuseRing {
    ring: IoUring<squeue::Entry128>,
    device: Arc<OwnedFd>,
    memory: ManuallyDrop<AlignedBuffer>,
    payload_len: usize,
    queue: u16,
    holder: Holder,
}

/// The owner of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    /// The caller, before the entry is registered.
    Creator,
    /// The caller, with a request.
    Caller,
    /// The kernel, perhaps.
    Kernel,
}

impl FuseRing {
    /// An entry for `queue` of the connection behind `device`, with a payload of `payload_len`
    /// bytes, whose memory is allocated on first use. The kernel requires at least the negotiated
    /// maximum write, and at least 8192.
    ///
    /// # Errors
    /// Those of making an io_uring: unsupported, forbidden, out of memory.
    pub fn new(device: Arc<OwnedFd>, queue: u16, payload_len: usize) -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            // The ring belongs to the thread that enables it.
            .setup_r_disabled()
            .dontfork()
            .build(1)?;
        let memory = AlignedBuffer::new((PAYLOAD_START + payload_len).next_power_of_two())?;
        Ok(Self {
            ring,
            device,
            memory: ManuallyDrop::new(memory),
            payload_len,
            queue,
            holder: Holder::Creator,
        })
    }

    /// Registers the entry with the kernel, which owns the memory from then on. Only the calling
    /// thread uses the ring from now on.
    ///
    /// # Errors
    /// Those of io_uring. The first [`exchange`](Self::exchange) returns the kernel's refusal of
    /// the entry.
    ///
    /// # Panics
    /// If it is registered already.
    pub fn register(&mut self) -> io::Result<()> {
        assert_eq!(self.holder, Holder::Creator, "registered twice");
        self.ring.submitter().register_enable_rings()?;
        self.write_parts();
        self.submit(self.command(REGISTER, 0));
        self.ring.submit().map(drop)
    }

    /// Submits a reply of `reply_len` bytes after the header, and returns the memory to the kernel.
    ///
    /// # Errors
    /// Those of io_uring.
    ///
    /// # Panics
    /// If the kernel holds the memory.
    pub fn reply(&mut self, reply_len: usize) -> io::Result<()> {
        assert_eq!(self.holder, Holder::Caller, "nothing to answer");
        self.submit_reply(reply_len);
        self.ring.submit().map(drop)
    }

    /// Submits a reply as [`reply`](Self::reply) does, if the caller holds the memory, and waits
    /// for the next request.
    ///
    /// # Errors
    /// `ENOTCONN` and `ECONNABORTED` when the connection is over; `EOPNOTSUPP`, `EINVAL` when the
    /// kernel does not take the entry; those of io_uring.
    ///
    /// # Panics
    /// If the entry is not registered.
    pub fn exchange(&mut self, reply_len: usize) -> io::Result<()> {
        match self.holder {
            Holder::Creator => panic!("not registered"),
            Holder::Caller => self.submit_reply(reply_len),
            Holder::Kernel => {}
        }
        let result = self.wait()?;
        self.holder = Holder::Caller;
        match result {
            errno if errno < 0 => Err(io::Error::from_raw_os_error(-errno)),
            _ => Ok(()),
        }
    }

    fn submit_reply(&mut self, reply_len: usize) {
        let reply_len =
            u32::try_from(reply_len.min(self.payload_len)).expect("payloads have less than 4 GiB");
        let memory = self.memory.as_mut_slice();
        memory[PAYLOAD_SIZE].copy_from_slice(&reply_len.to_ne_bytes());
        let id = memory[COMMIT_ID].try_into().map(u64::from_ne_bytes);
        self.submit(self.command(COMMIT_AND_FETCH, id.expect("8 bytes")));
    }

    fn submit(&mut self, entry: squeue::Entry128) {
        self.holder = Holder::Kernel;
        // SAFETY: the entry names memory of `self.memory`, which is neither used nor freed while
        // the holder is the kernel, and the device, of which `self` has a reference.
        unsafe { self.ring.submission().push(&entry) }.expect("one entry at a time");
    }

    fn wait(&mut self) -> io::Result<i32> {
        loop {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.raw_os_error() != Some(libc::EINTR) => return Err(error),
                _ => {}
            }
            if let Some(end) = self.ring.completion().next() {
                return Ok(end.result());
            }
        }
    }

    /// Length of the request's payload.
    pub fn payload_len(&self) -> usize {
        let len = self.memory.as_slice()[PAYLOAD_SIZE].try_into();
        let len = u32::from_ne_bytes(len.expect("4 bytes")) as usize;
        len.min(self.payload_len)
    }

    /// All of the memory.
    ///
    /// # Panics
    /// When the last exchange failed and the kernel may still use it.
    pub fn memory(&mut self) -> &mut [u8] {
        assert_ne!(self.holder, Holder::Kernel, "the kernel holds the memory");
        &mut self.memory.as_mut_slice()[..PAYLOAD_START + self.payload_len]
    }

    fn write_parts(&mut self) {
        let memory = self.memory.as_mut_slice();
        let start = memory.as_ptr() as usize;
        let words = [
            start,
            HEADERS_LENGTH,
            start + PAYLOAD_START,
            self.payload_len,
        ];
        for (word, into) in words.iter().zip(memory[PARTS].chunks_exact_mut(8)) {
            into.copy_from_slice(&(*word as u64).to_ne_bytes());
        }
    }

    fn command(&self, operation: u32, commit_id: u64) -> squeue::Entry128 {
        let mut data = [0; 80];
        data[8..16].copy_from_slice(&commit_id.to_ne_bytes());
        data[16..18].copy_from_slice(&self.queue.to_ne_bytes());
        let parts = &self.memory.as_slice()[PARTS];
        let mut entry = opcode::UringCmd80::new(Fd(self.device.as_raw_fd()), operation)
            .cmd(data)
            .addr(Some(parts.as_ptr() as u64))
            .build();
        // SAFETY: the entry is a `struct io_uring_sqe` of 128 bytes, of which these four are its
        // `len`, for which the builder has no word.
        unsafe {
            let bytes = ptr::from_mut(&mut entry).cast::<u8>();
            bytes.add(SQE_LEN_OFFSET).cast::<u32>().write_unaligned(2);
        }
        entry
    }
}

impl Drop for FuseRing {
    fn drop(&mut self) {
        if self.holder != Holder::Kernel {
            // SAFETY: dropped once, here, and the kernel does not use it any more.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}

impl fmt::Debug for FuseRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FuseRing(queue {}, {:?})", self.queue, self.holder)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn list_of_cpus_is_counted_and_nonsense_is_none() {
        assert_eq!(count_cpus("0"), Some(1));
        assert_eq!(count_cpus("0-3"), Some(4));
        assert_eq!(count_cpus("0-3,8,10-11"), Some(7));
        for wrong in ["", "a", "3-1", "0-65535", "0-40000,0-40000"] {
            assert_eq!(count_cpus(wrong), None, "{wrong}");
        }
        assert!(queue_count().unwrap() >= 1);
    }

    #[test]
    fn file_that_is_no_connection_rejects_the_entry_and_memory_is_returned() {
        // `/dev/null` accepts every command.
        let file = File::open("/dev/zero").unwrap();
        let mut ring = FuseRing::new(Arc::new(file.into()), 0, 1 << 20).unwrap();
        ring.register().unwrap();
        let error = ring.exchange(0).unwrap_err();
        assert!(error.raw_os_error().is_some());
        ring.memory()[PAYLOAD_START..].fill(7);
    }

    #[test]
    fn length_is_at_the_offset_that_the_kernel_reads() {
        let file = File::open("/dev/null").unwrap();
        let ring = FuseRing::new(Arc::new(file.into()), 5, 8192).unwrap();
        let entry = ring.command(COMMIT_AND_FETCH, 0x1234);
        // SAFETY: an entry is 128 bytes that are all set.
        let bytes: [u8; 128] = unsafe { std::mem::transmute(entry) };
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        // `cmd_op`, `len` and the command's own bytes.
        assert_eq!((word(8), word(24)), (COMMIT_AND_FETCH, 2));
        assert_eq!((word(56), word(64)), (0x1234, 5));
    }
}

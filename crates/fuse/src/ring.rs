//! A worker's endpoint of a queue of FUSE over io_uring.
//!
//! A reply is submitted together with the wait for the next request: one system call where
//! `/dev/fuse` needs two. An endpoint has two buffers, the ring's, which is shared with the kernel,
//! and a private one. This saves copies of data: a request with much data stays in the ring's
//! buffer, and its short reply is copied there from the private one; a small request is copied to
//! the private buffer, and its reply is built in the ring's.
//!
//! The kernel passes waiting requests to an endpoint that returns with a reply, not to a new one.
//! So when an endpoint is added to a stalled queue, a thread on the queue's CPU sends a request (a
//! *kick*): the endpoint answers it and returns. The request is `statfs` of the mount point. A
//! detached mount has no mount point: there the queue waits for the next request of a program.
//!
//! `FORGET` and `INTERRUPT` arrive on `/dev/fuse`, and notifications are sent there.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use extant_space::{Error, Result};
use extant_sys::buffer::AlignedBuffer;
use rustix::fs::statfs;
use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use crate::affinity::on_cpu;
use crate::channel::{Channel, REPLY_LENGTH_MAX};
use crate::protocol::reply::{HEADER_LENGTH, Reply};
use crate::protocol::{ReplyHeader, RequestHeader};
use crate::queue::{Endpoint, Received, StartReason};
use crate::sys::{FuseRing, IN_OUT, OPERATION, PAYLOAD_START, SPARE};

/// Minimum payload of a request that stays in the ring's buffer, in bytes.
const IN_PLACE_PAYLOAD_MIN: usize = 4096;
/// Offset of a reply's header in both buffers.
const REPLY_START: usize = PAYLOAD_START - HEADER_LENGTH;

/// One entry of a ring's queue.
pub(crate) struct RingEndpoint {
    ring: FuseRing,
    channel: Channel,
    queue: u16,
    mount_point: Arc<Path>,
    /// Until the entry is registered.
    start_reason: Option<StartReason>,
    /// The private buffer: length and layout are those of the ring's.
    private: AlignedBuffer,
    request: RequestRange,
    /// Payload of the reply that the next wait submits.
    reply_len: usize,
}

/// The location of the request.
#[derive(Clone, Copy, Debug)]
struct RequestRange {
    buffer: Buffer,
    start: usize,
    end: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Buffer {
    Ring,
    Private,
}

/// Checks that this system supports the rings.
pub(crate) fn is_available() -> io::Result<()> {
    let nothing = std::fs::File::open("/dev/null")?;
    FuseRing::new(Arc::new(nothing.into()), 0, IN_PLACE_PAYLOAD_MIN).map(drop)
}

impl RingEndpoint {
    pub fn new(
        channel: &Channel,
        queue: u16,
        mount_point: &Arc<Path>,
        reason: StartReason,
    ) -> io::Result<Self> {
        let ring = FuseRing::new(channel.device(), queue, REPLY_LENGTH_MAX)?;
        let private_len = PAYLOAD_START + REPLY_LENGTH_MAX;
        Ok(Self {
            ring,
            channel: channel.clone(),
            queue,
            mount_point: Arc::clone(mount_point),
            start_reason: Some(reason),
            private: AlignedBuffer::new(private_len.next_power_of_two())?,
            request: RequestRange {
                buffer: Buffer::Ring,
                start: 0,
                end: 0,
            },
            reply_len: 0,
        })
    }

    /// Joins header, operation and payload of a request in one of the buffers.
    fn assemble(&mut self) -> Result<RequestHeader> {
        let payload_len = self.ring.payload_len();
        let memory = self.ring.memory();
        let (header, _) = RequestHeader::read_from_prefix(&memory[IN_OUT]).expect("it is longer");
        let head_len = (header.len as usize).checked_sub(payload_len);
        let operation_len = head_len.and_then(|len| len.checked_sub(size_of::<RequestHeader>()));
        let Some(operation_len) = operation_len.filter(|&len| len <= OPERATION.len()) else {
            return Err(failed(Errno::PROTO.into()));
        };
        let start = PAYLOAD_START - operation_len - size_of::<RequestHeader>();
        let end = PAYLOAD_START + payload_len;
        let buffer = if payload_len < IN_PLACE_PAYLOAD_MIN {
            let private = self.private.as_mut_slice();
            private[PAYLOAD_START..end].copy_from_slice(&memory[PAYLOAD_START..end]);
            private[start..][..size_of::<RequestHeader>()].copy_from_slice(header.as_bytes());
            let operation = &memory[OPERATION][..operation_len];
            private[PAYLOAD_START - operation_len..PAYLOAD_START].copy_from_slice(operation);
            Buffer::Private
        } else {
            let operation = OPERATION.start..OPERATION.start + operation_len;
            memory.copy_within(operation, PAYLOAD_START - operation_len);
            memory[start..][..size_of::<RequestHeader>()].copy_from_slice(header.as_bytes());
            Buffer::Ring
        };
        debug_assert!(start >= SPARE);
        self.request = RequestRange { buffer, start, end };
        Ok(header)
    }

    /// Stores a reply, which the next wait submits.
    fn store_reply(&mut self, header: &ReplyHeader) {
        self.ring.memory()[IN_OUT][..HEADER_LENGTH].copy_from_slice(header.as_bytes());
        self.reply_len = (header.len as usize).saturating_sub(HEADER_LENGTH);
    }

    /// Completes a request that has no reply.
    fn store_no_reply(&mut self, unique: u64) {
        self.store_reply(&ReplyHeader {
            len: HEADER_LENGTH as u32,
            error: 0,
            unique,
        });
    }

    /// Sends a request to this queue. If that fails, the next request of a program has the same
    /// effect.
    fn kick(&self) {
        let (queue, mount_point) = (self.queue, Arc::clone(&self.mount_point));
        let request = move || on_cpu(queue.into(), || statfs(&*mount_point).map(drop));
        // It is not joined: it ends with its reply, or with the connection.
        let _ = thread::Builder::new()
            .name("extant-fuse-kick".to_owned())
            .spawn(request);
    }

    /// The connection has ended; `/dev/fuse` returns how.
    fn end(&mut self) -> Result<Received> {
        match self.channel.receive(self.private.as_mut_slice())? {
            Ok(_) => Err(failed(Errno::PROTO.into())),
            Err(end) => Ok(Received::End(end)),
        }
    }
}

impl Endpoint for RingEndpoint {
    fn receive(&mut self) -> Result<Received> {
        if let Some(reason) = self.start_reason.take() {
            self.ring.register().map_err(failed)?;
            if reason == StartReason::Stall {
                self.kick();
            }
        }
        if let Err(error) = self.ring.exchange(self.reply_len) {
            return match Errno::from_io_error(&error) {
                Some(Errno::NOTCONN | Errno::CONNABORTED) => self.end(),
                _ => Err(failed(error)),
            };
        }
        let header = self.assemble()?;
        self.store_no_reply(header.unique);
        Ok(Received::Request)
    }

    fn request(&mut self) -> (&[u8], Reply<'_>) {
        let RequestRange { buffer, start, end } = self.request;
        let (ring, private) = (self.ring.memory(), self.private.as_mut_slice());
        let (request, reply) = match buffer {
            Buffer::Ring => (ring, &mut private[..PAYLOAD_START + REPLY_LENGTH_MAX]),
            Buffer::Private => (private, ring),
        };
        (&request[start..end], Reply::new(&mut reply[REPLY_START..]))
    }

    fn send(&mut self, len: usize) -> Result<()> {
        let end = REPLY_START + len;
        let ring = self.ring.memory();
        if self.request.buffer == Buffer::Ring {
            let reply = &self.private.as_slice()[REPLY_START..end];
            ring[REPLY_START..end].copy_from_slice(reply);
        }
        let (header, _) =
            ReplyHeader::read_from_prefix(&ring[REPLY_START..]).expect("room for a header");
        self.store_reply(&header);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.ring.reply(self.reply_len).map_err(failed)
    }
}

fn failed(error: io::Error) -> Error {
    Error::from(error).during("exchange requests through io_uring")
}

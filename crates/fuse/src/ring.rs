//! One thread's endpoint of a queue of FUSE over io_uring.
//!
//! A reply is submitted together with the wait for the next request: one system call where
//! `/dev/fuse` needs two. Of two buffers the kernel knows one, which saves copies: a request with
//! much data is answered in the other buffer, and its short reply is copied; a small request is
//! copied itself, and its reply is built where the kernel takes it.
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

use crate::sys::{FuseRing, IN_OUT, OPERATION, PAYLOAD_START, SPARE};
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

/// From so much data on a request stays where it is.
const MUCH: usize = 4096;
/// Where an answer with its header begins.
const REPLY_START: usize = PAYLOAD_START - HEADER_LENGTH;

/// One entry of a queue.
pub(crate) struct RingEndpoint {
    ring: FuseRing,
    channel: Channel,
    queue: u16,
    /// Where the mount is.
    place: Arc<Path>,
    /// Until it is registered.
    beginning: Option<StartReason>,
    /// As long as the ring's memory, and laid out in the same way.
    beside: AlignedBuffer,
    request: Request,
    /// What goes back with the next wait, in the payload.
    reply_len: usize,
}

/// Where the request is.
#[derive(Clone, Copy, Debug)]
struct Request {
    place: Place,
    start: usize,
    end: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Ring,
    Beside,
}

/// Whether this system has what a ring needs.
pub(crate) fn is_available() -> io::Result<()> {
    let nothing = std::fs::File::open("/dev/null")?;
    FuseRing::new(Arc::new(nothing.into()), 0, MUCH).map(drop)
}

impl RingEndpoint {
    pub fn new(
        channel: &Channel,
        queue: u16,
        place: &Arc<Path>,
        reason: StartReason,
    ) -> io::Result<Self> {
        let ring = FuseRing::new(channel.device(), queue, REPLY_LENGTH_MAX)?;
        let beside_len = PAYLOAD_START + REPLY_LENGTH_MAX;
        Ok(Self {
            ring,
            channel: channel.clone(),
            queue,
            place: Arc::clone(place),
            beginning: Some(reason),
            beside: AlignedBuffer::new(beside_len.next_power_of_two())?,
            request: Request {
                place: Place::Ring,
                start: 0,
                end: 0,
            },
            reply_len: 0,
        })
    }

    /// Puts the pieces of a request together.
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
        let place = if payload_len < MUCH {
            let beside = self.beside.as_mut_slice();
            beside[PAYLOAD_START..end].copy_from_slice(&memory[PAYLOAD_START..end]);
            beside[start..][..size_of::<RequestHeader>()].copy_from_slice(header.as_bytes());
            let operation = &memory[OPERATION][..operation_len];
            beside[PAYLOAD_START - operation_len..PAYLOAD_START].copy_from_slice(operation);
            Place::Beside
        } else {
            let operation = OPERATION.start..OPERATION.start + operation_len;
            memory.copy_within(operation, PAYLOAD_START - operation_len);
            memory[start..][..size_of::<RequestHeader>()].copy_from_slice(header.as_bytes());
            Place::Ring
        };
        debug_assert!(start >= SPARE);
        self.request = Request { place, start, end };
        Ok(header)
    }

    /// Notes the answer, which goes with the next wait.
    fn put_answer(&mut self, header: &ReplyHeader) {
        self.ring.memory()[IN_OUT][..HEADER_LENGTH].copy_from_slice(header.as_bytes());
        self.reply_len = (header.len as usize).saturating_sub(HEADER_LENGTH);
    }

    /// Completes a request that has no reply.
    fn put_nothing(&mut self, unique: u64) {
        self.put_answer(&ReplyHeader {
            len: HEADER_LENGTH as u32,
            error: 0,
            unique,
        });
    }

    /// Causes a request. If that fails, the next request of the queue has the same effect.
    fn kick(&self) {
        let (queue, place) = (self.queue, Arc::clone(&self.place));
        let ask = move || on_cpu(queue.into(), || statfs(&*place).map(drop));
        // It is not joined: it ends with its reply, or with the connection.
        let _ = thread::Builder::new()
            .name("extant-fuse-kick".to_owned())
            .spawn(ask);
    }

    /// The connection is over: `/dev/fuse` says how.
    fn end(&mut self) -> Result<Received> {
        match self.channel.receive(self.beside.as_mut_slice())? {
            Ok(_) => Err(failed(Errno::PROTO.into())),
            Err(end) => Ok(Received::End(end)),
        }
    }
}

impl Endpoint for RingEndpoint {
    fn receive(&mut self) -> Result<Received> {
        if let Some(reason) = self.beginning.take() {
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
        self.put_nothing(header.unique);
        Ok(Received::Request)
    }

    fn request(&mut self) -> (&[u8], Reply<'_>) {
        let Request { place, start, end } = self.request;
        let (ring, beside) = (self.ring.memory(), self.beside.as_mut_slice());
        let (request, reply) = match place {
            Place::Ring => (ring, &mut beside[..PAYLOAD_START + REPLY_LENGTH_MAX]),
            Place::Beside => (beside, ring),
        };
        (&request[start..end], Reply::new(&mut reply[REPLY_START..]))
    }

    fn send(&mut self, len: usize) -> Result<()> {
        let end = REPLY_START + len;
        let ring = self.ring.memory();
        if self.request.place == Place::Ring {
            let reply = &self.beside.as_slice()[REPLY_START..end];
            ring[REPLY_START..end].copy_from_slice(reply);
        }
        let (header, _) =
            ReplyHeader::read_from_prefix(&ring[REPLY_START..]).expect("room for a header");
        self.put_answer(&header);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.ring.answer(self.reply_len).map_err(failed)
    }
}

fn failed(error: io::Error) -> Error {
    Error::from(error).during("exchange requests through io_uring")
}

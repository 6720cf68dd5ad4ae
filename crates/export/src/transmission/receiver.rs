//! Parses requests from the byte stream, one batch at a time.
//!
//! - Small requests are received together; their data is copied to aligned memory.
//! - The data of a large write is received in place, except for the part that arrived with its
//!   header.
//! - The data of a refused request is skipped before the reply is sent.

use std::io;
use std::mem;
use std::ops::Range;
use std::time::Instant;

use extant_blockdev::Geometry;
use extant_space::{Error, Result};

use super::batch::Batch;
use super::command::{Action, Command};
use super::{Transmission, against_protocol};
use extant_nbd::socket::Wait;
use extant_nbd::stream::Stream;
use extant_nbd::wire::reply::{ReplyStyle, ReplyTo};
use extant_nbd::wire::request::{RequestHeader, command};
use extant_sys::polling::Polling;

/// Most bytes of one `recv`.
const RECEIVE_BUFFER_BYTES: usize = 128 << 10;
/// Longer data is received in place instead of through the buffer.
const COPIED_BYTES_MAX: usize = 32 << 10;

/// Replies to a synchronous client between two checks of its queue depth: such a client rarely
/// changes.
const CHECKS_SKIPPED: u32 = 15;

/// Source of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// The socket had input.
    Immediately,
    /// The receiver blocked for it.
    AfterWait,
    /// The client disconnected.
    EndOfStream,
}

/// Destination of parsed requests: a batch or the slots of a stream.
pub(super) trait RequestSink {
    /// No command waits here to be run.
    fn is_empty(&self) -> bool;

    /// Whether an action on that number of bytes may be added now.
    fn accepts(&self, action: Action, bytes: usize) -> bool;

    /// Reserves memory for the data of the next request, as a range for [`Command::memory`].
    fn reserve(&mut self, bytes: usize) -> io::Result<Reservation>;

    /// The bytes of a reserved range.
    fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8];

    fn push(&mut self, command: Command);
}

/// Result of [`RequestSink::reserve`].
pub(super) enum Reservation {
    Granted(Range<usize>),
    Full,
}

/// Result of [`Receiver::poll_request`].
pub(super) enum PollOutcome {
    /// A request was added.
    Added,
    /// No whole request has arrived.
    Pending,
    /// A request has arrived that the sink does not accept.
    NotAccepted,
    /// The client disconnected.
    EndOfStream,
}

pub(super) struct Receiver {
    style: ReplyStyle,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes of refused data that have not arrived yet.
    skip: u64,
    /// The request that the data belongs to. Its reply follows the data: a client that is still
    /// sending a request does not expect a reply to it.
    refused: Option<Command>,
    has_ended: bool,
    /// `Some` for a synchronous client: replies until the next check of its queue depth.
    checks_to_skip: Option<u32>,
    /// The last receive emptied the socket.
    is_drained: bool,
    polling: Polling,
}

/// Result of [`Receiver::parse_request`].
enum ParseOutcome {
    Added,
    /// The request has not arrived completely.
    Incomplete,
    /// The sink has to run its requests before another one can be added.
    Deferred,
    /// The client sent `NBD_CMD_DISC`.
    Disconnect,
}

impl Receiver {
    pub(super) fn new(style: ReplyStyle) -> Self {
        Self {
            style,
            buffer: vec![0; RECEIVE_BUFFER_BYTES],
            start: 0,
            end: 0,
            skip: 0,
            refused: None,
            has_ended: false,
            checks_to_skip: None,
            is_drained: false,
            polling: Polling::default(),
        }
    }

    /// The client seems to wait for each reply.
    pub(super) fn is_synchronous(&self) -> bool {
        self.checks_to_skip.is_some()
    }

    /// The client seems to wait for each reply; the next reply checks it.
    pub(super) fn expect_synchronous(&mut self) {
        self.checks_to_skip = Some(0);
    }

    /// Checks whether the client has sent more before the reply to its only pending request.
    pub(super) fn check_queue_depth(&mut self, stream: &Stream) {
        self.checks_to_skip = match self.checks_to_skip {
            Some(left) if left > 0 => Some(left - 1),
            _ if self.start < self.end || stream.has_input() => None,
            _ => Some(CHECKS_SKIPPED),
        };
    }

    /// The client has several requests in flight.
    pub(super) fn set_pipelined(&mut self) {
        self.checks_to_skip = None;
    }

    /// Waits for requests and adds those that have arrived to `batch`, until one does not fit it.
    pub(super) fn fill(
        &mut self,
        batch: &mut Batch<'_>,
        transmission: &Transmission<'_>,
    ) -> Result<Received> {
        let mut arrival = Received::Immediately;
        if self.has_ended {
            return Ok(Received::EndOfStream);
        }
        let device = transmission.agreement.export.device();
        let mut geometry = device.geometry();
        loop {
            match self.parse_request(batch, transmission, &geometry) {
                Ok(ParseOutcome::Added) => {}
                Ok(ParseOutcome::Deferred) => return Ok(arrival),
                Ok(ParseOutcome::Incomplete) if !batch.commands().is_empty() => return Ok(arrival),
                Ok(ParseOutcome::Incomplete) => {
                    let received = self.read_available(transmission.stream);
                    match self.record_end(received)? {
                        Received::EndOfStream => return Ok(Received::EndOfStream),
                        Received::Immediately => {}
                        Received::AfterWait => {
                            arrival = Received::AfterWait;
                            // The device may have been resized meanwhile.
                            geometry = device.geometry();
                        }
                    }
                }
                Ok(ParseOutcome::Disconnect) => {
                    self.has_ended = true;
                    return Ok(if batch.commands().is_empty() {
                        Received::EndOfStream
                    } else {
                        arrival
                    });
                }
                Err(error) => {
                    self.has_ended = true;
                    return Err(error);
                }
            }
        }
    }

    /// Records the end of the stream, whether announced or not.
    fn record_end(&mut self, received: io::Result<Received>) -> Result<Received> {
        let is_between = self.start == self.end && self.skip == 0;
        let result = match received {
            Ok(Received::EndOfStream) if !is_between => Err(against_protocol(
                "the client left in the middle of a request",
            )),
            Ok(arrival) => Ok(arrival),
            Err(source) => Err(Error::from(source).during("receive a request")),
        };
        self.has_ended = !matches!(result, Ok(Received::Immediately | Received::AfterWait));
        result
    }

    /// Adds the next request to `sink` if it has arrived, without blocking.
    pub(super) fn poll_request(
        &mut self,
        sink: &mut impl RequestSink,
        transmission: &Transmission<'_>,
        geometry: &mut Geometry,
    ) -> Result<PollOutcome> {
        if self.has_ended {
            return Ok(PollOutcome::EndOfStream);
        }
        loop {
            match self.parse_request(sink, transmission, geometry) {
                Ok(ParseOutcome::Added) => return Ok(PollOutcome::Added),
                Ok(ParseOutcome::Deferred) => return Ok(PollOutcome::NotAccepted),
                Ok(ParseOutcome::Disconnect) => {
                    self.has_ended = true;
                    return Ok(PollOutcome::EndOfStream);
                }
                Err(error) => {
                    self.has_ended = true;
                    return Err(error);
                }
                Ok(ParseOutcome::Incomplete) => {}
            }
            if mem::take(&mut self.is_drained) {
                return Ok(PollOutcome::Pending);
            }
            let stream = transmission.stream;
            let room = self.free_space();
            let wanted = room.len();
            let received = match stream.read(room, Wait::No) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(PollOutcome::Pending);
                }
                received => received.map(|bytes| {
                    // A short read empties a plain socket. The TLS layer may hold more plaintext.
                    self.is_drained = bytes < wanted && !stream.is_encrypted();
                    self.advance(bytes, Received::Immediately)
                }),
            };
            if self.record_end(received)? == Received::EndOfStream {
                return Ok(PollOutcome::EndOfStream);
            }
            // The device may have been resized meanwhile.
            *geometry = transmission.agreement.export.device().geometry();
        }
    }

    /// Waits until the client sends something, or ends.
    pub(super) fn wait(
        &mut self,
        transmission: &Transmission<'_>,
        geometry: &mut Geometry,
    ) -> Result<()> {
        let received = self.wait_for_input(transmission.stream);
        let received = received.map(|bytes| self.advance(bytes, Received::AfterWait));
        *geometry = transmission.agreement.export.device().geometry();
        self.record_end(received).map(drop)
    }

    fn parse_request(
        &mut self,
        sink: &mut impl RequestSink,
        transmission: &Transmission<'_>,
        geometry: &Geometry,
    ) -> Result<ParseOutcome> {
        let skipped = self.skip.min((self.end - self.start) as u64);
        self.start += skipped as usize;
        self.skip -= skipped;
        if self.skip > 0 {
            return Ok(ParseOutcome::Incomplete);
        }
        if let Some(refused) = &self.refused
            && !sink.accepts(refused.action, 0)
        {
            return Ok(ParseOutcome::Deferred);
        }
        if let Some(refused) = self.refused.take() {
            sink.push(refused);
            return Ok(ParseOutcome::Added);
        }
        let header_size = RequestHeader::size(self.style);
        let bytes = &self.buffer[self.start..self.end];
        if bytes.len() < header_size {
            return Ok(ParseOutcome::Incomplete);
        }
        let Some(header) = RequestHeader::parse(self.style, bytes) else {
            // The requests before it are answered first.
            return if sink.is_empty() {
                Err(against_protocol("no request where one is expected"))
            } else {
                Ok(ParseOutcome::Deferred)
            };
        };
        if header.command == command::DISC {
            return Ok(ParseOutcome::Disconnect);
        }
        let action = Action::of(&header, transmission, geometry);
        let mut new = Command {
            to: ReplyTo {
                cookie: header.cookie,
                offset: header.offset,
            },
            length: header.length,
            action,
            memory: 0..0,
        };
        let payload = header.payload(self.style);
        if let Action::Refuse(..) = action {
            self.start += header_size;
            self.skip = payload;
            self.refused = Some(new);
            return self.parse_request(sink, transmission, geometry);
        }
        let payload = usize::try_from(payload).expect("the length is validated");
        let buffered = payload.min(bytes.len() - header_size);
        let is_whole = buffered == payload;
        let needed = match action {
            Action::Read => header.length as usize,
            _ => payload,
        };
        if !sink.accepts(action, needed) || (!is_whole && !sink.is_empty()) {
            return Ok(ParseOutcome::Deferred);
        }
        if !is_whole && payload <= COPIED_BYTES_MAX {
            return Ok(ParseOutcome::Incomplete);
        }
        new.memory = match sink.reserve(needed) {
            Ok(Reservation::Granted(memory)) => memory,
            Ok(Reservation::Full) => return Ok(ParseOutcome::Deferred),
            Err(source) => return Err(Error::from(source).during("get memory")),
        };
        self.start += header_size;
        if payload > 0 {
            let into = sink.bytes_mut(new.memory.clone());
            self.receive_data(into, buffered, transmission.stream)?;
        }
        sink.push(new);
        Ok(ParseOutcome::Added)
    }

    /// Receives the data of a request, whose first `buffered` bytes are in the buffer.
    fn receive_data(&mut self, into: &mut [u8], buffered: usize, stream: &Stream) -> Result<()> {
        let (copied, missing) = into.split_at_mut(buffered);
        copied.copy_from_slice(&self.buffer[self.start..self.start + buffered]);
        self.start += buffered;
        let received = stream.read_exact(missing, Wait::Forever);
        received.map_err(|source| Error::from(source).during("receive the data of a request"))
    }

    /// Receives the available data; waits when there is nothing.
    fn read_available(&mut self, stream: &Stream) -> io::Result<Received> {
        // The next request of a synchronous client is never there yet: one call, not two.
        if self.checks_to_skip.is_none() {
            match stream.read(self.free_space(), Wait::No) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Ok(self.advance(result?, Received::Immediately)),
            }
        }
        let bytes = self.wait_for_input(stream)?;
        Ok(self.advance(bytes, Received::AfterWait))
    }

    /// Receives what the client sends next: polls the socket for it, then blocks.
    fn wait_for_input(&mut self, stream: &Stream) -> io::Result<usize> {
        let polling = self.polling;
        let room = self.free_space();
        if let Some(received) = polling.poll(|| stream.read(room, Wait::No)) {
            return received;
        }
        let started = Instant::now();
        let received = stream.read(room, Wait::Forever);
        self.polling.adapt(started.elapsed());
        received
    }

    /// The free space of the buffer; moves its contents to the front.
    fn free_space(&mut self) -> &mut [u8] {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        &mut self.buffer[self.end..]
    }

    /// Accounts for bytes that were received into the free space.
    fn advance(&mut self, bytes: usize, arrival: Received) -> Received {
        self.end += bytes;
        match bytes {
            0 => Received::EndOfStream,
            _ => arrival,
        }
    }
}

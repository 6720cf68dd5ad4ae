//! Requests out of the stream of bytes, a batch at a time.
//!
//! Small requests are read together and their data is copied to aligned memory. The data of a large one is read to
//! where it is needed, but for what came with its header. Data of requests that are refused is read past before they are answered.

use std::io;
use std::mem;
use std::ops::Range;

use extant_blockdev::Geometry;
use extant_space::{Error, Result};

use super::batch::Batch;
use super::command::{Action, Command};
use super::{Transmission, against_protocol};
use crate::socket::Wait;
use crate::stream::Stream;
use crate::wire::reply::{ReplyStyle, ReplyTo};
use crate::wire::request::{RequestHeader, command};

/// Bytes read together.
const BUFFER: usize = 128 << 10;
/// Data of more bytes is not read by way of the buffer.
const COPIED_MAX: usize = 32 << 10;

/// A client that waits for each reply mostly goes on doing so.
const LOOKS_LEFT_OUT: u32 = 15;

/// How a batch came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// It was there.
    AtOnce,
    /// It was waited for.
    AfterWait,
    /// There is none, and will not be.
    End,
}

/// Where requests go that were received.
pub(super) trait Intake {
    /// Nothing is there that has to be run before another is received.
    fn is_empty(&self) -> bool;

    /// Whether an action on so many bytes may be added now.
    fn takes(&self, action: Action, bytes: usize) -> bool;

    /// Memory for the data of the next request, as a place for [`Command::memory`].
    fn make_room(&mut self, bytes: usize) -> io::Result<Room>;

    /// The bytes of a place.
    fn bytes_mut(&mut self, place: Range<usize>) -> &mut [u8];

    fn push(&mut self, command: Command);
}

/// Whether memory is left.
pub(super) enum Room {
    Made(Range<usize>),
    Full,
}

/// What a look for one more request has found.
pub(super) enum Look {
    /// It was added.
    Taken,
    /// There is none yet.
    NotThere,
    /// There is one, for somebody else.
    NotHere,
    /// There will be none.
    End,
}

pub(super) struct Receiver {
    style: ReplyStyle,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes of refused data that are still to come.
    skip: u64,
    /// Whose data that is. The reply follows the data: a client that is still sending it does not know of a reply to it.
    refused: Option<Command>,
    has_ended: bool,
    /// The client waits for each reply, as far as was seen: looks that are left out until the next. `None`: it does not.
    alone: Option<u32>,
    /// The last look has read all that the socket had.
    is_drained: bool,
}

/// What became of the next request.
enum Taken {
    Yes,
    /// It is not there as a whole.
    Incomplete,
    /// The batch shall be run without it.
    NotNow,
    /// The client says that it was the last.
    Last,
}

impl Receiver {
    pub(super) fn new(style: ReplyStyle) -> Self {
        Self {
            style,
            buffer: vec![0; BUFFER],
            start: 0,
            end: 0,
            skip: 0,
            refused: None,
            has_ended: false,
            alone: None,
            is_drained: false,
        }
    }

    /// The client waits for each reply, as far as was seen.
    pub(super) fn is_alone(&self) -> bool {
        self.alone.is_some()
    }

    /// The client seems to wait for each reply: whether it does is looked at again.
    pub(super) fn is_alone_now(&mut self) {
        self.alone = Some(0);
    }

    /// Looks whether the client has sent more before it has the reply to the only request at work.
    pub(super) fn look_whether_alone(&mut self, stream: &Stream) {
        self.alone = match self.alone {
            Some(left) if left > 0 => Some(left - 1),
            _ if self.start < self.end || stream.has_input() => None,
            _ => Some(LOOKS_LEFT_OUT),
        };
    }

    /// The client has sent several requests at once.
    pub(super) fn is_not_alone(&mut self) {
        self.alone = None;
    }

    /// Waits for requests and puts all that are there into `batch`, as far as they go together.
    pub(super) fn fill(
        &mut self,
        batch: &mut Batch<'_>,
        transmission: &Transmission<'_>,
    ) -> Result<Arrival> {
        let mut arrival = Arrival::AtOnce;
        if self.has_ended {
            return Ok(Arrival::End);
        }
        let device = transmission.agreement.export.device();
        let mut geometry = device.geometry();
        loop {
            match self.take(batch, transmission, &geometry) {
                Ok(Taken::Yes) => {}
                Ok(Taken::NotNow) => return Ok(arrival),
                Ok(Taken::Incomplete) if !batch.commands().is_empty() => return Ok(arrival),
                Ok(Taken::Incomplete) => {
                    let came = self.read_some(transmission.stream);
                    match self.note(came)? {
                        Arrival::End => return Ok(Arrival::End),
                        Arrival::AtOnce => {}
                        Arrival::AfterWait => {
                            arrival = Arrival::AfterWait;
                            // The device may have been resized meanwhile.
                            geometry = device.geometry();
                        }
                    }
                }
                Ok(Taken::Last) => {
                    self.has_ended = true;
                    return Ok(if batch.commands().is_empty() {
                        Arrival::End
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

    /// The end, expected or not, stays.
    fn note(&mut self, came: io::Result<Arrival>) -> Result<Arrival> {
        let is_between = self.start == self.end && self.skip == 0;
        let result = match came {
            Ok(Arrival::End) if !is_between => Err(against_protocol(
                "the client left in the middle of a request",
            )),
            Ok(arrival) => Ok(arrival),
            Err(source) => Err(Error::from(source).during("receive a request")),
        };
        self.has_ended = !matches!(result, Ok(Arrival::AtOnce | Arrival::AfterWait));
        result
    }

    /// Adds the next request to `intake` if it is there, and does not wait for it.
    pub(super) fn look(
        &mut self,
        intake: &mut impl Intake,
        transmission: &Transmission<'_>,
        geometry: &mut Geometry,
    ) -> Result<Look> {
        if self.has_ended {
            return Ok(Look::End);
        }
        loop {
            match self.take(intake, transmission, geometry) {
                Ok(Taken::Yes) => return Ok(Look::Taken),
                Ok(Taken::NotNow) => return Ok(Look::NotHere),
                Ok(Taken::Last) => {
                    self.has_ended = true;
                    return Ok(Look::End);
                }
                Err(error) => {
                    self.has_ended = true;
                    return Err(error);
                }
                Ok(Taken::Incomplete) => {}
            }
            if mem::take(&mut self.is_drained) {
                return Ok(Look::NotThere);
            }
            let stream = transmission.stream;
            let room = self.make_room();
            let wanted = room.len();
            let came = match stream.read(room, Wait::No) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Look::NotThere);
                }
                came => came.map(|bytes| {
                    // A socket gives all it has; TLS may hold some back, of which the socket does not tell.
                    self.is_drained = bytes < wanted && !stream.is_encrypted();
                    self.came(bytes, Arrival::AtOnce)
                }),
            };
            if self.note(came)? == Arrival::End {
                return Ok(Look::End);
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
        let room = self.make_room();
        let came = transmission.stream.read(room, Wait::Forever);
        let came = came.map(|bytes| self.came(bytes, Arrival::AfterWait));
        *geometry = transmission.agreement.export.device().geometry();
        self.note(came).map(drop)
    }

    fn take(
        &mut self,
        intake: &mut impl Intake,
        transmission: &Transmission<'_>,
        geometry: &Geometry,
    ) -> Result<Taken> {
        let skipped = self.skip.min((self.end - self.start) as u64);
        self.start += skipped as usize;
        self.skip -= skipped;
        if self.skip > 0 {
            return Ok(Taken::Incomplete);
        }
        if let Some(refused) = &self.refused
            && !intake.takes(refused.action, 0)
        {
            return Ok(Taken::NotNow);
        }
        if let Some(refused) = self.refused.take() {
            intake.push(refused);
            return Ok(Taken::Yes);
        }
        let header_size = RequestHeader::size(self.style);
        let bytes = &self.buffer[self.start..self.end];
        if bytes.len() < header_size {
            return Ok(Taken::Incomplete);
        }
        let Some(header) = RequestHeader::parse(self.style, bytes) else {
            // What came before it is answered first.
            return if intake.is_empty() {
                Err(against_protocol("no request where one is expected"))
            } else {
                Ok(Taken::NotNow)
            };
        };
        if header.command == command::DISC {
            return Ok(Taken::Last);
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
            return self.take(intake, transmission, geometry);
        }
        let payload = usize::try_from(payload).expect("judged to be of bounded length");
        let there = payload.min(bytes.len() - header_size);
        let is_whole = there == payload;
        let needed = match action {
            Action::Read => header.length as usize,
            _ => payload,
        };
        if !intake.takes(action, needed) || (!is_whole && !intake.is_empty()) {
            return Ok(Taken::NotNow);
        }
        if !is_whole && payload <= COPIED_MAX {
            return Ok(Taken::Incomplete);
        }
        new.memory = match intake.make_room(needed) {
            Ok(Room::Made(memory)) => memory,
            Ok(Room::Full) => return Ok(Taken::NotNow),
            Err(source) => return Err(Error::from(source).during("get memory")),
        };
        self.start += header_size;
        if payload > 0 {
            let into = intake.bytes_mut(new.memory.clone());
            self.receive_data(into, there, transmission.stream)?;
        }
        intake.push(new);
        Ok(Taken::Yes)
    }

    /// Receives the data of a request, whose first `there` bytes are in the buffer.
    fn receive_data(&mut self, into: &mut [u8], there: usize, stream: &Stream) -> Result<()> {
        let (copied, missing) = into.split_at_mut(there);
        copied.copy_from_slice(&self.buffer[self.start..self.start + there]);
        self.start += there;
        let received = stream.read_exact(missing, Wait::Forever);
        received.map_err(|source| Error::from(source).during("receive the data of a request"))
    }

    /// Reads what there is, and waits when there is nothing.
    fn read_some(&mut self, stream: &Stream) -> io::Result<Arrival> {
        let is_alone = self.alone.is_some();
        let room = self.make_room();
        let mut read = |wait| stream.read(room, wait);
        let (bytes, arrival) = match is_alone {
            // It takes its time.
            true => (read(Wait::Forever)?, Arrival::AfterWait),
            false => match read(Wait::No) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    (read(Wait::Forever)?, Arrival::AfterWait)
                }
                result => (result?, Arrival::AtOnce),
            },
        };
        Ok(self.came(bytes, arrival))
    }

    /// Room in the buffer, behind what it has.
    fn make_room(&mut self) -> &mut [u8] {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        &mut self.buffer[self.end..]
    }

    /// Notes bytes that were read into the room.
    fn came(&mut self, bytes: usize, arrival: Arrival) -> Arrival {
        self.end += bytes;
        match bytes {
            0 => Arrival::End,
            _ => arrival,
        }
    }
}

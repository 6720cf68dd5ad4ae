//! Small reads and writes of a pipelined client, as one stream of transfers of the device.
//!
//! Model: one thread receives requests, starts their transfers and replies to each when it
//! completes. No transfer waits for the slowest of a batch, and requests that arrive while the
//! thread is busy are received together.
//!
//! The stream ends
//! - at the first request of another kind: the thread promotes a follower, which continues with
//!   that request, and replies to the transfers that are still in flight;
//! - when the client becomes synchronous: a plain call has the lower latency.

use std::io;
use std::mem;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use extant_blockdev::{Geometry, Persistence, Transfer, TransferKind, TransferStream};
use extant_space::Result;
use extant_sys::buffer::AlignedBuffer;
use parking_lot::MutexGuard;

use super::Session;
use super::command::{Action, Command};
use super::receiver::{PollOutcome, Receiver, RequestSink, Reservation};
use super::replies::Replies;

/// Transfers that one worker has in flight.
const SLOTS_MAX: usize = 128;
/// Memory of each slot; pages are allocated on first use.
const SLOT_BYTES: usize = 32 << 10;
/// Replies sent together for transfers that complete as they start, such as reads of holes.
const REPLIES_MAX: usize = 64;
/// After this many single requests in a row, each sent after all replies, the client counts as
/// synchronous.
const SINGLE_REQUESTS_MAX: u32 = 3;

/// Memory of a worker's transfers, and the commands that they belong to.
#[derive(Default)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// The slot of a request that was received and not yet started.
    reserved: Option<usize>,
    /// Completed, and not yet replied to.
    ended: Vec<usize>,
}

struct Slot {
    /// `None` while it is in flight.
    buffer: Option<AlignedBuffer>,
    command: Option<Command>,
}

/// One run of a stream.
pub(super) struct Pipeline<'p, 'g, 's> {
    session: &'g Session<'s>,
    /// `None` after the worker gave up the leadership.
    receiver: Option<MutexGuard<'g, Receiver>>,
    /// Promotes a follower to leader.
    promote: &'p dyn Fn(),
    geometry: Geometry,
    slots: &'p mut Slots,
    replies: &'p mut Replies,
    /// Transfers that the device has.
    in_flight: usize,
    /// The transfer that the last call of `next` returned.
    latest: Option<usize>,
    /// A transfer has completed asynchronously: its reply is sent without waiting for others.
    is_reply_due: bool,
    /// Transfers started since nothing was in flight.
    started: usize,
    /// Number of consecutive batches of one request.
    single_requests: u32,
    /// The stream accepts no further request.
    is_draining: bool,
}

impl<'p, 'g, 's> Pipeline<'p, 'g, 's> {
    pub(super) fn new(
        session: &'g Session<'s>,
        receiver: MutexGuard<'g, Receiver>,
        promote: &'p dyn Fn(),
        (slots, replies): (&'p mut Slots, &'p mut Replies),
    ) -> Self {
        let agreement = session.transmission.agreement;
        replies.start(agreement.style);
        Self {
            session,
            receiver: Some(receiver),
            promote,
            geometry: agreement.export.device().geometry(),
            slots,
            replies,
            in_flight: 0,
            latest: None,
            is_reply_due: false,
            started: 0,
            single_requests: 0,
            is_draining: false,
        }
    }

    /// Runs requests until one is not for a stream. Returns the receiver, unless a follower was
    /// promoted.
    pub(super) fn run(mut self) -> Option<MutexGuard<'g, Receiver>> {
        let session = self.session;
        let device = session.transmission.agreement.export.device();
        device.run_stream(&mut self);
        // A device may end a stream on its own.
        if !self.replies.is_empty() {
            self.reply();
        }
        if self.receiver.is_none() {
            session.end_in_flight();
        }
        self.receiver
    }

    /// Sends the replies to completed transfers.
    fn reply(&mut self) {
        let Slots {
            slots, free, ended, ..
        } = &mut *self.slots;
        self.session.send(self.replies, |range| {
            let buffer = slots[range.start / SLOT_BYTES].buffer.as_ref();
            &buffer.expect("a completed transfer returned it").as_slice()[..range.len()]
        });
        free.append(ended);
        self.replies
            .start(self.session.transmission.agreement.style);
        self.is_reply_due = false;
        if self.in_flight == 0 && !self.is_draining {
            self.detect_synchronous_client();
        }
    }

    /// Ends the stream. While transfers are in flight, a promoted follower runs the next request;
    /// otherwise this worker does.
    fn end(&mut self) {
        self.is_draining = true;
        if self.in_flight > 0 {
            self.session.begin_in_flight();
            self.receiver = None;
            (self.promote)();
        }
    }

    /// Receives the next request if it has arrived.
    fn poll_request(&mut self) -> Option<PollOutcome> {
        let transmission = self.session.transmission;
        let receiver = self.receiver.as_mut()?;
        let outcome = receiver.poll_request(self.slots, transmission, &mut self.geometry);
        // The other workers find the end of the stream as well.
        Some(outcome.unwrap_or_else(|error| {
            self.session.record_failure(error);
            PollOutcome::EndOfStream
        }))
    }

    /// Called when nothing is in flight and all replies are sent: ends the stream after
    /// `SINGLE_REQUESTS_MAX` rounds of one request each.
    fn detect_synchronous_client(&mut self) {
        self.single_requests = match mem::take(&mut self.started) {
            // No round.
            0 => self.single_requests,
            1 => self.single_requests + 1,
            _ => 0,
        };
        if self.single_requests == SINGLE_REQUESTS_MAX {
            let receiver = self.receiver.as_mut().expect("nothing is in flight");
            receiver.expect_synchronous();
            self.is_draining = true;
        }
    }

    /// Blocks until the client sends something.
    fn wait(&mut self) {
        let receiver = self.receiver.as_mut().expect("nothing is in flight");
        if let Err(error) = receiver.wait(self.session.transmission, &mut self.geometry) {
            self.session.record_failure(error);
            self.is_draining = true;
        }
    }
}

impl TransferStream for Pipeline<'_, '_, '_> {
    /// Blocks only while nothing is in flight.
    fn next(&mut self) -> Option<Transfer> {
        self.latest = None;
        if self.is_reply_due || self.slots.ended.len() == REPLIES_MAX {
            self.reply();
        }
        while !self.is_draining {
            match self.poll_request()? {
                PollOutcome::Added => {
                    self.in_flight += 1;
                    self.started += 1;
                    let transfer = self.slots.start();
                    self.latest = Some(transfer.tag);
                    return Some(transfer);
                }
                _ if !self.replies.is_empty() => self.reply(),
                PollOutcome::Pending if self.in_flight > 0 => return None,
                PollOutcome::Pending => self.wait(),
                PollOutcome::NotAccepted | PollOutcome::EndOfStream => self.end(),
            }
        }
        None
    }

    fn ended(&mut self, transfer: Transfer, result: Result<()>) {
        let slot = &mut self.slots.slots[transfer.tag];
        let command = slot.command.take().expect("of a transfer in flight");
        let buffer = transfer.memory.into_own().expect("that of the slot");
        let data = &buffer.as_slice()[..transfer.length];
        self.session
            .transmission
            .reply(self.replies, &command, data, result);
        slot.buffer = Some(buffer);
        self.slots.ended.push(transfer.tag);
        self.in_flight -= 1;
        self.is_reply_due |= self.latest != Some(transfer.tag);
    }

    fn input(&self) -> Option<BorrowedFd<'_>> {
        let is_reading = self.receiver.is_some();
        is_reading.then(|| self.session.transmission.stream.input())
    }
}

impl Slots {
    fn start(&mut self) -> Transfer {
        let tag = self.reserved.take().expect("one was received");
        let slot = &mut self.slots[tag];
        let command = slot.command.as_ref().expect("it was pushed");
        Transfer {
            tag,
            kind: match command.action {
                Action::Read => TransferKind::Read,
                _ => TransferKind::Write,
            },
            offset: command.to.offset,
            length: command.length as usize,
            memory: slot.buffer.take().expect("the slot is free").into(),
        }
    }
}

impl RequestSink for Slots {
    /// A received request is started at once; none waits here.
    fn is_empty(&self) -> bool {
        true
    }

    fn accepts(&self, action: Action, bytes: usize) -> bool {
        let is_transfer = matches!(action, Action::Read | Action::Write(Persistence::Cached));
        is_transfer
            && bytes <= SLOT_BYTES
            && (!self.free.is_empty() || self.slots.len() < SLOTS_MAX)
    }

    fn reserve(&mut self, bytes: usize) -> io::Result<Reservation> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(Slot {
                    buffer: Some(AlignedBuffer::new(SLOT_BYTES)?),
                    command: None,
                });
                self.slots.len() - 1
            }
        };
        self.reserved = Some(slot);
        Ok(Reservation::Granted(
            slot * SLOT_BYTES..slot * SLOT_BYTES + bytes,
        ))
    }

    fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        let buffer = self.slots[range.start / SLOT_BYTES].buffer.as_mut();
        &mut buffer.expect("the slot is free").as_mut_slice()[..range.len()]
    }

    fn push(&mut self, command: Command) {
        let slot = self.reserved.expect("a slot is reserved");
        self.slots[slot].command = Some(command);
    }
}

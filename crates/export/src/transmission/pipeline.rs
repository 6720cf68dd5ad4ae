//! Small reads and writes of a client that does not wait, on a device that takes them as a stream.
//!
//! Model: one thread reads what comes, has the device run it and replies to what has ended, all of it as it comes: nobody
//! waits for the slowest of a batch, and what comes in while the thread is at work is taken together. The first request that is
//! something else ends the stream: another thread goes on with it, and this one replies to what is in flight. It ends as well when the
//! client turns out to wait for each reply, to which a plain call is the faster answer.

use std::io;
use std::mem;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::MutexGuard;

use extant_blockdev::{Geometry, Persistence, Transfer, TransferKind, TransferStream};
use extant_space::Result;
use extant_sys::buffer::AlignedBuffer;

use super::Session;
use super::command::{Action, Command};
use super::receiver::{Intake, Look, Receiver, Room};
use super::replies::Replies;

/// Transfers of one thread at a time.
const SLOTS: usize = 128;
/// Memory of each; touched as far as it is used.
const SLOT: usize = 32 << 10;
/// Replies to what ended at once, as reads of zeros do, that are sent together.
const REPLIES_MAX: usize = 64;
/// As often in a row one request alone came after all replies were sent, before the client is taken for one that waits for each.
const LONELY_MAX: u32 = 3;

/// Memory of a thread's transfers, and the commands that they belong to.
#[derive(Default)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Was taken from the client, and not yet by the device.
    taken: Option<usize>,
    /// Ended, and not yet replied to.
    ended: Vec<usize>,
}

struct Slot {
    /// `None` while the device has it.
    buffer: Option<AlignedBuffer>,
    command: Option<Command>,
}

/// One run of a stream.
pub(super) struct Pipeline<'p, 'g, 's> {
    session: &'g Session<'s>,
    /// Until the reading has ended here.
    receiver: Option<MutexGuard<'g, Receiver>>,
    /// Finds somebody else to read on.
    hand_on: &'p dyn Fn(),
    geometry: Geometry,
    slots: &'p mut Slots,
    replies: &'p mut Replies,
    /// What the device has.
    in_flight: usize,
    /// What it was given by the last call.
    latest: Option<usize>,
    /// Something has ended that did not end at once: its reply waits for no others.
    is_due: bool,
    /// Since it had nothing the last time.
    taken: usize,
    /// How often in a row that was one.
    lonely: u32,
    /// There is something to be done first.
    is_over: bool,
}

impl<'p, 'g, 's> Pipeline<'p, 'g, 's> {
    pub(super) fn new(
        session: &'g Session<'s>,
        receiver: MutexGuard<'g, Receiver>,
        hand_on: &'p dyn Fn(),
        (slots, replies): (&'p mut Slots, &'p mut Replies),
    ) -> Self {
        let agreement = session.transmission.agreement;
        replies.start(agreement.style);
        Self {
            session,
            receiver: Some(receiver),
            hand_on,
            geometry: agreement.export.device().geometry(),
            slots,
            replies,
            in_flight: 0,
            latest: None,
            is_due: false,
            taken: 0,
            lonely: 0,
            is_over: false,
        }
    }

    /// Runs what the client sends, as far as it is for a stream. Returns the receiver, unless somebody else has it by now.
    pub(super) fn run(mut self) -> Option<MutexGuard<'g, Receiver>> {
        let session = self.session;
        let device = session.transmission.agreement.export.device();
        device.run_stream(&mut self);
        // A device may end a stream without asking for more.
        if !self.replies.is_empty() {
            self.reply();
        }
        if self.receiver.is_none() {
            session.leave();
        }
        self.receiver
    }

    /// Sends the replies to what has ended.
    fn reply(&mut self) {
        let Slots {
            slots, free, ended, ..
        } = &mut *self.slots;
        self.session.send(self.replies, |place| {
            let buffer = slots[place.start / SLOT].buffer.as_ref();
            &buffer.expect("it is back").as_slice()[..place.len()]
        });
        free.append(ended);
        self.replies
            .start(self.session.transmission.agreement.style);
        self.is_due = false;
        if self.in_flight == 0 && !self.is_over {
            self.judge_client();
        }
    }

    /// Leaves the next request to whoever asks the receiver: to another worker, while there is something in flight here.
    fn end(&mut self) {
        self.is_over = true;
        if self.in_flight > 0 {
            self.session.enter();
            self.receiver = None;
            (self.hand_on)();
        }
    }

    /// Takes the next request, if it is there.
    fn look(&mut self) -> Option<Look> {
        let transmission = self.session.transmission;
        let receiver = self.receiver.as_mut()?;
        let looked = receiver.look(self.slots, transmission, &mut self.geometry);
        // The others find the end as well.
        Some(looked.unwrap_or_else(|error| {
            self.session.note(error);
            Look::End
        }))
    }

    /// Nothing is in flight, and the client has all replies: sees whether that was so after one request, time after time.
    fn judge_client(&mut self) {
        self.lonely = match mem::take(&mut self.taken) {
            0 => self.lonely,
            1 => self.lonely + 1,
            _ => 0,
        };
        if self.lonely == LONELY_MAX {
            let receiver = self.receiver.as_mut().expect("nothing is in flight");
            receiver.is_alone_now();
            self.is_over = true;
        }
    }

    /// Waits for the client.
    fn wait(&mut self) {
        let receiver = self.receiver.as_mut().expect("nothing is in flight");
        if let Err(error) = receiver.wait(self.session.transmission, &mut self.geometry) {
            self.session.note(error);
            self.is_over = true;
        }
    }
}

impl TransferStream for Pipeline<'_, '_, '_> {
    /// Waits while nothing is in flight.
    fn next(&mut self) -> Option<Transfer> {
        self.latest = None;
        if self.is_due || self.slots.ended.len() == REPLIES_MAX {
            self.reply();
        }
        while !self.is_over {
            match self.look()? {
                Look::Taken => {
                    self.in_flight += 1;
                    self.taken += 1;
                    let transfer = self.slots.start();
                    self.latest = Some(transfer.tag);
                    return Some(transfer);
                }
                _ if !self.replies.is_empty() => self.reply(),
                Look::NotThere if self.in_flight > 0 => return None,
                Look::NotThere => self.wait(),
                Look::NotHere | Look::End => self.end(),
            }
        }
        None
    }

    fn ended(&mut self, transfer: Transfer, result: Result<()>) {
        let slot = &mut self.slots.slots[transfer.tag];
        slot.buffer = Some(transfer.buffer);
        let command = slot.command.take().expect("of a transfer in flight");
        self.session
            .transmission
            .reply(self.replies, &command, result);
        self.slots.ended.push(transfer.tag);
        self.in_flight -= 1;
        self.is_due |= self.latest != Some(transfer.tag);
    }

    fn input(&self) -> Option<BorrowedFd<'_>> {
        let is_reading = self.receiver.is_some();
        is_reading.then(|| self.session.transmission.stream.input())
    }
}

impl Slots {
    fn start(&mut self) -> Transfer {
        let tag = self.taken.take().expect("one was received");
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
            buffer: slot.buffer.take().expect("nobody else has it"),
        }
    }
}

impl Intake for Slots {
    /// What was taken is in flight, and nobody waits for it.
    fn is_empty(&self) -> bool {
        true
    }

    fn takes(&self, action: Action, bytes: usize) -> bool {
        let is_transfer = matches!(action, Action::Read | Action::Write(Persistence::Cached));
        is_transfer && bytes <= SLOT && (!self.free.is_empty() || self.slots.len() < SLOTS)
    }

    fn make_room(&mut self, bytes: usize) -> io::Result<Room> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(Slot {
                    buffer: Some(AlignedBuffer::new(SLOT)?),
                    command: None,
                });
                self.slots.len() - 1
            }
        };
        self.taken = Some(slot);
        Ok(Room::Made(slot * SLOT..slot * SLOT + bytes))
    }

    fn bytes_mut(&mut self, place: Range<usize>) -> &mut [u8] {
        let buffer = self.slots[place.start / SLOT].buffer.as_mut();
        &mut buffer.expect("nobody else has it").as_mut_slice()[..place.len()]
    }

    fn push(&mut self, command: Command) {
        let slot = self.taken.expect("room was made");
        self.slots[slot].command = Some(command);
    }
}

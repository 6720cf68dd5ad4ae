//! Commands that run together, and the memory of their data.

use std::io;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use extant_blockdev::{Device, Operation, Persistence, Request};
use extant_space::{ByteRange, Error, Result};
use extant_sys::buffer::AlignedBuffer;

use super::Transmission;
use super::block_status;
use super::command::{Action, Class, Command};
use super::receiver::{Intake, Room};
use super::replies::Replies;

/// Commands of one batch.
const COMMANDS_MAX: usize = 64;
/// Memory for the data of a batch; touched as far as it is used.
const MEMORY: usize = 2 << 20;
/// Data starts at multiples of it, as direct I/O wants.
const ALIGNMENT: usize = 4096;
/// What one cache command reads.
const CACHED_MAX: u64 = 32 << 20;

pub(super) struct Batch<'s> {
    commands: Vec<Command>,
    memory: AlignedBuffer,
    used: usize,
    /// In place of the memory, for a single command that needs more.
    large: Option<MutexGuard<'s, Option<AlignedBuffer>>>,
    large_slot: &'s Mutex<Option<AlignedBuffer>>,
}

impl<'s> Batch<'s> {
    pub(super) fn new(large_slot: &'s Mutex<Option<AlignedBuffer>>) -> io::Result<Self> {
        Ok(Self {
            commands: Vec::with_capacity(COMMANDS_MAX),
            memory: AlignedBuffer::new(MEMORY)?,
            used: 0,
            large: None,
            large_slot,
        })
    }

    pub(super) fn commands(&self) -> &[Command] {
        &self.commands
    }

    /// What the commands have in common.
    pub(super) fn class(&self) -> Class {
        self.commands
            .first()
            .map_or(Class::Transfer, |command| command.action.class())
    }

    pub(super) fn memory(&self) -> &[u8] {
        match self.large.as_deref() {
            Some(Some(large)) => large.as_slice(),
            _ => self.memory.as_slice(),
        }
    }

    /// Forgets the commands; the large buffer is for others again.
    pub(super) fn release(&mut self) {
        self.commands.clear();
        self.used = 0;
        self.large = None;
    }

    /// Runs the commands on the device and collects the replies.
    pub(super) fn execute(&mut self, transmission: &Transmission<'_>, replies: &mut Replies) {
        let agreement = transmission.agreement;
        replies.start(agreement.style);
        let results = self.submit(&**agreement.export.device());
        let mut results = results.into_iter();
        for at in 0..self.commands.len() {
            let command = &self.commands[at];
            let result = match command.action {
                Action::Refuse(error, words) => {
                    replies.refused(command, error, words);
                    continue;
                }
                Action::BlockStatus { .. } => {
                    let payload = &self.memory()[command.memory.clone()];
                    match block_status::look(agreement, command, payload) {
                        Ok(found) => {
                            replies.block_status(command, &found);
                            continue;
                        }
                        Err(error) => Err(error),
                    }
                }
                Action::Cache => {
                    let range = command.range();
                    self.cache(&**agreement.export.device(), range)
                }
                _ => results.next().expect("a result for each request"),
            };
            transmission.reply(replies, &self.commands[at], result);
        }
    }

    /// The results of those commands that are requests of the device, in their order.
    fn submit(&mut self, device: &dyn Device) -> Vec<Result<()>> {
        let Self {
            commands,
            memory,
            large,
            ..
        } = self;
        let mut rest = match large.as_deref_mut() {
            Some(Some(large)) => large.as_mut_slice(),
            _ => memory.as_mut_slice(),
        };
        let mut cut = 0;
        let mut requests = Vec::with_capacity(commands.len());
        let mut syncs = Vec::new();
        for command in &*commands {
            let (_, later) = rest.split_at_mut(command.memory.start.max(cut) - cut);
            let (data, later) = later.split_at_mut(command.memory.len());
            rest = later;
            cut = command.memory.end.max(cut);
            let offset = command.to.offset;
            requests.push(match command.action {
                Action::Read => Request::read(offset, data),
                Action::Write(persistence) => Request::write(offset, data, persistence),
                Action::Flush => Request::new(Operation::Flush),
                Action::Trim(persistence) => {
                    if persistence == Persistence::Fua {
                        syncs.push(requests.len());
                    }
                    Request::new(Operation::Discard(command.range()))
                }
                Action::WriteZeroes(zeroing) => {
                    Request::new(Operation::WriteZeroes(command.range(), zeroing))
                }
                Action::Cache | Action::BlockStatus { .. } | Action::Refuse(..) => continue,
            });
        }
        if !requests.is_empty() {
            device.submit(&mut requests);
        }
        let mut results: Vec<_> = requests.into_iter().map(Request::into_result).collect();
        if !syncs.is_empty() {
            // A discard itself is never durable.
            for at in syncs {
                if results[at].is_ok() {
                    results[at] = device.flush();
                }
            }
        }
        results
    }

    /// Reads, so that caches below have it; what is past the first 32 MiB is left to later reads.
    fn cache(&mut self, device: &dyn Device, range: ByteRange) -> Result<(), Error> {
        let end = range.end().min(range.start().saturating_add(CACHED_MAX));
        let free = self.used;
        let room = MEMORY - free;
        if room < ALIGNMENT {
            return Ok(());
        }
        for piece in ByteRange::new(range.start(), end).chunks(room as u64) {
            let into = &mut self.memory.as_mut_slice()[free..free + piece.len() as usize];
            device.read_at(into, piece.start())?;
        }
        Ok(())
    }
}

impl Intake for Batch<'_> {
    fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Memory is left to be asked for.
    fn takes(&self, action: Action, _: usize) -> bool {
        let fits = self.commands.is_empty() || self.class() == action.class();
        fits && self.commands.len() < COMMANDS_MAX && self.large.is_none()
    }

    /// What does not fit a batch waits for the large buffer.
    fn make_room(&mut self, bytes: usize) -> io::Result<Room> {
        if bytes > MEMORY {
            if !self.commands.is_empty() {
                return Ok(Room::Full);
            }
            let mut large = self
                .large_slot
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let length = bytes.next_power_of_two();
            if large
                .as_ref()
                .is_none_or(|buffer| buffer.as_slice().len() < length)
            {
                *large = None;
                *large = Some(AlignedBuffer::new(length)?);
            }
            self.large = Some(large);
            return Ok(Room::Made(0..bytes));
        }
        if MEMORY - self.used < bytes {
            return Ok(Room::Full);
        }
        let room = self.used..self.used + bytes;
        self.used = room.end.next_multiple_of(ALIGNMENT).min(MEMORY);
        Ok(Room::Made(room))
    }

    fn bytes_mut(&mut self, place: Range<usize>) -> &mut [u8] {
        match self.large.as_deref_mut() {
            Some(Some(large)) => &mut large.as_mut_slice()[place],
            _ => &mut self.memory.as_mut_slice()[place],
        }
    }

    fn push(&mut self, command: Command) {
        self.commands.push(command);
    }
}

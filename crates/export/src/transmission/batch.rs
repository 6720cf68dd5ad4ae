//! A batch: commands that run as one submission, and the memory of their data.

use std::io;
use std::ops::Range;

use extant_blockdev::{Device, Operation, Persistence, Request};
use extant_space::{ByteRange, Error, Result};
use extant_sys::buffer::AlignedBuffer;
use parking_lot::{Mutex, MutexGuard};

use super::Transmission;
use super::block_status;
use super::command::{Action, Class, Command};
use super::receiver::{RequestSink, Reservation};
use super::replies::Replies;

/// Most commands of one batch.
const COMMANDS_MAX: usize = 64;
/// Memory for the data of a batch; pages are allocated on first use.
const DATA_BYTES_MAX: usize = 2 << 20;
/// Alignment of each command's data, for direct I/O.
const DATA_ALIGN: usize = 4096;
/// Most bytes that one `NBD_CMD_CACHE` reads.
const CACHE_READ_BYTES_MAX: u64 = 32 << 20;

pub(super) struct Batch<'s> {
    commands: Vec<Command>,
    memory: AlignedBuffer,
    used: usize,
    /// Replaces the memory for a single command that needs more.
    large: Option<MutexGuard<'s, Option<AlignedBuffer>>>,
    large_slot: &'s Mutex<Option<AlignedBuffer>>,
}

impl<'s> Batch<'s> {
    pub(super) fn new(large_slot: &'s Mutex<Option<AlignedBuffer>>) -> io::Result<Self> {
        Ok(Self {
            commands: Vec::with_capacity(COMMANDS_MAX),
            memory: AlignedBuffer::new(DATA_BYTES_MAX)?,
            used: 0,
            large: None,
            large_slot,
        })
    }

    pub(super) fn commands(&self) -> &[Command] {
        &self.commands
    }

    /// The class that all commands share.
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

    /// Clears the batch and releases the large buffer.
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
                Action::Refuse(error, message) => {
                    replies.refused(command, error, message);
                    continue;
                }
                Action::BlockStatus { .. } => {
                    let payload = &self.memory()[command.memory.clone()];
                    match block_status::query(agreement, command, payload) {
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
            let command = &self.commands[at];
            let data = &self.memory()[command.memory.clone()];
            transmission.reply(replies, command, data, result);
        }
    }

    /// Submits the commands that are device requests; returns their results in order.
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
        let mut rest_start = 0;
        let mut requests = Vec::with_capacity(commands.len());
        let mut syncs = Vec::new();
        for command in &*commands {
            let (_, later) = rest.split_at_mut(command.memory.start.max(rest_start) - rest_start);
            let (data, later) = later.split_at_mut(command.memory.len());
            rest = later;
            rest_start = command.memory.end.max(rest_start);
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
                Action::Assign => Request::new(Operation::Assign(command.range())),
                Action::Cache | Action::BlockStatus { .. } | Action::Refuse(..) => continue,
            });
        }
        if !requests.is_empty() {
            device.submit(&mut requests);
        }
        let mut results: Vec<_> = requests.into_iter().map(Request::into_result).collect();
        if !syncs.is_empty() {
            // The device has no durable discard: FUA is a flush afterwards.
            for at in syncs {
                if results[at].is_ok() {
                    results[at] = device.flush();
                }
            }
        }
        results
    }

    /// Reads the range, at most 32 MiB of it, so that the caches below hold it.
    fn cache(&mut self, device: &dyn Device, range: ByteRange) -> Result<(), Error> {
        let end = range
            .end()
            .min(range.start().saturating_add(CACHE_READ_BYTES_MAX));
        let free = self.used;
        let room = DATA_BYTES_MAX - free;
        if room < DATA_ALIGN {
            return Ok(());
        }
        for piece in ByteRange::new(range.start(), end).chunks(room as u64) {
            let into = &mut self.memory.as_mut_slice()[free..free + piece.len() as usize];
            device.read_at(into, piece.start())?;
        }
        Ok(())
    }
}

impl RequestSink for Batch<'_> {
    fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Memory is checked by `reserve`.
    fn accepts(&self, action: Action, _: usize) -> bool {
        let fits = self.commands.is_empty() || self.class() == action.class();
        fits && self.commands.len() < COMMANDS_MAX && self.large.is_none()
    }

    /// A request larger than a batch blocks until the large buffer is free.
    fn reserve(&mut self, bytes: usize) -> io::Result<Reservation> {
        if bytes > DATA_BYTES_MAX {
            if !self.commands.is_empty() {
                return Ok(Reservation::Full);
            }
            let mut large = self.large_slot.lock();
            let length = bytes.next_power_of_two();
            if large
                .as_ref()
                .is_none_or(|buffer| buffer.as_slice().len() < length)
            {
                *large = None;
                *large = Some(AlignedBuffer::new(length)?);
            }
            self.large = Some(large);
            return Ok(Reservation::Granted(0..bytes));
        }
        if DATA_BYTES_MAX - self.used < bytes {
            return Ok(Reservation::Full);
        }
        let room = self.used..self.used + bytes;
        self.used = room.end.next_multiple_of(DATA_ALIGN).min(DATA_BYTES_MAX);
        Ok(Reservation::Granted(room))
    }

    fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        match self.large.as_deref_mut() {
            Some(Some(large)) => &mut large.as_mut_slice()[range],
            _ => &mut self.memory.as_mut_slice()[range],
        }
    }

    fn push(&mut self, command: Command) {
        self.commands.push(command);
    }
}

//! Reads and writes of a batch, and zeros that are written as data.
//!
//! Memory that is not aligned for direct I/O is copied through a bounce buffer. A call that ended
//! short is made again for its rest; past the page cache for whole blocks, as only those can
//! follow.

use std::io::{self, IoSlice};

use extant_space::{ByteRange, Error, ErrorKind, Result};
use extant_sys::call::{Call, Durability, Memory, ReadParts, WriteParts};

use super::{Batch, Flight, Job};
use crate::Persistence;
use crate::host::limits::TRANSFER;
use crate::host::{HostDevice, bounce};

impl<'s> Batch<'s> {
    pub(super) fn read(
        &self,
        owner: usize,
        offset: u64,
        parts: ReadParts<'s>,
    ) -> io::Result<(Flight<'s>, Call<'s>)> {
        let length = parts.iter().map(|part| part.len()).sum();
        let is_aligned = self.takes(parts.iter().map(|part| &part[..]));
        let (into, bounced) = if is_aligned {
            (Memory::Parts(parts), None)
        } else {
            let buffer = self.device.bounce.take()?;
            (Memory::Buffer(buffer, 0..length), Some(parts))
        };
        let flight = Flight::Transfer {
            owner,
            range: ByteRange::new(offset, offset + length as u64),
            bounced,
        };
        Ok((flight, Call::Read { offset, into }))
    }

    pub(super) fn write(
        &self,
        owner: usize,
        offset: u64,
        parts: WriteParts<'s>,
        persistence: Persistence,
    ) -> io::Result<(Flight<'s>, Call<'s>)> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let is_aligned = self.takes(parts.iter().map(|part| &part[..]));
        let from = if is_aligned {
            Memory::Parts(parts)
        } else {
            let mut buffer = self.device.bounce.take()?;
            let mut rest = buffer.as_mut_slice();
            for part in &parts {
                let (now, later) = rest.split_at_mut(part.len());
                now.copy_from_slice(part);
                rest = later;
            }
            Memory::Buffer(buffer, 0..length)
        };
        let flight = Flight::Transfer {
            owner,
            range: ByteRange::new(offset, offset + length as u64),
            bounced: None,
        };
        let call = Call::Write {
            offset,
            from,
            durability: durability(persistence),
        };
        Ok((flight, call))
    }

    fn takes<'p>(&self, parts: impl ExactSizeIterator<Item = &'p [u8]>) -> bool {
        let block = self.device.geometry.logical_block;
        self.device
            .direct
            .is_none_or(|direct| bounce::is_aligned(direct, block, parts))
    }

    /// Writes the first zeros of `range`; the others wait.
    pub(super) fn write_zeroes(
        &mut self,
        owner: usize,
        range: ByteRange,
        persistence: Persistence,
    ) -> Option<(Flight<'s>, Call<'s>)> {
        if self.results[owner].is_err() {
            return None;
        }
        let end = range.end().min(range.start() + TRANSFER as u64);
        let (now, later) = (
            ByteRange::new(range.start(), end),
            ByteRange::new(end, range.end()),
        );
        if !later.is_empty() {
            let job = Job::Zeroes {
                range: later,
                persistence,
            };
            self.waiting.push_front((owner, job));
        }
        let zeroes = &self.device.zeroes.as_slice()[..now.len() as usize];
        let flight = Flight::Transfer {
            owner,
            range: now,
            bounced: None,
        };
        let call = Call::Write {
            offset: now.start(),
            from: Memory::Parts([IoSlice::new(zeroes)].into_iter().collect()),
            durability: durability(persistence),
        };
        Some((flight, call))
    }

    /// A read or write has ended, perhaps short.
    pub(super) fn transferred(
        &mut self,
        (owner, range, bounced): (usize, ByteRange, Option<ReadParts<'s>>),
        mut call: Call<'s>,
        result: io::Result<usize>,
    ) {
        let Some(result) = self.device.judge_transfer(&mut call, range, result) else {
            let flight = Flight::Transfer {
                owner,
                range,
                bounced,
            };
            return self.again.push((flight, call));
        };
        if let Some(buffer) = call.into_buffer() {
            if result.is_ok() {
                let mut rest = buffer.as_slice();
                for mut part in bounced.into_iter().flatten() {
                    let (now, later) = rest.split_at(part.len());
                    part.copy_from_slice(now);
                    rest = later;
                }
            }
            self.device.bounce.put(buffer);
        }
        if let Err(error) = result {
            self.fail(owner, error);
        }
    }
}

impl HostDevice {
    /// Outcome of a read or write of `range` from the result of its call; `None` when the call,
    /// which is advanced, has to be made again for the rest.
    pub(in crate::host) fn judge_transfer(
        &self,
        call: &mut Call<'_>,
        range: ByteRange,
        result: io::Result<usize>,
    ) -> Option<Result<()>> {
        // Past the page cache only whole blocks can follow.
        let unit = self
            .direct
            .map_or(1, |_| self.geometry.logical_block as usize);
        match result.map(|moved| moved - moved % unit) {
            Ok(0) => {
                let missing = ByteRange::new(range.end() - call.remaining() as u64, range.end());
                let detail = match call {
                    Call::Read { .. } => "the file ends before the device does",
                    _ => "nothing was written, and no reason given",
                };
                let error = Error::new(ErrorKind::Io).detail(detail);
                Some(Err(error.in_range(missing)))
            }
            Ok(moved) => {
                call.advance(moved);
                (call.remaining() == 0).then_some(Ok(()))
            }
            Err(source) => Some(Err(Error::from(source).in_range(range))),
        }
    }
}

fn durability(persistence: Persistence) -> Durability {
    match persistence {
        Persistence::Cached => Durability::Cached,
        Persistence::Fua => Durability::Durable,
    }
}

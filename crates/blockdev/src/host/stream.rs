//! A stream of reads and writes, past the page cache.

use std::io;
use std::os::fd::BorrowedFd;

use extant_space::{ByteRange, Result};
use extant_sys::call::{Call, Durability, Memory};
use extant_sys::queue::CallQueue;

use super::HostDevice;
use super::batch::is_interrupted;
use crate::foreground::ForegroundRequest;
use crate::{Device, Transfer, TransferKind, TransferMemory, TransferStream};

/// A stream on its way, as calls.
pub(super) struct Streamed<'s> {
    device: &'s HostDevice,
    stream: &'s mut dyn TransferStream,
    /// By tag.
    flights: Vec<Option<Flight<'s>>>,
    /// Calls to be made again, or for their rest.
    again: Vec<(usize, Call<'static>)>,
}

/// Purpose of a call in flight.
struct Flight<'s> {
    kind: TransferKind,
    offset: u64,
    length: usize,
    _request: ForegroundRequest<'s>,
}

impl<'s> Streamed<'s> {
    pub(super) fn new(device: &'s HostDevice, stream: &'s mut dyn TransferStream) -> Self {
        Self {
            device,
            stream,
            flights: Vec::new(),
            again: Vec::new(),
        }
    }

    fn start(&mut self, transfer: Transfer) -> (usize, Call<'static>) {
        let Transfer {
            tag,
            kind,
            offset,
            length,
            memory,
        } = transfer;
        if tag >= self.flights.len() {
            self.flights.resize_with(tag + 1, || None);
        }
        let before = self.flights[tag].replace(Flight {
            kind,
            offset,
            length,
            _request: self.device.foreground.begin_request(),
        });
        assert!(before.is_none(), "two transfers with the tag {tag}");
        let call = match kind {
            TransferKind::Read => Call::Read {
                offset,
                into: call_memory(memory, length),
            },
            TransferKind::Write => Call::Write {
                offset,
                from: call_memory(memory, length),
                durability: Durability::Cached,
            },
        };
        (tag, call)
    }

    fn end(&mut self, transfer: Transfer, result: Result<()>) {
        let path = &self.device.path;
        let result = result.map_err(|error| error.at(path).during(transfer.kind.name()));
        self.stream.ended(transfer, result);
    }
}

impl CallQueue<'static> for Streamed<'_> {
    fn next(&mut self) -> Option<(usize, Call<'static>)> {
        if let Some(again) = self.again.pop() {
            return Some(again);
        }
        loop {
            let transfer = self.stream.next()?;
            let admitted = transfer.admit(&self.device.geometry());
            match admitted {
                Ok(()) if transfer.length > 0 => return Some(self.start(transfer)),
                result => self.end(transfer, result),
            }
        }
    }

    fn ended(&mut self, tag: usize, mut call: Call<'static>, result: io::Result<usize>) {
        if let Err(error) = &result
            && is_interrupted(error)
        {
            return self.again.push((tag, call));
        }
        let flight = self.flights[tag]
            .as_ref()
            .expect("a call that was handed out");
        let range = ByteRange::new(flight.offset, flight.offset + flight.length as u64);
        let Some(result) = self.device.judge_transfer(&mut call, range, result) else {
            return self.again.push((tag, call));
        };
        let flight = self.flights[tag].take().expect("checked above");
        let transfer = Transfer {
            tag,
            kind: flight.kind,
            offset: flight.offset,
            length: flight.length,
            memory: transfer_memory(call),
        };
        self.end(transfer, result);
    }

    fn input(&self) -> Option<BorrowedFd<'_>> {
        self.stream.input()
    }
}

fn call_memory<P>(memory: TransferMemory, length: usize) -> Memory<P> {
    match memory {
        TransferMemory::Own(buffer) => Memory::Buffer(buffer, 0..length),
        TransferMemory::Shared(shared) => {
            assert_eq!(shared.remaining(), length, "memory of another length");
            Memory::Shared(shared)
        }
    }
}

fn transfer_memory(call: Call<'_>) -> TransferMemory {
    match call {
        Call::Read {
            into: Memory::Shared(mut shared),
            ..
        }
        | Call::Write {
            from: Memory::Shared(mut shared),
            ..
        } => {
            shared.rewind();
            TransferMemory::Shared(shared)
        }
        call => call.into_buffer().expect("the transfer's own").into(),
    }
}

#[cfg(test)]
mod tests;

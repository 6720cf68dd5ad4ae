//! A stream of reads and writes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use extant_blockdev::{Device, Transfer, TransferKind, TransferStream};
use extant_space::Result;
use rustix::event::{PollFd, PollFlags, poll};

use super::RbdDevice;
use crate::sys::{Aio, Flights, Memory};

/// A wait without input ends by the end of a request; this is no more than a bound.
const WAIT: Duration = Duration::from_secs(1);

/// A stream on its way.
pub(super) struct Streamed<'s> {
    device: &'s RbdDevice,
    stream: &'s mut dyn TransferStream,
    flights: Arc<Flights>,
    /// By tag.
    started: Vec<Option<Started>>,
}

struct Started {
    kind: TransferKind,
    offset: u64,
}

impl<'s> Streamed<'s> {
    pub(super) fn new(
        device: &'s RbdDevice,
        stream: &'s mut dyn TransferStream,
    ) -> io::Result<Self> {
        Ok(Self {
            device,
            stream,
            flights: Flights::with_event()?,
            started: Vec::new(),
        })
    }

    /// Runs the stream until none is in flight and there is no next one.
    pub(super) fn run(&mut self) {
        loop {
            while let Some(transfer) = self.stream.next() {
                self.start(transfer);
                self.collect();
            }
            // Read before the results are taken: all are there if it is 0.
            let in_flight = self.flights.in_flight();
            match self.collect() {
                0 if in_flight == 0 => return,
                0 => self.wait(),
                _ => {}
            }
        }
    }

    fn start(&mut self, transfer: Transfer) {
        let admitted = transfer.admit(&self.device.geometry());
        if admitted.is_err() || transfer.length == 0 {
            return self.end(transfer, admitted);
        }
        let Transfer {
            tag,
            kind,
            offset,
            length,
            memory,
        } = transfer;
        if tag >= self.started.len() {
            self.started.resize_with(tag + 1, || None);
        }
        let before = self.started[tag].replace(Started { kind, offset });
        assert!(before.is_none(), "two transfers with the tag {tag}");
        let aio = match kind {
            TransferKind::Read => Aio::Read { offset },
            TransferKind::Write => Aio::Write { offset },
        };
        let buffer = memory.into_own().expect("shared memory is not taken");
        let memory = Memory::Owned(buffer, length);
        self.flights
            .start(self.device.image.handle(), tag, aio, memory);
    }

    /// Hands out the results; returns how many there were.
    fn collect(&mut self) -> usize {
        let ended = self.flights.take();
        let count = ended.len();
        for ended in ended {
            let Started { kind, offset } = self.started[ended.tag]
                .take()
                .expect("a request that was started");
            let Memory::Owned(buffer, length) = ended.memory else {
                unreachable!("the request's own memory");
            };
            let transfer = Transfer {
                tag: ended.tag,
                kind,
                offset,
                length,
                memory: buffer.into(),
            };
            let result = self.device.result_of(Some(transfer.range()), ended.result);
            self.end(transfer, result);
        }
        count
    }

    fn end(&mut self, transfer: Transfer, result: Result<()>) {
        let place = self.device.image.place();
        let result = result.map_err(|error| error.at(place).during(transfer.kind.name()));
        self.stream.ended(transfer, result);
    }

    /// Until a request has ended, or there is input.
    fn wait(&self) {
        let (Some(event), Some(input)) = (self.flights.event(), self.stream.input()) else {
            return self.flights.wait(WAIT);
        };
        let mut polled = [
            PollFd::from_borrowed_fd(event, PollFlags::IN),
            PollFd::from_borrowed_fd(input, PollFlags::IN),
        ];
        // Interrupted by a signal, it is repeated by the loop.
        let _ = poll(&mut polled, None);
    }
}

impl Drop for Streamed<'_> {
    /// In a panic of the stream too, the device is not left with requests in flight.
    fn drop(&mut self) {
        while self.flights.in_flight() > 0 {
            self.flights.wait(WAIT);
            drop(self.flights.take());
        }
    }
}

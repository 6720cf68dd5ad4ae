//! A stream that counts its transfers.
//!
//! The clock is read once for transfers that are started together, and once for those that have
//! ended together: for small transfers from memory it would be a noticeable part of their time.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use extant_space::Result;

use super::{Shard, nanoseconds_between};
use crate::{Transfer, TransferStream};

pub(super) struct Counted<'s> {
    shard: &'s Shard,
    stream: &'s mut dyn TransferStream,
    /// Time of submission of each, by tag.
    started: Vec<Instant>,
    in_flight: usize,
    /// `None` after a call that found no transfer: time passes before the next one.
    latest: Option<Call>,
    /// When the first of the latest calls in a row returned or was made.
    now: Instant,
}

/// A call of the stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Next,
    Ended,
}

impl<'s> Counted<'s> {
    pub(super) fn new(shard: &'s Shard, stream: &'s mut dyn TransferStream) -> Self {
        Self {
            shard,
            stream,
            started: Vec::new(),
            in_flight: 0,
            latest: None,
            now: Instant::now(),
        }
    }

    fn read_clock(&mut self, call: Call) {
        // A call for the next transfer may have blocked if none was in flight.
        if self.latest != Some(call) || self.in_flight == 0 {
            self.latest = Some(call);
            self.now = Instant::now();
        }
    }
}

impl TransferStream for Counted<'_> {
    fn next(&mut self) -> Option<Transfer> {
        let Some(transfer) = self.stream.next() else {
            self.latest = None;
            return None;
        };
        self.read_clock(Call::Next);
        self.in_flight += 1;
        if transfer.tag >= self.started.len() {
            self.started.resize(transfer.tag + 1, self.now);
        }
        self.started[transfer.tag] = self.now;
        Some(transfer)
    }

    fn ended(&mut self, transfer: Transfer, result: Result<()>) {
        self.read_clock(Call::Ended);
        self.in_flight -= 1;
        let nanoseconds = nanoseconds_between(self.started[transfer.tag], self.now);
        let bytes = Some(transfer.length as u64);
        let kind = transfer.kind.into();
        self.shard.count(kind, bytes, nanoseconds, result.is_err());
        self.stream.ended(transfer, result);
    }

    fn input(&self) -> Option<BorrowedFd<'_>> {
        self.stream.input()
    }
}

//! A stream that counts its transfers.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use extant_space::Result;

use super::{Shard, nanoseconds_since};
use crate::{Transfer, TransferStream};

pub(super) struct Counted<'s> {
    shard: &'s Shard,
    stream: &'s mut dyn TransferStream,
    /// Time of submission of each, by tag.
    started: Vec<Instant>,
}

impl<'s> Counted<'s> {
    pub(super) fn new(shard: &'s Shard, stream: &'s mut dyn TransferStream) -> Self {
        Self {
            shard,
            stream,
            started: Vec::new(),
        }
    }
}

impl TransferStream for Counted<'_> {
    fn next(&mut self) -> Option<Transfer> {
        let transfer = self.stream.next()?;
        let now = Instant::now();
        if transfer.tag >= self.started.len() {
            self.started.resize(transfer.tag + 1, now);
        }
        self.started[transfer.tag] = now;
        Some(transfer)
    }

    fn ended(&mut self, transfer: Transfer, result: Result<()>) {
        let nanoseconds = nanoseconds_since(self.started[transfer.tag]);
        let bytes = Some(transfer.length as u64);
        let kind = transfer.kind.into();
        self.shard.count(kind, bytes, nanoseconds, result.is_err());
        self.stream.ended(transfer, result);
    }

    fn input(&self) -> Option<BorrowedFd<'_>> {
        self.stream.input()
    }
}

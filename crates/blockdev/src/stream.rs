//! Reads and writes that arrive while others are in flight.
//!
//! A batch returns as a whole. A server whose clients keep many requests in flight, and which
//! replies to each as it ends, passes a stream to the device instead: the device asks for the next
//! transfers whenever some have ended or more have arrived, and nothing waits for the slowest.

use std::os::fd::BorrowedFd;

use extant_space::{ByteRange, Result};
use extant_sys::buffer::AlignedBuffer;
use smallvec::smallvec;

use crate::{Operation, OperationKind, Persistence};

/// A read or write that owns its memory, so that it can be in flight independently of the caller.
#[derive(Debug)]
pub struct Transfer {
    /// Which of the stream's own it is: less than the stream's maximum in flight.
    pub tag: usize,
    /// Direction of the transfer.
    pub kind: TransferKind,
    /// First byte on the device.
    pub offset: u64,
    /// Bytes; those from the start of the buffer.
    pub length: usize,
    /// Source or destination of the data.
    pub buffer: AlignedBuffer,
}

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferKind {
    /// Fills the buffer.
    Read,
    /// Writes the buffer, which is durable after the next flush.
    Write,
}

impl TransferKind {
    /// The verb, for errors and statistics.
    pub fn name(self) -> &'static str {
        OperationKind::from(self).name()
    }
}

impl From<TransferKind> for OperationKind {
    fn from(kind: TransferKind) -> Self {
        match kind {
            TransferKind::Read => Self::Read,
            TransferKind::Write => Self::Write,
        }
    }
}

impl Transfer {
    /// Minimum alignment of every buffer, bytes.
    pub const ALIGNMENT: u32 = 4096;

    /// The bytes of the device, which has them.
    pub fn range(&self) -> ByteRange {
        ByteRange::new(self.offset, self.offset + self.length as u64)
    }

    /// The same as an operation of a batch.
    pub fn operation(&mut self) -> Operation<'_> {
        let bytes = &mut self.buffer.as_mut_slice()[..self.length];
        match self.kind {
            TransferKind::Read => Operation::Read {
                offset: self.offset,
                into: smallvec![bytes],
            },
            TransferKind::Write => Operation::Write {
                offset: self.offset,
                from: smallvec![&*bytes],
                persistence: Persistence::Cached,
            },
        }
    }
}

/// Source of transfers, and receiver of their results.
pub trait TransferStream {
    /// The next transfer, if there is one: never blocks while one is in flight. Called again when
    /// some have ended or there is input, and until it returns `None` before the device waits for
    /// either. A device that accepts no more stops calling it, and ends the stream when the
    /// transfers in flight have ended.
    fn next(&mut self) -> Option<Transfer>;

    /// One has ended, and is returned unchanged.
    fn ended(&mut self, transfer: Transfer, result: Result<()>);

    /// Becomes readable when there may be a next one. `None`: there will be none but by the end of
    /// another.
    fn input(&self) -> Option<BorrowedFd<'_>>;
}

//! Reads and writes that arrive while others are in flight.
//!
//! A batch returns as a whole. A server whose clients keep many requests in flight, and which
//! replies to each as it ends, passes a stream to the device instead: the device asks for the next
//! transfers whenever some have ended or more have arrived, and nothing waits for the slowest.

use std::os::fd::BorrowedFd;

use extant_space::{ByteRange, Result};
use extant_sys::buffer::AlignedBuffer;
use extant_sys::shared::SharedMemory;
use smallvec::smallvec;

use crate::{Geometry, Operation, OperationKind, Persistence};

/// A read or write that keeps its memory, so that it can be in flight independently of the caller.
#[derive(Debug)]
pub struct Transfer {
    /// Which of the stream's own it is: less than the stream's maximum in flight.
    pub tag: usize,
    /// Direction of the transfer.
    pub kind: TransferKind,
    /// First byte on the device.
    pub offset: u64,
    /// Bytes; those from the start of the memory.
    pub length: usize,
    /// Source or destination of the data.
    pub memory: TransferMemory,
}

/// Memory of a transfer.
#[derive(Debug)]
pub enum TransferMemory {
    /// Used by the transfer alone.
    Own(AlignedBuffer),
    /// As long as the transfer, and changed by a virtual machine at any time. Only for a stream of
    /// a device that [takes it](crate::Device::shared_memory_alignment).
    Shared(SharedMemory),
}

impl TransferMemory {
    /// The buffer of a transfer that has one.
    pub fn into_own(self) -> Option<AlignedBuffer> {
        match self {
            Self::Own(buffer) => Some(buffer),
            Self::Shared(_) => None,
        }
    }
}

impl From<AlignedBuffer> for TransferMemory {
    fn from(buffer: AlignedBuffer) -> Self {
        Self::Own(buffer)
    }
}

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferKind {
    /// Fills the memory.
    Read,
    /// Writes the memory, which is durable after the next flush.
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
    /// Minimum alignment of every own buffer, bytes.
    pub const ALIGNMENT: u32 = 4096;

    /// The bytes of the device, which has them.
    pub fn range(&self) -> ByteRange {
        ByteRange::new(self.offset, self.offset + self.length as u64)
    }

    /// Refuses it if `geometry` does: [`Geometry::admit`].
    pub fn admit(&self, geometry: &Geometry) -> Result<()> {
        let changes = self.kind == TransferKind::Write;
        let extent = (self.offset, self.length as u64);
        geometry.admit_extent(self.kind.name(), changes, Some(extent))
    }

    /// The same as an operation of a batch.
    ///
    /// # Panics
    /// When the memory is shared.
    pub fn operation(&mut self) -> Operation<'_> {
        match &mut self.memory {
            TransferMemory::Own(buffer) => operation(
                self.kind,
                self.offset,
                &mut buffer.as_mut_slice()[..self.length],
            ),
            TransferMemory::Shared(_) => panic!("a batch uses memory of its own"),
        }
    }

    /// Calls `run` with the same as an operation of a batch. Shared memory is copied, so that the
    /// bytes of a write do not change while it uses them.
    pub fn run_as_batch(&mut self, run: impl FnOnce(Operation<'_>) -> Result<()>) -> Result<()> {
        let TransferMemory::Shared(shared) = &self.memory else {
            return run(self.operation());
        };
        let mut copy = vec![0; self.length];
        if self.kind == TransferKind::Write {
            shared.copy_to(&mut copy);
        }
        run(operation(self.kind, self.offset, &mut copy))?;
        if self.kind == TransferKind::Read {
            shared.copy_from(&copy);
        }
        Ok(())
    }

    /// Replaces the memory's bytes by zeros.
    pub fn fill_zero(&mut self) {
        match &mut self.memory {
            TransferMemory::Own(buffer) => buffer.as_mut_slice()[..self.length].fill(0),
            TransferMemory::Shared(shared) => shared.fill_zero(),
        }
    }
}

fn operation(kind: TransferKind, offset: u64, bytes: &mut [u8]) -> Operation<'_> {
    match kind {
        TransferKind::Read => Operation::Read {
            offset,
            into: smallvec![bytes],
        },
        TransferKind::Write => Operation::Write {
            offset,
            from: smallvec![&*bytes],
            persistence: Persistence::Cached,
        },
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

//! Requests to a device.

use extant_space::{ByteRange, Error, Result};
use smallvec::{SmallVec, smallvec};

/// Destination of a read, one part after the other.
pub type ReadBuffers<'a> = SmallVec<[&'a mut [u8]; 1]>;

/// Source of a write, one part after the other.
pub type WriteBuffers<'a> = SmallVec<[&'a [u8]; 1]>;

/// When a write is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// After the next flush.
    Cached,
    /// When it completes (force unit access).
    Fua,
}

/// The space of a range after it was zeroed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroedSpace {
    /// The range may become a hole.
    MayUnmap,
    /// The range stays, or becomes, allocated: a later write to it cannot fail with `NoSpace`.
    Allocated,
    /// The range is allocated and, after the next flush, written in every layer below: a later
    /// overwrite changes no metadata there. A layer that cannot do this without sending data
    /// writes zeros as data. Copy-on-write layers and thin disks cannot keep the promise; they
    /// are not detected here.
    Written,
}

/// Whether zeros may cost what writing them costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speed {
    /// They may be written as data.
    Any,
    /// Only when no data has to be sent; else the request fails with `Unsupported` and changes
    /// nothing.
    OnlyIfFast,
}

/// Method of zeroing a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zeroing {
    /// The space of the range afterwards.
    pub space: ZeroedSpace,
    /// Whether zeros may be written as data.
    pub speed: Speed,
    /// When the zeros are durable.
    pub persistence: Persistence,
}

impl Zeroing {
    /// Zeros that stay allocated, at any cost.
    pub const ALLOCATED: Self = Self {
        space: ZeroedSpace::Allocated,
        speed: Speed::Any,
        persistence: Persistence::Cached,
    };
    /// Zeros that are written in every layer below, at any cost.
    pub const WRITTEN: Self = Self {
        space: ZeroedSpace::Written,
        ..Self::ALLOCATED
    };
    /// Zeros by any method.
    pub const ANY: Self = Self {
        space: ZeroedSpace::MayUnmap,
        ..Self::ALLOCATED
    };
}

/// One operation. Offsets and lengths are in bytes.
#[derive(Debug)]
pub enum Operation<'a> {
    /// Fills the buffers.
    Read {
        /// First byte.
        offset: u64,
        /// Destination of the data.
        into: ReadBuffers<'a>,
    },
    /// Writes the buffers.
    Write {
        /// First byte.
        offset: u64,
        /// Source of the data.
        from: WriteBuffers<'a>,
        /// When it is durable.
        persistence: Persistence,
    },
    /// Makes every write durable that completed before this was submitted.
    Flush,
    /// The contents are no longer needed. Later reads are undefined until the next write, but is
    /// never the data of another user of the storage. May do nothing.
    Discard(ByteRange),
    /// The range reads as zeros.
    WriteZeroes(ByteRange, Zeroing),
    /// Gives the range its place now, in as few pieces as possible: data is preserved, none is
    /// written, existing space is not changed, shared (copy-on-write) space stays shared.
    Assign(ByteRange),
}

impl Operation<'_> {
    /// The verb, for errors and statistics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Read { .. } => "read",
            Self::Write { .. } => "write",
            Self::Flush => "flush",
            Self::Discard(_) => "discard",
            Self::WriteZeroes(..) => "write zeroes",
            Self::Assign(_) => "assign",
        }
    }

    /// Whether the device is changed by it.
    pub fn changes(&self) -> bool {
        !matches!(self, Self::Read { .. } | Self::Flush)
    }

    /// The bytes it is about; `None` for a flush.
    ///
    /// # Panics
    /// When the range ends past 64 bits; an admitted operation does not.
    pub fn range(&self) -> Option<ByteRange> {
        let (start, length) = self.start_and_length()?;
        Some(ByteRange::at(start, length).expect("an admitted range"))
    }

    pub(crate) fn start_and_length(&self) -> Option<(u64, u64)> {
        Some(match self {
            Self::Read { offset, into } => {
                (*offset, into.iter().map(|part| part.len() as u64).sum())
            }
            Self::Write { offset, from, .. } => {
                (*offset, from.iter().map(|part| part.len() as u64).sum())
            }
            Self::Flush => return None,
            Self::Discard(range) | Self::WriteZeroes(range, _) | Self::Assign(range) => {
                (range.start(), range.len())
            }
        })
    }
}

/// An operation and, once submitted, its result.
#[derive(Debug)]
pub struct Request<'a> {
    /// The operation.
    pub operation: Operation<'a>,
    result: Option<Result<()>>,
}

impl<'a> Request<'a> {
    /// A request for `operation`.
    pub fn new(operation: Operation<'a>) -> Self {
        Self {
            operation,
            result: None,
        }
    }

    /// A read into one buffer.
    pub fn read(offset: u64, into: &'a mut [u8]) -> Self {
        Self::new(Operation::Read {
            offset,
            into: smallvec![into],
        })
    }

    /// A write from one buffer.
    pub fn write(offset: u64, from: &'a [u8], persistence: Persistence) -> Self {
        Self::new(Operation::Write {
            offset,
            from: smallvec![from],
            persistence,
        })
    }

    /// Records the result; the first error is kept. For drivers and wrappers.
    pub fn complete(&mut self, result: Result<()>) {
        match &self.result {
            Some(Err(_)) => {}
            _ => self.result = Some(result),
        }
    }

    /// The result so far; `None` before it was submitted.
    pub fn result(&self) -> Option<&Result<()>> {
        self.result.as_ref()
    }

    /// The result.
    ///
    /// # Panics
    /// When the request was never submitted.
    pub fn into_result(self) -> Result<()> {
        self.result
            .expect("a device completes every request")
            .map_err(|error: Error| error.during(self.operation.name()))
    }
}

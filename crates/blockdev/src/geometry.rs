//! Geometry of a device: size, units, limits of one request, and features.

use bitflags::bitflags;
use extant_space::{ByteRange, Error, ErrorKind, Result};

use crate::Operation;

/// The unit of addresses in the kernel's block layer and in virtio, whatever the logical block is.
pub const SECTOR_BYTES: u64 = 512;

/// Size, units and limits of a device. All numbers are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes that can be addressed; a multiple of `logical_block`.
    pub size: u64,
    /// Every offset and length is a multiple of it; a power of two, 1 where any byte can be written
    /// alone.
    pub logical_block: u32,
    /// Unit that the device writes without a read first; a power of two, at least `logical_block`.
    pub physical_block: u32,
    /// Limits at which requests are split.
    pub limits: Limits,
    /// Supported features.
    pub features: Features,
}

/// The most that one request below the driver carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one read or write; a multiple of `logical_block`.
    pub transfer: u64,
    /// One discard.
    pub discard: RangeLimit,
    /// One write zeroes.
    pub write_zeroes: RangeLimit,
    /// One assign.
    pub assign: RangeLimit,
}

/// The limits of an operation that carries a range and no data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeLimit {
    /// Bytes of one request.
    pub bytes: u64,
    /// The unit in which it has an effect; a power of two. Smaller ranges are legal and may do
    /// nothing.
    pub granularity: u64,
}

bitflags! {
    /// Features of a device beyond reading, writing and flushing.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Features: u32 {
        /// Nothing may be changed.
        const READ_ONLY = 1 << 0;
        /// Writes may stay in a volatile cache until a flush.
        const VOLATILE_CACHE = 1 << 1;
        /// A write with FUA costs less than a write and a flush.
        const FUA = 1 << 2;
        /// Discard has an effect.
        const DISCARD = 1 << 3;
        /// Zeros may be written without sending them.
        const WRITE_ZEROES = 1 << 4;
        /// Write zeroes may free space if the caller allows it.
        const WRITE_ZEROES_UNMAP = 1 << 5;
        /// Write zeroes can leave the space in place, written.
        const WRITE_ZEROES_ALLOCATE = 1 << 6;
        /// Assign has an effect.
        const ASSIGN = 1 << 7;
        /// Status distinguishes holes and zeros from data.
        const STATUS = 1 << 8;
        /// Extents distinguish unwritten from written space.
        const EXTENTS = 1 << 9;
    }
}

impl Limits {
    /// No limits, for devices that have none.
    pub const NONE: Self = Self {
        transfer: u64::MAX,
        discard: RangeLimit::NONE,
        write_zeroes: RangeLimit::NONE,
        assign: RangeLimit::NONE,
    };
}

impl RangeLimit {
    /// Any length, in units of a byte.
    pub const NONE: Self = Self {
        bytes: u64::MAX,
        granularity: 1,
    };

    /// At most `bytes` in one request.
    pub const fn at_most(bytes: u64) -> Self {
        Self {
            bytes,
            granularity: 1,
        }
    }
}

impl Geometry {
    /// Refuses invalid values: a range past the end, one that is not in whole logical blocks, a
    /// change of a read-only device.
    pub fn admit(&self, operation: &Operation<'_>) -> Result<()> {
        let extent = operation.start_and_length();
        self.admit_extent(operation.name(), operation.changes(), extent)
    }

    /// As [`admit`](Self::admit), for an operation on an extent of a start and a length.
    pub(crate) fn admit_extent(
        &self,
        name: &'static str,
        changes: bool,
        extent: Option<(u64, u64)>,
    ) -> Result<()> {
        if changes && self.features.contains(Features::READ_ONLY) {
            return Err(Error::new(ErrorKind::ReadOnly)
                .detail("the device is read-only")
                .during(name));
        }
        let Some((start, length)) = extent else {
            return Ok(());
        };
        let error = |range: ByteRange, detail: String| {
            let error = Error::new(ErrorKind::InvalidArgument).detail(detail);
            Err(error.during(name).in_range(range))
        };
        let Some(range) = ByteRange::at(start, length).filter(|range| range.end() <= self.size)
        else {
            let shown = ByteRange::new(start, start.saturating_add(length));
            return error(shown, format!("past the end of the device, {}", self.size));
        };
        let block = u64::from(self.logical_block);
        if !start.is_multiple_of(block) || !length.is_multiple_of(block) {
            return error(range, format!("not in whole blocks of {block} bytes"));
        }
        Ok(())
    }

    /// Refuses to report the status of a range past the end.
    pub fn admit_status(&self, range: ByteRange) -> Result<()> {
        if range.end() <= self.size {
            return Ok(());
        }
        Err(Error::new(ErrorKind::InvalidArgument)
            .detail(format!("past the end of the device, {}", self.size))
            .during("status")
            .in_range(range))
    }

    /// Whole sectors of [`SECTOR_BYTES`] in whole logical blocks: the size of a disk of the kernel
    /// or of virtio.
    pub fn whole_sectors(&self) -> u64 {
        let block = u64::from(self.logical_block).max(SECTOR_BYTES);
        self.size / block * block / SECTOR_BYTES
    }

    /// The whole device.
    pub fn range(&self) -> ByteRange {
        ByteRange::new(0, self.size)
    }
}

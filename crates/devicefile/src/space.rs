//! The space of the file: allocation, holes, data.
//!
//! A hole of the file is a range of the device that reads as zeros, allocated or not; its allocated
//! space is all but the device's holes.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use extant_blockdev::{Assigned, RangeStatus, Speed, ZeroedSpace, Zeroing};
use extant_fuse::operations::Seek;
use extant_space::{ByteRange, Error, ErrorKind, Result};
use parking_lot::Mutex;

use crate::bytes::ByteDevice;

/// The allocated space is counted again only after this many times the duration of the last count,
/// because callers of `stat` do not expect that it takes long.
const COUNT_PAUSE: u32 = 20;

/// The allocated space as it was counted last.
#[derive(Default)]
pub(crate) struct AllocatedSpace {
    counted: Mutex<Option<Counted>>,
    /// Changes of the device so far.
    changes: AtomicU64,
}

#[derive(Clone, Copy)]
struct Counted {
    bytes: u64,
    changes: u64,
    at: Instant,
    took: Duration,
}

impl AllocatedSpace {
    /// The device was changed.
    pub fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Number of changes so far.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Bytes that are allocated. A count that was made recently, for what it took, is repeated.
    pub fn bytes(&self, bytes: &ByteDevice) -> Result<u64> {
        let mut counted = self.counted.lock();
        let (changes, at) = (self.changes(), Instant::now());
        if let Some(last) = *counted
            && (last.changes == changes || at - last.at < last.took * COUNT_PAUSE)
        {
            return Ok(last.bytes);
        }
        let mut sum = 0;
        let device = bytes.device();
        device.status(device.geometry().range(), &mut |range, status| {
            if status != RangeStatus::Hole {
                sum += range.len();
            }
            ControlFlow::Continue(())
        })?;
        let end = Instant::now();
        *counted = Some(Counted {
            bytes: sum,
            changes,
            at: end,
            took: end - at,
        });
        Ok(sum)
    }
}

/// The next data or hole at or after `offset`, which is in the file. The end of the file is a hole.
pub(crate) fn seek(bytes: &ByteDevice, offset: u64, what: Seek) -> Result<Option<u64>> {
    let size = bytes.size();
    let first = bytes.blocks_of(ByteRange::new(offset, offset)).start();
    let mut found = None;
    let device = bytes.device();
    device.status(ByteRange::new(first, size), &mut |range, status| {
        let is_data = status == RangeStatus::Data;
        if is_data == (what == Seek::Data) && range.end() > offset {
            found = Some(range.start().max(offset));
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    Ok(match what {
        Seek::Data => found,
        Seek::Hole => found.or(Some(size)),
    })
}

/// Gives a range its space, and keeps its contents.
pub(crate) fn allocate(bytes: &ByteDevice, range: ByteRange) -> Result<()> {
    let range = bytes.blocks_of(range);
    match bytes.device().assign(range)? {
        Assigned::Done => Ok(()),
        Assigned::Refused => allocate_zeros(bytes, range),
    }
}

/// The same on a device that does not assign: what reads as zeros is zeroed, and allocated by that.
fn allocate_zeros(bytes: &ByteDevice, range: ByteRange) -> Result<()> {
    // A write in between would be lost.
    let _exclusive = bytes.exclusive();
    let device = bytes.device();
    let mut zeros = Vec::new();
    device.status(range, &mut |range, status| {
        if status == RangeStatus::Hole {
            zeros.push(range);
        }
        ControlFlow::Continue(())
    })?;
    let zeroing = Zeroing {
        space: ZeroedSpace::Allocated,
        speed: Speed::OnlyIfFast,
        ..Zeroing::ALLOCATED
    };
    for range in ByteRange::joined(zeros) {
        device.write_zeroes(range, zeroing).map_err(|error| {
            let is_refusal = error.kind() == ErrorKind::Unsupported;
            // fallocate(2) of a device that writes zeros as data would take as long as writing.
            if is_refusal {
                Error::new(ErrorKind::Unsupported).detail("the device allocates no space")
            } else {
                error
            }
        })?;
    }
    Ok(())
}

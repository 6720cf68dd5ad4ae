//! The ways to zero, free and allocate a range, and what was refused.
//!
//! On a disk, `PUNCH_HOLE` frees or fails, and `ZERO_RANGE` keeps the space: by a command of the
//! disk, else the kernel sends zeros itself. `WRITE_ZEROES` frees on a thin disk, and is therefore
//! no way there to zeros that stay allocated.

use std::sync::atomic::{AtomicU32, Ordering};

use extant_space::ByteRange;
use extant_sys::call::Call;
use rustix::fs::FallocateFlags;

use super::target::TargetKind;
use crate::{Operation, Unmap};

/// Bit 7 of the mode of `fallocate(2)`, since Linux 6.17 (linux/falloc.h).
const WRITE_ZEROES: FallocateFlags = FallocateFlags::from_bits_retain(0x80);

/// A call that changes the space of a range without sending data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Zeros that are written; files alone.
    WriteZeroes,
    /// Zeros that stay allocated.
    ZeroRange,
    /// Zeros without space.
    PunchHole,
    /// Space where there is none.
    Allocate,
    /// A disk's discard.
    Discard,
}

impl Way {
    /// The ways to do `operation`, the best first; none for those that are no matter of space.
    pub(super) fn of(operation: &Operation<'_>, kind: TargetKind) -> &'static [Self] {
        match (operation, kind) {
            (Operation::Discard(_), TargetKind::File) => &[Self::PunchHole],
            (Operation::Discard(_), TargetKind::Disk) => &[Self::Discard],
            (Operation::Assign(_), TargetKind::File) => &[Self::Allocate],
            (Operation::WriteZeroes(_, zeroing), _) => match (zeroing.unmap, kind) {
                (Unmap::Allowed, _) => &[Self::PunchHole, Self::ZeroRange],
                (Unmap::Forbidden, TargetKind::File) => &[Self::WriteZeroes, Self::ZeroRange],
                (Unmap::Forbidden, TargetKind::Disk) => &[Self::ZeroRange],
            },
            _ => &[],
        }
    }

    /// The call that does it to `range`.
    pub(super) fn call<'a>(self, range: ByteRange) -> Call<'a> {
        let mode = match self {
            Self::WriteZeroes => WRITE_ZEROES,
            Self::ZeroRange => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
            Self::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            Self::Allocate => FallocateFlags::KEEP_SIZE,
            Self::Discard => return Call::Discard(range),
        };
        Call::Fallocate { mode, range }
    }
}

/// The ways that the kernel has answered with "not supported", a bit each.
#[derive(Default)]
pub(super) struct Refusals(AtomicU32);

impl Refusals {
    pub(super) fn contain(&self, way: Way) -> bool {
        self.0.load(Ordering::Relaxed) & (1 << way as u32) != 0
    }

    pub(super) fn add(&self, way: Way) {
        self.0.fetch_or(1 << way as u32, Ordering::Relaxed);
    }
}

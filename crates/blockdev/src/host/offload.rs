//! Offload methods: calls that zero, free or allocate a range without sending data, and which of
//! them the kernel has refused.
//!
//! On a disk, `PUNCH_HOLE` frees or fails, and `ZERO_RANGE` keeps the space: by a command of the
//! disk, else the kernel sends zeros itself. `WRITE_ZEROES` frees on a thin disk, and is therefore
//! not used there for zeros that stay allocated.

use std::sync::atomic::{AtomicU32, Ordering};

use extant_space::ByteRange;
use extant_sys::call::Call;
use rustix::fs::FallocateFlags;

use super::opened_file::FileKind;
use crate::{Operation, ZeroedSpace};

/// Bit 7 of the mode of `fallocate(2)`, since Linux 6.17 (linux/falloc.h).
const WRITE_ZEROES: FallocateFlags = FallocateFlags::from_bits_retain(0x80);

/// A call that zeros, frees or allocates a range without sending data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OffloadMethod {
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

impl OffloadMethod {
    /// The methods for `operation`, best first; none for operations that transfer data or sync.
    pub(super) fn of(operation: &Operation<'_>, kind: FileKind) -> &'static [Self] {
        match (operation, kind) {
            (Operation::Discard(_), FileKind::File) => &[Self::PunchHole],
            (Operation::Discard(_), FileKind::Disk) => &[Self::Discard],
            (Operation::Assign(_), FileKind::File) => &[Self::Allocate],
            (Operation::WriteZeroes(_, zeroing), _) => match (zeroing.space, kind) {
                (ZeroedSpace::MayUnmap, _) => &[Self::PunchHole, Self::ZeroRange],
                (ZeroedSpace::Allocated, FileKind::File) => &[Self::WriteZeroes, Self::ZeroRange],
                (ZeroedSpace::Allocated, FileKind::Disk) => &[Self::ZeroRange],
                // Data that follows an allocation is in as few extents as the allocation.
                (ZeroedSpace::Written, FileKind::File) => &[Self::WriteZeroes, Self::Allocate],
                (ZeroedSpace::Written, FileKind::Disk) => &[],
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

/// The methods that the kernel has answered with "not supported", a bit each.
#[derive(Default)]
pub(super) struct UnsupportedMethods(AtomicU32);

impl UnsupportedMethods {
    pub(super) fn contain(&self, method: OffloadMethod) -> bool {
        self.0.load(Ordering::Relaxed) & (1 << method as u32) != 0
    }

    pub(super) fn add(&self, method: OffloadMethod) {
        self.0.fetch_or(1 << method as u32, Ordering::Relaxed);
    }
}

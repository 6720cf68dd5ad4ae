//! The operations of `fallocate(2)`, by the project's verbs.

use std::fmt;

/// One operation on the space of a range of a file.
///
/// Each mode is defined in `docs/design.md`, "Vocabulary".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FallocateMode {
    /// Holes become unwritten, data is preserved; the file grows when the range ends past its end.
    Allocate,
    /// As `Allocate`; the file keeps its size.
    AllocateKeepSize,
    /// The range becomes a hole; the file keeps its size.
    PunchHole,
    /// The range reads as zeros and is allocated, probably unwritten; the file may grow.
    ZeroRange,
    /// As `ZeroRange`; the file keeps its size.
    ZeroRangeKeepSize,
    /// The range is removed and the rest moves down.
    CollapseRange,
    /// A hole is inserted and the rest moves up.
    InsertRange,
    /// Shared parts of the range get space of their own; data is preserved.
    UnshareRange,
    /// The range reads as zeros and is written; the file may grow.
    WriteZeroes,
}

impl FallocateMode {
    /// Every operation.
    pub const ALL: [Self; 9] = [
        Self::Allocate,
        Self::AllocateKeepSize,
        Self::PunchHole,
        Self::ZeroRange,
        Self::ZeroRangeKeepSize,
        Self::CollapseRange,
        Self::InsertRange,
        Self::UnshareRange,
        Self::WriteZeroes,
    ];

    /// The words used in messages and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allocate => "allocate",
            Self::AllocateKeepSize => "allocate, keep size",
            Self::PunchHole => "punch hole",
            Self::ZeroRange => "zero range",
            Self::ZeroRangeKeepSize => "zero range, keep size",
            Self::CollapseRange => "collapse range",
            Self::InsertRange => "insert range",
            Self::UnshareRange => "unshare range",
            Self::WriteZeroes => "write zeroes",
        }
    }
}

impl fmt::Display for FallocateMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

//! Extents of a file map: state, flags and location.
//!
//! Three states and no others are used of ranges anywhere in the project.

use std::fmt;

use bitflags::bitflags;
use serde::{Serialize, Serializer};

use crate::ByteRange;

/// State of a range of a file.
///
/// | state | space reserved | read returns | overwrite needs metadata |
/// |---|---|---|---|
/// | `Hole` | no | zeros | yes (allocation) |
/// | `Unwritten` | yes | zeros | yes (conversion) |
/// | `Written` | yes | data | no |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ExtentState {
    /// Nothing is allocated; reads return zeros.
    Hole,
    /// Allocated, never written; reads return zeros.
    Unwritten,
    /// Allocated and holding data, which may be zeros.
    Written,
}

impl ExtentState {
    /// The states in the order of the table above.
    pub const ALL: [Self; 3] = [Self::Hole, Self::Unwritten, Self::Written];

    /// The word used in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hole => "hole",
            Self::Unwritten => "unwritten",
            Self::Written => "written",
        }
    }
}

impl fmt::Display for ExtentState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

bitflags! {
    /// Flags of an extent in a map.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ExtentFlags: u8 {
        /// Copy-on-write: other files use the same space, and the next overwrite allocates.
        const SHARED = 1;
        /// Compressed, inline, tail-packed or encrypted: not plain blocks.
        const ENCODED = 2;
        /// Data waiting in memory for its place on the disk.
        const DELAYED = 4;
    }
}

impl ExtentFlags {
    /// The words used in tables and JSON.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        [
            (Self::SHARED, "shared"),
            (Self::ENCODED, "encoded"),
            (Self::DELAYED, "delayed"),
        ]
        .into_iter()
        .filter_map(move |(flag, name)| self.contains(flag).then_some(name))
    }
}

impl Serialize for ExtentFlags {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.names())
    }
}

/// A range of a file in one state and, where it has one, in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Extent {
    /// The bytes of the file.
    pub logical: ByteRange,
    /// First byte on the device below; `None` for holes and where the source
    /// of the map does not say.
    pub physical: Option<u64>,
    /// State of every byte of the range.
    pub state: ExtentState,
    /// Further properties.
    pub flags: ExtentFlags,
}

impl Extent {
    /// Nothing allocated in `logical`.
    pub fn hole(logical: ByteRange) -> Self {
        Self {
            logical,
            physical: None,
            state: ExtentState::Hole,
            flags: ExtentFlags::empty(),
        }
    }

    /// Space that is really there: an overwrite changes no metadata of the file system.
    pub fn is_extant(&self) -> bool {
        let moves = ExtentFlags::SHARED | ExtentFlags::DELAYED;
        self.state == ExtentState::Written && !self.flags.intersects(moves)
    }

    /// The part of the extent inside `range`, `None` when there is none.
    pub fn clip(&self, range: ByteRange) -> Option<Self> {
        let logical = self.logical.intersection(range)?;
        let physical = self
            .physical
            .map(|place| place + (logical.start() - self.logical.start()));
        Some(Self {
            logical,
            physical,
            ..*self
        })
    }

    /// `next` is adjacent to this extent's end, in the file and on the device,
    /// and has the same state and flags.
    pub fn continues_in(&self, next: &Self) -> bool {
        let place_continues = match (self.physical, next.physical) {
            (Some(place), Some(next_place)) => place + self.logical.len() == next_place,
            (None, None) => true,
            _ => false,
        };
        self.logical.end() == next.logical.start()
            && self.state == next.state
            && self.flags == next.flags
            && place_continues
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(start: u64, end: u64, place: u64) -> Extent {
        Extent {
            logical: ByteRange::new(start, end),
            physical: Some(place),
            state: ExtentState::Written,
            flags: ExtentFlags::empty(),
        }
    }

    #[test]
    fn clip_moves_the_place_with_the_start() {
        let clipped = written(4096, 12_288, 1 << 20)
            .clip(ByteRange::new(8192, 100_000))
            .unwrap();
        assert_eq!(clipped, written(8192, 12_288, (1 << 20) + 4096));
        assert_eq!(written(0, 10, 0).clip(ByteRange::new(10, 20)), None);
    }

    #[test]
    fn shared_written_space_is_not_extant() {
        let mut extent = written(0, 4096, 0);
        assert!(extent.is_extant());
        extent.flags = ExtentFlags::SHARED;
        assert!(!extent.is_extant());
    }

    #[test]
    fn continues_in_wants_neighbours_on_the_device() {
        assert!(written(0, 4096, 0).continues_in(&written(4096, 8192, 4096)));
        assert!(!written(0, 4096, 0).continues_in(&written(4096, 8192, 8192)));
    }
}

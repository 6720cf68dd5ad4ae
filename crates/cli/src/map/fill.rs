//! Fill of a part of a picture: the states of extents, and *shared*, which is written but not
//! extant.

use extant_space::{Extent, ExtentFlags, ExtentState};

/// One of the colours of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fill {
    Written,
    Shared,
    Unwritten,
    Hole,
}

impl Fill {
    /// In the order of legends; `fill as usize` is the place here.
    pub(super) const ALL: [Self; 4] = [Self::Written, Self::Shared, Self::Unwritten, Self::Hole];

    pub(super) fn of(extent: &Extent) -> Self {
        match extent.state {
            ExtentState::Hole => Self::Hole,
            ExtentState::Unwritten => Self::Unwritten,
            ExtentState::Written if extent.flags.contains(ExtentFlags::SHARED) => Self::Shared,
            ExtentState::Written => Self::Written,
        }
    }

    /// The word of legends.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Written => "written",
            Self::Shared => "shared",
            Self::Unwritten => "unwritten",
            Self::Hole => "hole",
        }
    }
}

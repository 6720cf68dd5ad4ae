//! Preallocation modes of files, volumes and images, by QEMU's names.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ExtentState;

/// How much space a new file gets when it is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preallocation {
    /// Nothing: the file is sparse.
    Off,
    /// Space is reserved and unwritten: a write cannot run out of space, but converts.
    Falloc,
    /// Space is written with zeros: a write changes no metadata (VMware: eagerZeroedThick).
    Full,
}

impl Preallocation {
    /// The name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Falloc => "falloc",
            Self::Full => "full",
        }
    }

    /// The least state that the preallocated part must be in.
    pub fn state(self) -> ExtentState {
        match self {
            Self::Off => ExtentState::Hole,
            Self::Falloc => ExtentState::Unwritten,
            Self::Full => ExtentState::Written,
        }
    }
}

impl fmt::Display for Preallocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

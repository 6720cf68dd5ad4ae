//! The preallocation of images: the modes of files, and metadata without space.

use std::fmt;

use extant_space::{Error, ErrorKind, Preallocation as Space, Result};
use serde::{Deserialize, Serialize};

/// Preallocation modes of a new image, by QEMU's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preallocation {
    /// Nothing: clusters are allocated when the guest writes.
    Off,
    /// Every cluster is mapped; the file is sparse. qcow2 only.
    Metadata,
    /// Every cluster is mapped, and the file's space is reserved, unwritten.
    Falloc,
    /// Every cluster is mapped, and the file's space is written.
    Full,
}

impl Preallocation {
    /// Every mode.
    pub const ALL: [Self; 4] = [Self::Off, Self::Metadata, Self::Falloc, Self::Full];

    /// The name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Metadata => "metadata",
            Self::Falloc => "falloc",
            Self::Full => "full",
        }
    }

    /// The mode of a raw image, which has no metadata.
    ///
    /// # Errors
    /// `InvalidArgument` for that of metadata.
    pub fn of_raw(self) -> Result<Space> {
        match self {
            Self::Metadata => Err(Error::new(ErrorKind::InvalidArgument)
                .detail("preallocation=metadata is for qcow2; a raw image has no metadata")),
            other => Ok(other.space()),
        }
    }

    /// At least that every cluster is mapped.
    pub(crate) fn max_metadata(self) -> Self {
        match self {
            Self::Off => Self::Metadata,
            other => other,
        }
    }

    /// The required state of the file with the guest's data.
    pub fn space(self) -> Space {
        match self {
            Self::Off | Self::Metadata => Space::Off,
            Self::Falloc => Space::Falloc,
            Self::Full => Space::Full,
        }
    }
}

impl fmt::Display for Preallocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl From<Space> for Preallocation {
    fn from(space: Space) -> Self {
        match space {
            Space::Off => Self::Off,
            Space::Falloc => Self::Falloc,
            Space::Full => Self::Full,
        }
    }
}

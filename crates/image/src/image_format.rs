//! The formats of disk images that the crate reads and writes.

use std::fmt;
use std::str::FromStr;

use extant_space::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// The format of a disk image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// The guest's bytes, and nothing else.
    #[default]
    Raw,
    /// QEMU's format, version 2 or 3.
    Qcow2,
}

impl Format {
    /// The name that QEMU uses for the format.
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Format {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "raw" => Ok(Self::Raw),
            "qcow2" => Ok(Self::Qcow2),
            _ => Err(Error::new(ErrorKind::InvalidArgument)
                .detail(format!("'{text}' is not a format; raw and qcow2 are"))),
        }
    }
}

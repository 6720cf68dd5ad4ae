//! Formats of volumes.
//!
//! A format is a module of its own that makes, measures and resizes volumes; `raw` needs none, as its bytes are the
//! volume. A file is told to be qcow2 by its first bytes only to keep it from being treated as raw where that would
//! break it. Nothing in it is believed: the content of a raw volume is written by guests, who may write any header.

use std::fmt;
use std::str::FromStr;

use extant_space::{Error, ErrorKind, Result, SpaceFile};
use serde::{Deserialize, Serialize};

use crate::name::VolumeName;
use crate::storage::Storage;

const QCOW2_MAGIC: &[u8; 4] = b"QFI\xfb";

/// How a volume's content lies in its file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Format {
    /// The file is the content.
    #[default]
    Raw,
    /// QEMU's format.
    Qcow2,
}

impl Format {
    /// The word used in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }

    /// What the first bytes of a file look like.
    pub(crate) fn of(file: &(impl SpaceFile + ?Sized)) -> Self {
        let mut first = [0; QCOW2_MAGIC.len()];
        let read = file.read_at(&mut first, 0);
        Self::of_first(read.is_ok_and(|read| read == first.len()), first)
    }

    /// The same for a file that is listed, without opening more than that takes. One that may not be read is raw.
    pub(crate) fn of_listed(storage: &dyn Storage, name: &VolumeName, size_bytes: u64) -> Self {
        let mut first = [0; QCOW2_MAGIC.len()];
        let is_long = size_bytes >= first.len() as u64;
        Self::of_first(is_long && storage.peek(name, &mut first), first)
    }

    fn of_first(is_known: bool, first: [u8; QCOW2_MAGIC.len()]) -> Self {
        match is_known && &first == QCOW2_MAGIC {
            true => Self::Qcow2,
            false => Self::Raw,
        }
    }

    /// Refuses what `operation` cannot be done to.
    pub(crate) fn check_supports(self, operation: &str) -> Result<()> {
        match self {
            Self::Raw => Ok(()),
            Self::Qcow2 => Err(Error::new(ErrorKind::Unsupported)
                .detail(format!("{operation} of a qcow2 volume is not offered yet"))
                .advice("use qemu-img, or a raw volume")),
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

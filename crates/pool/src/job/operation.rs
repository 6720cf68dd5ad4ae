//! What a job does.

use std::path::PathBuf;

use extant_space::Preallocation;
use serde::{Deserialize, Serialize};

use crate::format::Format;
use crate::name::VolumeName;
use crate::storage::Purpose;
use crate::xml::Kept;

/// A long operation on a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "operation", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Operation {
    /// A new volume.
    Create(CreateVolume),
    /// A new volume with the content of another.
    Clone(CloneVolume),
    /// Another capacity.
    Resize(Resize),
    /// The content is destroyed.
    Wipe(Wipe),
    /// Holes and unwritten parts become written.
    Materialize(Materialize),
    /// A volume gets the content of a file.
    Upload(Upload),
    /// A file gets the content of a volume.
    Download(Download),
}

/// A new volume. It has its name when it is complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateVolume {
    /// Its name.
    pub volume: VolumeName,
    /// Its format.
    pub format: Format,
    /// Its logical size, bytes.
    pub capacity_bytes: u64,
    /// The first bytes that are made real at once; not more than the capacity.
    pub allocation_bytes: u64,
    /// In which way they are made real.
    pub preallocation: Preallocation,
    /// Permissions of the file.
    pub mode: u32,
    /// Copy-on-write is turned off for the file, where the file system has it (btrfs).
    pub nocow: bool,
    /// Elements of libvirt's description that mean nothing here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kept: Option<Kept>,
}

impl CreateVolume {
    /// A raw volume, all of whose space is made real in the way of `preallocation`, for its owner alone.
    pub fn new(volume: VolumeName, capacity_bytes: u64, preallocation: Preallocation) -> Self {
        Self {
            volume,
            format: Format::Raw,
            capacity_bytes,
            allocation_bytes: match preallocation {
                Preallocation::Off => 0,
                Preallocation::Falloc | Preallocation::Full => capacity_bytes,
            },
            preallocation,
            mode: 0o600,
            nocow: false,
            kept: None,
        }
    }
}

/// A new volume with the content of another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloneVolume {
    /// What is copied.
    pub source: VolumeName,
    /// The name of the new volume.
    pub volume: VolumeName,
    /// How.
    pub method: CloneMethod,
    /// Permissions of the file.
    pub mode: u32,
}

/// How a volume is cloned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CloneMethod {
    /// Space is shared where the file system can (reflink), else copied.
    #[default]
    Auto,
    /// Space is shared, or it fails.
    Reflink,
    /// Data is copied; holes and unwritten parts stay what they are.
    Copy,
}

/// Another capacity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resize {
    /// The volume.
    pub volume: VolumeName,
    /// Its capacity afterwards, bytes.
    pub capacity_bytes: u64,
    /// What is done about the space of the new part.
    pub preallocation: Preallocation,
    /// What is past a smaller capacity is lost; without this it is refused.
    pub shrink: bool,
}

/// The content is destroyed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wipe {
    /// The volume.
    pub volume: VolumeName,
    /// How.
    pub method: WipeMethod,
    /// Also when a process has the volume open.
    pub force: bool,
}

/// How content is destroyed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WipeMethod {
    /// What is written is overwritten with zeros, in place; holes stay holes.
    #[default]
    Zero,
    /// All space is given back; what it held may stay on the disk.
    Discard,
}

/// Holes and unwritten parts become written; data is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Materialize {
    /// The volume.
    pub volume: VolumeName,
    /// Parts shared with other volumes get space of their own.
    pub unshare: bool,
}

/// A volume gets the content of a file: the new content as a whole, or nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upload {
    /// The volume, which is made.
    pub volume: VolumeName,
    /// Where the content comes from; an absolute path.
    pub source: PathBuf,
    /// A volume of that name is replaced.
    pub replace: bool,
    /// Permissions of the file.
    pub mode: u32,
}

/// A file gets the content of a volume: the new content as a whole, or nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Download {
    /// The volume.
    pub volume: VolumeName,
    /// The file, which is made; an absolute path.
    pub target: PathBuf,
    /// A file of that name is replaced.
    pub replace: bool,
}

impl Operation {
    /// The word used in tables and messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Create(_) => "create",
            Self::Clone(_) => "clone",
            Self::Resize(_) => "resize",
            Self::Wipe(_) => "wipe",
            Self::Materialize(_) => "materialize",
            Self::Upload(_) => "upload",
            Self::Download(_) => "download",
        }
    }

    /// The volume that it makes or works on.
    pub fn volume(&self) -> &VolumeName {
        match self {
            Self::Create(operation) => &operation.volume,
            Self::Clone(operation) => &operation.volume,
            Self::Resize(operation) => &operation.volume,
            Self::Wipe(operation) => &operation.volume,
            Self::Materialize(operation) => &operation.volume,
            Self::Upload(operation) => &operation.volume,
            Self::Download(operation) => &operation.volume,
        }
    }

    /// What it does to the volumes.
    pub(crate) fn purpose(&self) -> Purpose {
        match self {
            Self::Download(_) => Purpose::Look,
            _ => Purpose::Change,
        }
    }

    /// It makes a file that gets the volume's name in the end.
    pub(crate) fn makes_volume(&self) -> bool {
        matches!(self, Self::Create(_) | Self::Clone(_) | Self::Upload(_))
    }
}

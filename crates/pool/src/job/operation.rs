//! Operation of a job.

use std::path::PathBuf;

use extant_image::{Format, ImageOptions, Preallocation, Qcow2Options};
use extant_space::{Error, ErrorKind, Remedy, Result};
use serde::{Deserialize, Serialize};

use crate::foreign::ForeignElements;
use crate::name::VolumeName;
use crate::permissions::Owner;
use crate::storage::Purpose;

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
    /// Options of qcow2; `None`: QEMU's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qcow2: Option<Qcow2Options>,
    /// Its logical size, bytes.
    pub capacity_bytes: u64,
    /// The number of first bytes to allocate; at most the capacity.
    pub allocation_bytes: u64,
    /// Their preallocation mode.
    pub preallocation: Preallocation,
    /// Permissions of the file.
    pub mode: u32,
    /// Its owner and group; `None`: those of the process that makes it.
    #[serde(default, skip_serializing_if = "Owner::is_default")]
    pub owner: Owner,
    /// Turn copy-on-write off for the file, if supported (btrfs).
    pub nocow: bool,
    /// How its content is verified before it has its name.
    #[serde(default)]
    pub verification: Verification,
    /// Elements of libvirt's description that mean nothing here.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "kept")]
    pub foreign: Option<ForeignElements>,
}

/// How the content of a new volume is verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verification {
    /// Samples of it are read.
    #[default]
    Sample,
    /// All of it is read.
    Full,
}

impl CreateVolume {
    /// A raw volume with its whole space in the mode `preallocation`, accessible to its owner only.
    pub fn new(
        volume: VolumeName,
        capacity_bytes: u64,
        preallocation: impl Into<Preallocation>,
    ) -> Self {
        let preallocation = preallocation.into();
        Self {
            volume,
            format: Format::Raw,
            qcow2: None,
            capacity_bytes,
            allocation_bytes: match preallocation {
                Preallocation::Off => 0,
                _ => capacity_bytes,
            },
            preallocation,
            mode: 0o600,
            owner: Owner::default(),
            nocow: false,
            verification: Verification::Sample,
            foreign: None,
        }
    }

    /// Sets the space of the volume by the given mode and amount, otherwise by the defaults of its
    /// pool. An image with a backing file has no space by default.
    ///
    /// # Errors
    /// `InvalidArgument` for an amount of a qcow2 volume without a mode: that is ambiguous.
    pub fn set_space(
        &mut self,
        said: Option<Preallocation>,
        of_pool: Preallocation,
        allocation_bytes: Option<u64>,
    ) -> Result<()> {
        let has_backing = self
            .qcow2
            .as_ref()
            .is_some_and(|image| image.backing.is_some());
        self.preallocation = match (self.format, said, allocation_bytes) {
            (_, Some(said), _) => said,
            (Format::Qcow2, None, Some(0)) => Preallocation::Off,
            (Format::Qcow2, None, Some(_)) => {
                return Err(Error::new(ErrorKind::InvalidArgument)
                    .detail(
                        "the allocation of a qcow2 volume is a size to be allocated, without a method",
                    )
                    .remedy(Remedy::NamePreallocation));
            }
            (_, None, None) if has_backing => Preallocation::Off,
            (_, None, _) => of_pool,
        };
        self.allocation_bytes = match (self.preallocation, allocation_bytes) {
            (_, Some(bytes)) => bytes,
            (Preallocation::Off, None) => 0,
            (_, None) => self.capacity_bytes,
        };
        Ok(())
    }

    /// The image that the volume's file is to be; a raw volume is a raw image.
    pub(crate) fn image(&self) -> ImageOptions {
        let mut image = ImageOptions::new(self.format, self.capacity_bytes);
        image.preallocation = self.preallocation;
        image.allocation_bytes = match self.preallocation {
            Preallocation::Off if self.allocation_bytes == 0 => None,
            Preallocation::Off => Some(self.allocation_bytes),
            _ => Some(self.allocation_bytes).filter(|&bytes| bytes != self.capacity_bytes),
        };
        image.qcow2 = self.qcow2.clone().unwrap_or_default();
        image
    }
}

/// A new volume with the content of another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloneVolume {
    /// The source.
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
    /// Data is copied; holes stay holes and unwritten extents stay unwritten.
    Copy,
}

/// Another capacity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resize {
    /// The volume.
    pub volume: VolumeName,
    /// Its capacity afterwards, bytes.
    pub capacity_bytes: u64,
    /// The preallocation of the new part.
    pub preallocation: Preallocation,
    /// Permits a smaller capacity, which loses the data past it.
    pub shrink: bool,
}

/// The content is destroyed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wipe {
    /// The volume.
    pub volume: VolumeName,
    /// How.
    pub method: WipeMethod,
    /// Even if a process has the volume open.
    pub force: bool,
}

/// How content is destroyed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WipeMethod {
    /// Overwrites written parts with zeros, in place; holes stay holes.
    #[default]
    Zero,
    /// All space is freed; the data may remain on the disk.
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
    /// The source; an absolute path.
    pub source: PathBuf,
    /// The format of the content, which is checked; `None`: that of the volume's name, unless the
    /// content contradicts it.
    #[serde(default)]
    pub format: Option<Format>,
    /// An image may name a backing file, which every user of the volume reads.
    #[serde(default)]
    pub allow_backing: bool,
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

    /// Whether it changes the volumes.
    pub(crate) fn purpose(&self) -> Purpose {
        match self {
            Self::Download(_) => Purpose::Look,
            _ => Purpose::Change,
        }
    }

    /// Refuses a path that a record cannot hold.
    pub(crate) fn check_paths(&self) -> Result<()> {
        let path = match self {
            Self::Upload(upload) => &upload.source,
            Self::Download(download) => &download.target,
            _ => return Ok(()),
        };
        match path.to_str() {
            Some(_) => Ok(()),
            None => Err(Error::new(ErrorKind::InvalidArgument)
                .at(path)
                .detail("the record of a job holds no path that is not UTF-8")),
        }
    }

    /// It creates a file that is renamed to the volume's name at the end.
    pub(crate) fn makes_volume(&self) -> bool {
        matches!(self, Self::Create(_) | Self::Clone(_) | Self::Upload(_))
    }
}

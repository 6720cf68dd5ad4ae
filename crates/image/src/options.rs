//! Options of a new image, and their validation.

use std::path::PathBuf;

use extant_space::{ByteSize, Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::Preallocation;
use crate::format::{Compatible, Compression, Extensions, Geometry, Header, Version};
use crate::image_format::Format;

const SECTOR_BYTES: u64 = 512;

/// A backing file, by its name and format as they will be in the header. It is not opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackingFile {
    /// The name; QEMU takes a relative one from the directory of the image.
    pub name: PathBuf,
    /// The format, which is never guessed.
    pub format: String,
}

/// An external file for the guest's data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataFile {
    /// Its name, as it will be in the header. As in QEMU, a relative one begins in the current
    /// directory, now and whenever the image is opened.
    pub name: PathBuf,
    /// It reads as the guest's disk also for programs that do not know qcow2.
    pub is_raw: bool,
}

/// Options of qcow2.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Qcow2Options {
    /// A power of two from 512 bytes to 2 MiB.
    pub cluster_bytes: u64,
    /// A power of two from 1 to 64.
    pub refcount_bits: u32,
    /// Version of the format.
    pub version: Version,
    /// Whether refcounts may be written later.
    pub lazy_refcounts: bool,
    /// The algorithm for clusters that other programs compress later.
    pub compression: Compression,
    /// Source of unallocated clusters.
    pub backing: Option<BackingFile>,
    /// The file with the guest's data, if external.
    pub data_file: Option<DataFile>,
}

impl Default for Qcow2Options {
    fn default() -> Self {
        Self {
            cluster_bytes: 64 << 10,
            refcount_bits: 16,
            version: Version::V3,
            lazy_refcounts: false,
            compression: Compression::default(),
            backing: None,
            data_file: None,
        }
    }
}

impl Qcow2Options {
    /// The options of an image, for a new one of the same shape without backing file and data file.
    pub fn of(header: &Header) -> Self {
        Self {
            cluster_bytes: header.geometry.cluster_bytes(),
            refcount_bits: header.geometry.refcount_bits(),
            version: header.version,
            lazy_refcounts: header.compatible.contains(Compatible::LAZY_REFCOUNTS),
            compression: header.compression,
            backing: None,
            data_file: None,
        }
    }

    /// Cluster size and refcount width.
    ///
    /// # Errors
    /// `InvalidArgument` for sizes that qcow2 does not have.
    pub fn geometry(&self) -> Result<Geometry> {
        let is_cluster = self.cluster_bytes.is_power_of_two()
            && (1 << Geometry::CLUSTER_BITS_MIN..=1 << Geometry::CLUSTER_BITS_MAX)
                .contains(&self.cluster_bytes);
        if !is_cluster {
            return Err(invalid(format!(
                "cluster_size={} is no power of two from 512 to 2 MiB",
                self.cluster_bytes
            )));
        }
        if !self.refcount_bits.is_power_of_two() || self.refcount_bits > 64 {
            return Err(invalid(format!(
                "refcount_bits={} is no power of two from 1 to 64",
                self.refcount_bits
            )));
        }
        let cluster_bits = self.cluster_bytes.trailing_zeros();
        Geometry::new(cluster_bits, self.refcount_bits.trailing_zeros())
    }

    /// Refuses contradicting options.
    pub(crate) fn check(&self, preallocation: Preallocation) -> Result<()> {
        let geometry = self.geometry()?;
        if self.version == Version::V2 {
            let what = [
                (
                    geometry.refcount_bits() != 16,
                    "refcount_bits other than 16",
                ),
                (self.lazy_refcounts, "lazy_refcounts"),
                (
                    self.compression != Compression::Zlib,
                    "compression_type=zstd",
                ),
                (self.data_file.is_some(), "data_file"),
            ];
            if let Some((_, what)) = what.into_iter().find(|&(is_asked, _)| is_asked) {
                return Err(invalid(format!("{what} needs compat=1.1")));
            }
        }
        let is_mapped = preallocation != Preallocation::Off;
        match (&self.backing, &self.data_file) {
            (Some(_), Some(data)) if data.is_raw => Err(invalid(
                "data_file_raw and a backing file exclude each other: a raw file has nothing that shows through",
            )),
            (Some(_), _) if is_mapped => Err(invalid(format!(
                "preallocation={preallocation} and a backing file exclude each other: mapped clusters would hide it"
            ))),
            (Some(backing), _) if backing.name.as_os_str().is_empty() => {
                Err(invalid("the name of the backing file is empty"))
            }
            (Some(backing), _) if backing.format.is_empty() => {
                Err(invalid("the format of the backing file is not named")
                    .advice("backing_fmt=raw or qcow2"))
            }
            (Some(backing), _) if backing.format.len() > Extensions::BACKING_FORMAT_MAX => {
                Err(invalid(format!(
                    "the format of the backing file has {} bytes, above {}",
                    backing.format.len(),
                    Extensions::BACKING_FORMAT_MAX
                )))
            }
            (_, Some(data)) if data.name.as_os_str().is_empty() => {
                Err(invalid("the name of the data file is empty"))
            }
            _ => Ok(()),
        }
    }
}

/// Options of a new image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageOptions {
    /// Its format.
    pub format: Format,
    /// Size of the guest's disk, bytes.
    pub virtual_bytes: u64,
    /// The allocated part.
    pub preallocation: Preallocation,
    /// Only the first bytes, in this number; `None`: all.
    pub allocation_bytes: Option<u64>,
    /// Options of qcow2; ignored for raw.
    pub qcow2: Qcow2Options,
}

impl ImageOptions {
    /// An image of `virtual_bytes` without preallocation.
    pub fn new(format: Format, virtual_bytes: u64) -> Self {
        Self {
            format,
            virtual_bytes,
            preallocation: Preallocation::Off,
            allocation_bytes: None,
            qcow2: Qcow2Options::default(),
        }
    }

    /// Size of the guest's disk in the image: qcow2 has whole sectors of 512 bytes.
    pub fn disk_bytes(&self) -> u64 {
        match self.format {
            Format::Raw => self.virtual_bytes,
            Format::Qcow2 => self.virtual_bytes.next_multiple_of(SECTOR_BYTES),
        }
    }

    /// Validates the options that need no file.
    ///
    /// # Errors
    /// `InvalidArgument` for contradictions, `TooLarge` for values beyond the format's limits.
    pub fn check(&self) -> Result<()> {
        if i64::try_from(self.virtual_bytes).is_err() {
            return Err(Error::new(ErrorKind::TooLarge).detail(format!(
                "{} is past the largest disk",
                ByteSize(self.virtual_bytes)
            )));
        }
        if let Some(bytes) = self.allocation_bytes {
            self.check_allocation(bytes)?;
        }
        match self.format {
            Format::Raw => self.preallocation.of_raw().map(drop),
            Format::Qcow2 => self.qcow2.check(self.preallocation),
        }
    }

    fn check_allocation(&self, bytes: u64) -> Result<()> {
        if bytes > self.virtual_bytes {
            return Err(invalid(format!(
                "the allocation ({}) is more than the size ({})",
                ByteSize(bytes),
                ByteSize(self.virtual_bytes)
            )));
        }
        let has_data_file = self.format == Format::Qcow2 && self.qcow2.data_file.is_some();
        match self.preallocation {
            _ if has_data_file => Err(invalid(
                "an allocation is for disks whose data is in the image, not in a data file",
            )),
            Preallocation::Off if bytes > 0 => Err(invalid(
                "an allocation needs preallocation falloc or full, or metadata for qcow2",
            )),
            _ => Ok(()),
        }
    }
}

fn invalid(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument).detail(detail)
}

//! The header, in the first cluster: properties of the image, and the locations of its tables.
//!
//! Model: a [`Header`] holds the meaning of the fields. Unknown extensions and bytes of later
//! versions are kept and written back.
//!
//! Invariants of a header that was read:
//! - it needs no unknown feature;
//! - its tables are in the file, at the start of a cluster, and have at most 32 MiB (L1), 8 MiB
//!   (refcounts) and 65,536 entries (snapshots), the limits of QEMU;
//! - the L1 table maps the virtual size.

use extant_ondisk::narrow::{fit_index, fit32};
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use extant_ondisk::on_disk;
use extant_space::{ByteRange, Error, ErrorKind, Result, SpaceFile};
use serde::{Deserialize, Serialize};
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::fault::{corrupt, table_range, unsupported};
use super::{Autoclear, Compatible, EntryRules, Extensions, Geometry, Incompatible};

on_disk! {
    /// The fields of version 2.
    pub struct RawHeader: 72 {
        0x00 magic: U32,
        0x04 version: U32,
        0x08 backing_file_offset: U64,
        0x10 backing_file_size: U32,
        0x14 cluster_bits: U32,
        0x18 size: U64,
        0x20 crypt_method: U32,
        0x24 l1_size: U32,
        0x28 l1_table_offset: U64,
        0x30 refcount_table_offset: U64,
        0x38 refcount_table_clusters: U32,
        0x3C nb_snapshots: U32,
        0x40 snapshots_offset: U64,
    }

    /// The additions of version 3.
    pub struct RawHeaderV3: 32 {
        0x00 incompatible_features: U64,
        0x08 compatible_features: U64,
        0x10 autoclear_features: U64,
        0x18 refcount_order: U32,
        0x1C header_length: U32,
    }
}

const MAGIC: u32 = u32::from_be_bytes(*b"QFI\xfb");
const V2_BYTES: usize = size_of::<RawHeader>();
const V3_BYTES: usize = V2_BYTES + size_of::<RawHeaderV3>();
/// With the compression type and its fill, as QEMU writes it.
const ADDITIONAL: usize = 8;
const REFCOUNT_ORDER_V2: u32 = 4;
const L1_BYTES_MAX: u64 = 32 << 20;
const REFCOUNT_TABLE_BYTES_MAX: u64 = 8 << 20;
const SNAPSHOTS_MAX: u32 = 65_536;
const BACKING_NAME_MAX: u64 = 1023;
/// The largest file offset.
const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// The version of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Version {
    /// `compat=0.10`
    #[serde(rename = "0.10")]
    V2,
    /// `compat=1.1`
    #[serde(rename = "1.1")]
    V3,
}

impl Version {
    /// The value of QEMU's option `compat`.
    pub fn compat(self) -> &'static str {
        match self {
            Self::V2 => "0.10",
            Self::V3 => "1.1",
        }
    }
}

/// Compression type of clusters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Raw deflate.
    #[default]
    Zlib,
    /// Zstandard.
    Zstd,
}

impl Compression {
    /// QEMU's word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Zlib => "zlib",
            Self::Zstd => "zstd",
        }
    }
}

/// Location of the snapshot table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotTable {
    /// Their number.
    pub count: u32,
    /// Offset of the snapshot table.
    pub offset: u64,
}

/// The meaning of the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Version of the format.
    pub version: Version,
    /// Cluster size and refcount width.
    pub geometry: Geometry,
    /// Size of the guest's disk, bytes.
    pub virtual_bytes: u64,
    /// Entries of the L1 table, at least as many as the size needs.
    pub l1_entries: u32,
    /// Offset of the L1 table.
    pub l1_offset: u64,
    /// Offset of the refcount table.
    pub refcount_table_offset: u64,
    /// Its clusters.
    pub refcount_table_clusters: u32,
    /// The internal snapshots.
    pub snapshots: SnapshotTable,
    /// Features that must be known.
    pub incompatible: Incompatible,
    /// Features that may be ignored.
    pub compatible: Compatible,
    /// Features that programs clear if they do not know them.
    pub autoclear: Autoclear,
    /// Compression type of clusters.
    pub compression: Compression,
    /// The name of the backing file.
    pub backing_file: Option<PathBuf>,
    /// The extensions after the fields.
    pub extensions: Extensions,
    /// Bytes of the header after the compression type, from a later version.
    pub(super) later: Vec<u8>,
}

impl Header {
    /// A header of version 3 for a disk of `virtual_bytes`, without tables yet.
    pub fn new(geometry: Geometry, virtual_bytes: u64) -> Self {
        Self {
            version: Version::V3,
            geometry,
            virtual_bytes,
            l1_entries: 0,
            l1_offset: 0,
            refcount_table_offset: 0,
            refcount_table_clusters: 0,
            snapshots: SnapshotTable::default(),
            incompatible: Incompatible::default(),
            compatible: Compatible::default(),
            autoclear: Autoclear::default(),
            compression: Compression::default(),
            backing_file: None,
            extensions: Extensions::default(),
            later: Vec::new(),
        }
    }

    /// True when `bytes`, the first of a file, are those of a qcow2 image.
    pub fn is_qcow2(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC.to_be_bytes())
    }

    /// Reads the header of `file`.
    ///
    /// # Errors
    /// Those of [`parse`](Self::parse), and of reading.
    pub fn read(file: &dyn SpaceFile) -> Result<Self> {
        let file_bytes = file.size()?;
        let mut first = vec![0; V2_BYTES];
        let got = file.read_at(&mut first, 0)?;
        first.truncate(got);
        let cluster_bits = Self::raw(&first)?.cluster_bits.get();
        // Validated before its memory is allocated.
        let geometry = Geometry::new(cluster_bits, REFCOUNT_ORDER_V2)?;
        first.resize(fit_index(geometry.cluster_bytes().min(file_bytes)), 0);
        let got = file.read_at(&mut first, 0)?;
        first.truncate(got);
        Self::parse(&first, file_bytes)
    }

    fn raw(bytes: &[u8]) -> Result<&RawHeader> {
        let (raw, _) = RawHeader::ref_from_prefix(bytes)
            .map_err(|_| corrupt("header", format_args!("has only {} bytes", bytes.len())))?;
        match raw.magic.get() {
            MAGIC => Ok(raw),
            magic => Err(corrupt(
                "header.magic",
                format_args!("is {magic:#x}, not {MAGIC:#x}: no qcow2 image"),
            )),
        }
    }

    /// Validates the header in `first`, the first cluster of a file of `file_bytes` or all of it.
    ///
    /// # Errors
    /// `Corrupt` for contradictions, `Unsupported` for unknown features and encryptions; the
    /// message names the field.
    pub fn parse(first: &[u8], file_bytes: u64) -> Result<Self> {
        let raw = Self::raw(first)?;
        let version = match raw.version.get() {
            2 => Version::V2,
            3 => Version::V3,
            other => {
                return Err(unsupported(
                    "header.version",
                    format_args!("{other} is not known"),
                ));
            }
        };
        let mut v3 = RawHeaderV3::new_zeroed();
        v3.refcount_order.set(REFCOUNT_ORDER_V2);
        v3.header_length.set(fit32(V2_BYTES));
        if version == Version::V3 {
            let (found, _) = RawHeaderV3::ref_from_prefix(&first[V2_BYTES..])
                .map_err(|_| corrupt("header", format_args!("has only {} bytes", first.len())))?;
            v3 = *found;
        }
        let geometry = Geometry::new(raw.cluster_bits.get(), v3.refcount_order.get())?;
        let cluster = fit_index(geometry.cluster_bytes().min(first.len() as u64));
        let first = &first[..cluster];
        let length = v3.header_length.get() as usize;
        let length_min = match version {
            Version::V2 => V2_BYTES,
            Version::V3 => V3_BYTES,
        };
        if length < length_min || !length.is_multiple_of(8) || length > cluster {
            return Err(corrupt(
                "header.header_length",
                format_args!("{length} is no multiple of 8 from {length_min} to {cluster}"),
            ));
        }
        let additional = &first[length_min..length];
        let (backing_file, extensions_end) = backing_file(raw, first, length, geometry)?;
        let (extensions, _) = Extensions::parse(&first[length..extensions_end])?;
        let mut later = additional.get(1..).unwrap_or_default().to_vec();
        if version == Version::V3 {
            // Missing bytes of a short header are zeros; a rewrite adds them.
            later.resize(later.len().max(ADDITIONAL - 1), 0);
        }
        let header = Self {
            version,
            geometry,
            virtual_bytes: raw.size.get(),
            l1_entries: raw.l1_size.get(),
            l1_offset: raw.l1_table_offset.get(),
            refcount_table_offset: raw.refcount_table_offset.get(),
            refcount_table_clusters: raw.refcount_table_clusters.get(),
            snapshots: SnapshotTable {
                count: raw.nb_snapshots.get(),
                offset: raw.snapshots_offset.get(),
            },
            incompatible: Incompatible::from_bits_retain(v3.incompatible_features.get()),
            compatible: Compatible::from_bits_retain(v3.compatible_features.get()),
            autoclear: Autoclear::from_bits_retain(v3.autoclear_features.get()),
            compression: compression(additional.first().copied().unwrap_or(0))?,
            backing_file,
            extensions,
            later,
        };
        match raw.crypt_method.get() {
            0 => {}
            1 => {
                return Err(unsupported(
                    "header.crypt_method",
                    "1 (AES) is not supported",
                ));
            }
            2 => {
                return Err(unsupported(
                    "header.crypt_method",
                    "2 (LUKS) is not supported",
                ));
            }
            other => {
                return Err(unsupported(
                    "header.crypt_method",
                    format_args!("{other} is not known"),
                ));
            }
        }
        header.check_features()?;
        header.check_tables(file_bytes)?;
        Ok(header)
    }

    fn check_features(&self) -> Result<()> {
        let unknown = self.incompatible - Incompatible::KNOWN;
        if !unknown.is_empty() {
            let bit = unknown.bits().trailing_zeros();
            let names = self.extensions.feature_names();
            let name = names
                .iter()
                .find(|name| name.kind == 0 && u32::from(name.bit) == bit);
            let name = name.map_or_else(|| "no name".to_owned(), |name| format!("{:?}", name.name));
            return Err(unsupported(
                "header.incompatible_features",
                format_args!("has bit {bit} ({name}), which is not known"),
            ));
        }
        if self.incompatible.contains(Incompatible::EXTENDED_L2) {
            return Err(unsupported(
                "header.incompatible_features",
                "has extended L2 entries (subclusters), which are not supported",
            ));
        }
        let says_type = self.incompatible.contains(Incompatible::COMPRESSION_TYPE);
        if says_type != (self.compression != Compression::Zlib) {
            return Err(corrupt(
                "header.compression_type",
                format_args!(
                    "is {}, and its incompatible feature is {}",
                    self.compression.name(),
                    if says_type { "set" } else { "not set" }
                ),
            ));
        }
        Ok(())
    }

    fn check_tables(&self, file_bytes: u64) -> Result<()> {
        let geometry = self.geometry;
        let cluster_bytes = geometry.cluster_bytes();
        if i64::try_from(self.virtual_bytes).is_err() {
            return Err(corrupt(
                "header.size",
                format_args!("{:#x} is past the largest disk", self.virtual_bytes),
            ));
        }
        let l1_bytes = u64::from(self.l1_entries) * 8;
        let needed = geometry.l1_entries(self.virtual_bytes);
        if l1_bytes > L1_BYTES_MAX || u64::from(self.l1_entries) < needed {
            return Err(corrupt(
                "header.l1_size",
                format_args!(
                    "{} is outside {needed} (for {} bytes) to {}",
                    self.l1_entries,
                    self.virtual_bytes,
                    L1_BYTES_MAX / 8
                ),
            ));
        }
        // QEMU validates the offset of an empty table as well, except for the end of the file.
        let end_of = |entries| {
            if entries > 0 {
                file_bytes
            } else {
                FILE_BYTES_MAX
            }
        };
        let place = "header.l1_table_offset";
        let end = end_of(self.l1_entries);
        table_range(place, self.l1_offset, l1_bytes, cluster_bytes, end)?;
        let table_bytes = u64::from(self.refcount_table_clusters) * cluster_bytes;
        if table_bytes == 0 || table_bytes > REFCOUNT_TABLE_BYTES_MAX {
            return Err(corrupt(
                "header.refcount_table_clusters",
                format_args!(
                    "{} is outside 1 to {}",
                    self.refcount_table_clusters,
                    REFCOUNT_TABLE_BYTES_MAX / cluster_bytes
                ),
            ));
        }
        let place = "header.refcount_table_offset";
        table_range(
            place,
            self.refcount_table_offset,
            table_bytes,
            cluster_bytes,
            file_bytes,
        )?;
        if self.snapshots.count > SNAPSHOTS_MAX {
            return Err(corrupt(
                "header.nb_snapshots",
                format_args!("{} is above {SNAPSHOTS_MAX}", self.snapshots.count),
            ));
        }
        let place = "header.snapshots_offset";
        let end = end_of(self.snapshots.count);
        table_range(place, self.snapshots.offset, 0, cluster_bytes, end)?;
        Ok(())
    }

    /// The bytes that begin the file: fields, extensions, and the name of the backing file.
    ///
    /// # Errors
    /// `InvalidArgument` when they do not fit in a cluster, or the name is longer than 1023 bytes.
    ///
    /// # Panics
    /// If the values do not fit into version 2: features, or refcounts of other than 16 bits.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        let additional = 1 + self.later.len().max(ADDITIONAL - 1);
        let length = match self.version {
            Version::V2 => V2_BYTES,
            Version::V3 => V3_BYTES + additional,
        };
        let mut raw = RawHeader::new_zeroed();
        raw.magic.set(MAGIC);
        raw.cluster_bits.set(self.geometry.cluster_bits());
        raw.size.set(self.virtual_bytes);
        raw.l1_size.set(self.l1_entries);
        raw.l1_table_offset.set(self.l1_offset);
        raw.refcount_table_offset.set(self.refcount_table_offset);
        raw.refcount_table_clusters
            .set(self.refcount_table_clusters);
        raw.nb_snapshots.set(self.snapshots.count);
        raw.snapshots_offset.set(self.snapshots.offset);
        out.resize(length, 0);
        match self.version {
            Version::V2 => {
                assert_eq!(self.geometry.refcount_order(), REFCOUNT_ORDER_V2);
                assert!(self.incompatible.is_empty() && self.compatible.is_empty());
                assert!(self.autoclear.is_empty());
                raw.version.set(2);
            }
            Version::V3 => {
                raw.version.set(3);
                let mut v3 = RawHeaderV3::new_zeroed();
                v3.incompatible_features.set(self.incompatible.bits());
                v3.compatible_features.set(self.compatible.bits());
                v3.autoclear_features.set(self.autoclear.bits());
                v3.refcount_order.set(self.geometry.refcount_order());
                v3.header_length.set(fit32(length));
                out[V2_BYTES..V3_BYTES].copy_from_slice(v3.as_bytes());
                out[V3_BYTES] = self.compression as u8;
                out[V3_BYTES + 1..][..self.later.len()].copy_from_slice(&self.later);
            }
        }
        self.extensions.encode(&mut out);
        if let Some(name) = &self.backing_file {
            let name = name.as_os_str().as_bytes();
            if name.len() as u64 > BACKING_NAME_MAX {
                return Err(Error::new(ErrorKind::InvalidArgument).detail(format!(
                    "the name of the backing file has {} bytes; qcow2 has room for {BACKING_NAME_MAX}",
                    name.len()
                )));
            }
            raw.backing_file_offset.set(out.len() as u64);
            raw.backing_file_size.set(fit32(name.len()));
            out.extend(name);
        }
        out[..V2_BYTES].copy_from_slice(raw.as_bytes());
        if out.len() as u64 > self.geometry.cluster_bytes() {
            return Err(Error::new(ErrorKind::InvalidArgument).detail(format!(
                "the header takes {} bytes and has to fit in a cluster of {}",
                out.len(),
                self.geometry.cluster_bytes()
            )));
        }
        Ok(out)
    }

    /// Range of the L1 table.
    pub fn l1_range(&self) -> ByteRange {
        let bytes = u64::from(self.l1_entries) * 8;
        ByteRange::at(self.l1_offset, bytes).expect("validated by parse")
    }

    /// Range of the refcount table.
    pub fn refcount_table_range(&self) -> ByteRange {
        let bytes = u64::from(self.refcount_table_clusters) * self.geometry.cluster_bytes();
        ByteRange::at(self.refcount_table_offset, bytes).expect("validated by parse")
    }

    /// The rules for the meaning of its L2 entries.
    pub fn entry_rules(&self) -> EntryRules {
        EntryRules {
            version: self.version,
            has_data_file: self.has_data_file(),
        }
    }

    /// True when the guest's data is in another file.
    pub fn has_data_file(&self) -> bool {
        self.incompatible.contains(Incompatible::DATA_FILE)
    }

    /// The stored name of the data file, if any.
    pub fn data_file(&self) -> Option<&Path> {
        let name = self.extensions.find(Extensions::DATA_FILE)?;
        self.has_data_file()
            .then(|| Path::new(OsStr::from_bytes(name)))
    }
}

/// The name of the backing file, and where the extensions end. An empty name means no backing file,
/// as in QEMU.
fn backing_file(
    raw: &RawHeader,
    first: &[u8],
    length: usize,
    geometry: Geometry,
) -> Result<(Option<PathBuf>, usize)> {
    let offset = raw.backing_file_offset.get();
    if offset == 0 {
        return Ok((None, first.len()));
    }
    let size = u64::from(raw.backing_file_size.get());
    let range = ByteRange::at(offset, size)
        .filter(|range| range.start() >= length as u64 && range.end() <= first.len() as u64);
    let Some(range) = range else {
        return Err(corrupt(
            "header.backing_file_offset",
            format_args!(
                "{offset:#x} with {size} bytes is not inside the first cluster ({} bytes), after the header",
                geometry.cluster_bytes()
            ),
        ));
    };
    if size > BACKING_NAME_MAX {
        return Err(corrupt(
            "header.backing_file_size",
            format_args!("{size} is above {BACKING_NAME_MAX}"),
        ));
    }
    let (start, end) = (fit_index(range.start()), fit_index(range.end()));
    let name = first[start..end].to_vec();
    let name = PathBuf::from(std::ffi::OsString::from_vec(name));
    Ok((Some(name).filter(|_| size > 0), start))
}

fn compression(kind: u8) -> Result<Compression> {
    match kind {
        0 => Ok(Compression::Zlib),
        1 => Ok(Compression::Zstd),
        other => Err(unsupported(
            "header.compression_type",
            format_args!("{other} is not known"),
        )),
    }
}

#[cfg(test)]
mod tests;

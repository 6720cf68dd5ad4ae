//! Properties of an image, and how much of it is allocated.

use std::ops::ControlFlow;
use std::path::PathBuf;

use extant_space::{ByteRange, ExtentState, Result};
use jiff::Timestamp;
use serde::{Serialize, Serializer};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::format::{
    Autoclear, Compatible, Extensions, Header, Incompatible, RawBitmap, RawBitmaps, read_snapshots,
};
use crate::image_format::Format;
use crate::layer::Layer;
use crate::preallocation::Preallocation;
use crate::qcow2::Qcow2;

/// Maximum number of listed snapshots; all are counted.
const SNAPSHOTS_TOLD: usize = 1000;
/// Maximum number of listed bitmaps, QEMU's limit.
const BITMAPS_MAX: u32 = 65_535;

/// Properties of an image.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ImageInfo {
    /// Its format.
    pub format: Format,
    /// Size of the guest's disk.
    #[serde(rename = "capacity_bytes")]
    pub virtual_bytes: u64,
    /// Size of the file.
    #[serde(rename = "size_bytes")]
    pub file_bytes: u64,
    /// Bytes of the file that have space.
    pub allocated_bytes: u64,
    /// The mode that the image is in, as found: the least that holds for all of the disk.
    pub preallocation: Preallocation,
    /// Bytes of the guest's disk by the state of their space.
    pub states: StateBytes,
    /// Properties of qcow2 images only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qcow2: Option<Qcow2Info>,
}

/// Bytes of the guest's disk by state; a data file that was not opened counts as written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StateBytes {
    /// Without space, in this image or on the host.
    #[serde(rename = "hole_bytes")]
    pub hole: u64,
    /// With space that is not written yet.
    #[serde(rename = "unwritten_bytes")]
    pub unwritten: u64,
    /// Written.
    #[serde(rename = "written_bytes")]
    pub written: u64,
    /// Of these, mapped by the image: all of a raw one.
    #[serde(rename = "mapped_bytes")]
    pub mapped: u64,
}

/// Facts of a qcow2 header.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Qcow2Info {
    /// `0.10` or `1.1`.
    pub compat: &'static str,
    /// Size of a cluster.
    pub cluster_bytes: u64,
    /// Width of a refcount.
    pub refcount_bits: u32,
    /// How clusters are compressed.
    pub compression: &'static str,
    /// Refcounts may be written later.
    pub lazy_refcounts: bool,
    /// Refcounts may be wrong.
    pub is_dirty: bool,
    /// Structures are damaged.
    pub is_corrupt: bool,
    /// There are valid bitmaps.
    pub has_bitmaps: bool,
    /// The name of the backing file.
    #[serde(serialize_with = "serialize_path")]
    pub backing_file: Option<PathBuf>,
    /// The format of the backing file.
    pub backing_format: Option<String>,
    /// The guest's data is in another file, also if the image does not name it.
    pub has_data_file: bool,
    /// The name of the data file.
    #[serde(serialize_with = "serialize_path")]
    pub data_file: Option<PathBuf>,
    /// The data file reads as the guest does.
    pub data_file_raw: bool,
    /// How many internal snapshots there are.
    pub snapshot_count: u32,
    /// The first of them.
    pub snapshots: Vec<SnapshotInfo>,
    /// The first of the valid bitmaps.
    #[serde(skip)]
    pub bitmaps: Vec<BitmapInfo>,
}

/// An internal snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SnapshotInfo {
    /// Its identifier.
    pub id: String,
    /// Its name.
    pub name: String,
    /// When it was made, seconds and nanoseconds since 1970.
    #[serde(rename = "created", serialize_with = "serialize_moment")]
    pub date: (u32, u32),
    /// The clock of the machine, nanoseconds.
    #[serde(skip)]
    pub vm_clock_nanoseconds: u64,
    /// Instructions that the machine had executed, where they were counted.
    #[serde(skip)]
    pub instructions: Option<u64>,
    /// Bytes of the machine's state in it.
    pub vm_state_bytes: u64,
    /// The size that the disk had.
    #[serde(rename = "capacity_bytes")]
    pub virtual_bytes: Option<u64>,
}

/// A persistent bitmap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BitmapInfo {
    /// Its name.
    pub name: String,
    /// Bytes of the disk that a bit stands for.
    pub granularity_bytes: u64,
    /// Its last user did not save it, so its content is invalid.
    pub is_in_use: bool,
    /// It is kept up to date from when the image is opened.
    pub is_auto: bool,
}

/// Bytes that are not UTF-8 are replaced.
fn serialize_path<S: Serializer>(
    path: &Option<PathBuf>,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    path.as_ref()
        .map(|path| path.to_string_lossy())
        .serialize(serializer)
}

/// In RFC 3339 format, in UTC.
fn serialize_moment<S: Serializer>(
    (seconds, nanoseconds): &(u32, u32),
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    let moment = Timestamp::new(i64::from(*seconds), *nanoseconds as i32);
    // The file may hold any number of nanoseconds.
    let moment = moment.or_else(|_| Timestamp::new(i64::from(*seconds), 0));
    serializer.collect_str(&moment.expect("within the first centuries"))
}

impl Layer {
    /// Describes this layer by its tables and the map of its file. Files below it are not read.
    ///
    /// # Errors
    /// `Corrupt` for invalid tables and lists; read errors.
    pub fn info(&self) -> Result<ImageInfo> {
        let file = self.file();
        let file_bytes = file.size()?;
        let mut allocated_bytes = 0;
        file.for_each_extent(ByteRange::new(0, file_bytes), &mut |extent| {
            if extent.state != ExtentState::Hole {
                allocated_bytes += extent.logical.len();
            }
            ControlFlow::Continue(())
        })?;
        let states = self.states()?;
        let qcow2 = self.qcow2_info()?;
        let is_mapped = states.mapped == self.virtual_bytes() && qcow2.is_some();
        let preallocation = match states {
            _ if self.virtual_bytes() == 0 => Preallocation::Off,
            StateBytes {
                hole: 0,
                unwritten: 0,
                ..
            } => Preallocation::Full,
            StateBytes { hole: 0, .. } => Preallocation::Falloc,
            _ if is_mapped => Preallocation::Metadata,
            _ => Preallocation::Off,
        };
        Ok(ImageInfo {
            format: self.format(),
            virtual_bytes: self.virtual_bytes(),
            file_bytes,
            allocated_bytes,
            preallocation,
            states,
            qcow2,
        })
    }

    /// The qcow2-specific part, without reading tables; `None` for a raw image.
    ///
    /// # Errors
    /// `Corrupt` for invalid lists; read errors.
    pub fn qcow2_info(&self) -> Result<Option<Qcow2Info>> {
        self.qcow2().map(qcow2_info).transpose()
    }

    /// Of this layer alone.
    fn states(&self) -> Result<StateBytes> {
        let mut states = StateBytes::default();
        self.for_each_own_extent(&mut |extent| {
            let bytes = extent.guest.len();
            match extent.state {
                ExtentState::Hole => states.hole += bytes,
                ExtentState::Unwritten => states.unwritten += bytes,
                ExtentState::Written => states.written += bytes,
            }
            if extent.offset.is_some() || extent.is_data {
                states.mapped += bytes;
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(states)
    }
}

fn qcow2_info(qcow2: &Qcow2) -> Result<Qcow2Info> {
    let header: &Header = &qcow2.header;
    let mut snapshots = Vec::new();
    read_snapshots(&*qcow2.file, header, &mut |snapshot| {
        if snapshots.len() < SNAPSHOTS_TOLD {
            snapshots.push(SnapshotInfo {
                id: snapshot.id,
                name: snapshot.name,
                date: (snapshot.date_seconds, snapshot.date_nanoseconds),
                vm_clock_nanoseconds: snapshot.vm_clock_nanoseconds,
                instructions: snapshot.instructions,
                vm_state_bytes: snapshot.vm_state_bytes,
                virtual_bytes: snapshot.virtual_bytes,
            });
        }
        Ok(())
    })?;
    Ok(Qcow2Info {
        compat: header.version.compat(),
        cluster_bytes: header.geometry.cluster_bytes(),
        refcount_bits: header.geometry.refcount_bits(),
        compression: header.compression.name(),
        lazy_refcounts: header.compatible.contains(Compatible::LAZY_REFCOUNTS),
        is_dirty: header.incompatible.contains(Incompatible::DIRTY),
        is_corrupt: header.incompatible.contains(Incompatible::CORRUPT),
        has_bitmaps: header.autoclear.contains(Autoclear::BITMAPS),
        backing_file: header.backing_file.clone(),
        backing_format: header.extensions.backing_format(),
        has_data_file: header.has_data_file(),
        data_file: header.data_file().map(PathBuf::from),
        data_file_raw: header.autoclear.contains(Autoclear::RAW_DATA_FILE),
        snapshot_count: header.snapshots.count,
        snapshots,
        bitmaps: bitmaps(qcow2)?,
    })
}

/// The bitmaps in the readable part of their directory; a check reports its errors.
fn bitmaps(qcow2: &Qcow2) -> Result<Vec<BitmapInfo>> {
    let header = &qcow2.header;
    let is_valid = header.autoclear.contains(Autoclear::BITMAPS);
    let data = header.extensions.find(Extensions::BITMAPS);
    let raw = data
        .filter(|_| is_valid)
        .and_then(|data| RawBitmaps::read_from_prefix(data).ok());
    let Some((raw, _)) = raw else {
        return Ok(Vec::new());
    };
    let directory = ByteRange::at(
        raw.bitmap_directory_offset.get(),
        raw.bitmap_directory_size
            .get()
            .min(RawBitmaps::DIRECTORY_BYTES_MAX),
    );
    let (mut at, end) = directory.map_or((0, 0), |range| (range.start(), range.end()));
    let mut found = Vec::new();
    for _ in 0..raw.nb_bitmaps.get().min(BITMAPS_MAX) {
        let mut entry = RawBitmap::new_zeroed();
        let got = qcow2.file.read_at(entry.as_mut_bytes(), at)?;
        if got < size_of::<RawBitmap>() || at + entry.entry_bytes() > end {
            break;
        }
        let mut name = vec![0; entry.name_size.get().into()];
        let before = size_of::<RawBitmap>() as u64 + u64::from(entry.extra_data_size.get());
        qcow2.file.read_at(&mut name, at + before)?;
        let flags = entry.flags.get();
        found.push(BitmapInfo {
            name: String::from_utf8_lossy(&name).into_owned(),
            granularity_bytes: 1_u64
                .checked_shl(entry.granularity_bits.into())
                .unwrap_or(0),
            is_in_use: flags & RawBitmap::IN_USE != 0,
            is_auto: flags & RawBitmap::AUTO != 0,
        });
        at += entry.entry_bytes();
    }
    Ok(found)
}

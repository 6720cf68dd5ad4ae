//! The fields of `qemu-img info`, `check` and `measure`, by their names and with their values
//! (QEMU's qapi/block-core.json), beside ours in the same JSON objects.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use extant_image::{BitmapInfo, CheckReport, ImageInfo, Qcow2Info, SnapshotInfo};
use serde::Serialize;

use crate::file_location::FileLocation;

const SECTOR_BYTES: u64 = 512;
const BLOCK_BYTES: u64 = 512;
const NANOSECONDS: u64 = 1_000_000_000;

/// `ImageInfo`, but for `format`, which ours has as well.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Info {
    filename: String,
    virtual_size: u64,
    actual_size: u64,
    dirty_flag: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster_size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backing_filename: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    full_backing_filename: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backing_filename_format: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    snapshots: Vec<Snapshot>,
    #[serde(skip_serializing_if = "Option::is_none")]
    format_specific: Option<Specific>,
}

#[derive(Serialize)]
struct Specific {
    #[serde(rename = "type")]
    kind: &'static str,
    data: Data,
}

/// `ImageInfoSpecificQCow2`; version 2 has the first fields alone.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Data {
    compat: &'static str,
    compression_type: &'static str,
    refcount_bits: u32,
    #[serde(flatten)]
    v3: Option<V3>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct V3 {
    lazy_refcounts: bool,
    corrupt: bool,
    extended_l2: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_file_raw: Option<bool>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    bitmaps: Vec<Bitmap>,
}

#[derive(Serialize)]
struct Bitmap {
    name: String,
    granularity: u64,
    flags: Vec<&'static str>,
}

/// `SnapshotInfo`.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Snapshot {
    id: String,
    name: String,
    vm_state_size: u64,
    date_sec: u32,
    date_nsec: u32,
    vm_clock_sec: u64,
    vm_clock_nsec: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    icount: Option<u64>,
}

impl Info {
    /// Of an image at `place`.
    pub(super) fn of(place: &FileLocation, info: &ImageInfo) -> Self {
        let stat = std::fs::metadata(place.path());
        let on_host = stat.ok().filter(|_| place.is_on_host());
        let qcow2 = info.qcow2.as_ref();
        let backing = qcow2.and_then(|qcow2| qcow2.backing_file.as_deref());
        Self {
            filename: text(place.path()),
            // Disks of QEMU have whole sectors.
            virtual_size: info.virtual_bytes.next_multiple_of(SECTOR_BYTES),
            actual_size: on_host.map_or(info.allocated_bytes, |stat| stat.blocks() * BLOCK_BYTES),
            dirty_flag: qcow2.is_some_and(|qcow2| qcow2.is_dirty),
            cluster_size: qcow2.map(|qcow2| qcow2.cluster_bytes),
            backing_filename: backing.map(text),
            full_backing_filename: backing.map(|name| full_name(place.path(), name)),
            backing_filename_format: qcow2.and_then(|qcow2| qcow2.backing_format.clone()),
            snapshots: qcow2
                .map(|qcow2| qcow2.snapshots.iter().map(Snapshot::of).collect())
                .unwrap_or_default(),
            format_specific: qcow2.map(|qcow2| Specific {
                kind: "qcow2",
                data: Data::of(qcow2),
            }),
        }
    }
}

/// A name with a protocol is used as it is; others are paths relative to the directory of the
/// image.
fn full_name(image: &Path, name: &Path) -> String {
    let bytes = name.as_os_str().as_encoded_bytes();
    let end = bytes.iter().position(|byte| b":/".contains(byte));
    if end.is_some_and(|end| bytes[end] == b':') {
        text(name)
    } else {
        text(&image.parent().unwrap_or(Path::new("")).join(name))
    }
}

impl Data {
    fn of(qcow2: &Qcow2Info) -> Self {
        let data_file = qcow2.data_file.as_ref();
        Self {
            compat: qcow2.compat,
            compression_type: qcow2.compression,
            refcount_bits: qcow2.refcount_bits,
            v3: (qcow2.compat != "0.10").then(|| V3 {
                lazy_refcounts: qcow2.lazy_refcounts,
                corrupt: qcow2.is_corrupt,
                extended_l2: false,
                data_file: data_file.map(|name: &PathBuf| text(name)),
                data_file_raw: qcow2.has_data_file.then_some(qcow2.data_file_raw),
                bitmaps: qcow2.bitmaps.iter().map(Bitmap::of).collect(),
            }),
        }
    }
}

impl Bitmap {
    fn of(bitmap: &BitmapInfo) -> Self {
        let flags = [(bitmap.is_in_use, "in-use"), (bitmap.is_auto, "auto")];
        Self {
            name: bitmap.name.clone(),
            granularity: bitmap.granularity_bytes,
            flags: flags
                .into_iter()
                .filter_map(|(is_set, name)| is_set.then_some(name))
                .collect(),
        }
    }
}

impl Snapshot {
    fn of(snapshot: &SnapshotInfo) -> Self {
        Self {
            id: snapshot.id.clone(),
            name: snapshot.name.clone(),
            vm_state_size: snapshot.vm_state_bytes,
            date_sec: snapshot.date.0,
            date_nsec: snapshot.date.1,
            vm_clock_sec: snapshot.vm_clock_nanoseconds / NANOSECONDS,
            vm_clock_nsec: snapshot.vm_clock_nanoseconds % NANOSECONDS,
            icount: snapshot.instructions,
        }
    }
}

/// `ImageCheck`, but for `format`, `corruptions` and `leaks`, which ours has as well. Counts of 0
/// are left out, as there.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Check {
    filename: String,
    check_errors: u64,
    image_end_offset: u64,
    total_clusters: u64,
    #[serde(skip_serializing_if = "is_zero")]
    allocated_clusters: u64,
    #[serde(skip_serializing_if = "is_zero")]
    fragmented_clusters: u64,
    #[serde(skip_serializing_if = "is_zero")]
    compressed_clusters: u64,
    #[serde(skip_serializing_if = "is_zero")]
    corruptions_fixed: u64,
    #[serde(skip_serializing_if = "is_zero")]
    leaks_fixed: u64,
}

impl Check {
    /// Of a check of the image at `path`, and of what a repair has changed before.
    pub(super) fn of(path: &Path, report: &CheckReport, fixed: Fixed) -> Self {
        Self {
            filename: text(path),
            check_errors: 0,
            image_end_offset: report.image_end_bytes,
            total_clusters: report.total_clusters,
            allocated_clusters: report.allocated_clusters,
            fragmented_clusters: report.fragmented_clusters,
            compressed_clusters: report.compressed_clusters,
            corruptions_fixed: fixed.corruptions,
            leaks_fixed: fixed.leaks,
        }
    }
}

/// Counts of what a repair has changed.
#[derive(Clone, Copy, Default)]
pub(super) struct Fixed {
    pub(super) corruptions: u64,
    pub(super) leaks: u64,
}

/// `BlockMeasureInfo`.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Measure {
    pub(super) required: u64,
    pub(super) fully_allocated: u64,
    /// `None` where the source can have none, or the new image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bitmaps: Option<u64>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

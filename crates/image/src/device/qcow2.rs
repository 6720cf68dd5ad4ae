//! A qcow2 image as a device.
//!
//! | request | where |
//! |---|---|
//! | reads, writes | `transfer.rs`, over `mapped.rs` and `plan.rs`; clusters that have to be made, `rewrite.rs` |
//! | reads and writes of a stream | `stream.rs` |
//! | zeroes, discard, assign | `zero.rs` |
//! | flush | `commit.rs` |
//! | status | `status.rs` |
//!
//! Model: all metadata is changed in memory (`metadata.rs`) and reaches the file in commits. A
//! cluster of zeros that the guest writes to is mapped to a new one at once, before its data is
//! written, as the new one is zeros as well: writes that allocate are as many at a time as others,
//! and one that fails or is lost in a power cut leaves the zeros that were there.
//!
//! Lock order: commits, metadata. Neither is held while data of the guest moves.

mod cluster_cache;
mod commit;
mod file;
mod l1_table;
mod mapped;
mod metadata;
mod plan;
mod refcounts;
mod rewrite;
mod space;
mod status;
mod stream;
mod transfer;
mod windows;
mod zero;

use std::ops::{ControlFlow, Range};
use std::sync::{Arc, Condvar, LockResult, Mutex, MutexGuard};

use extant_blockdev::{
    Device, Features, Geometry as DeviceGeometry, Limits, Operation, Persistence, RangeLimit,
    RangeStatus, Request, TransferStream,
};
use extant_space::{ByteRange, Error, ErrorKind, Extent, LayerRange, LayerVisitor, Result};

use super::Store;
use crate::format::{Autoclear, Compression, Geometry, Header, Incompatible, Version};
use commit::Commits;
use file::MetadataFile;
use metadata::Metadata;
use plan::again;
use stream::Asides;

/// Offset of the autoclear features.
const AUTOCLEAR_FEATURES: usize = 0x58;

/// The files an image consists of.
pub(super) struct ImageFiles {
    pub file: Arc<dyn Store>,
    pub data: Option<Arc<dyn Store>>,
    pub backing: Option<Arc<dyn Device>>,
}

pub(super) struct Qcow2 {
    file: MetadataFile,
    data: Option<Arc<dyn Store>>,
    backing: Option<Arc<dyn Device>>,
    geometry: Geometry,
    version: Version,
    compression: Compression,
    /// As a device.
    disk_geometry: DeviceGeometry,
    metadata: Mutex<Metadata>,
    /// Clusters are no longer being made.
    idle: Condvar,
    commits: parking_lot::Mutex<Commits>,
    commit_ended: parking_lot::Condvar,
    asides: Asides,
}

impl Qcow2 {
    /// Opens the image that `header` describes.
    pub(super) fn open(
        header: &Header,
        parts: ImageFiles,
        writes: bool,
        cache_bytes: u64,
    ) -> Result<Self> {
        if writes {
            check_writable(header)?;
        }
        let ImageFiles {
            file,
            data,
            backing,
        } = parts;
        let disk_geometry =
            device_geometry(header, &file, data.as_ref(), backing.as_ref(), writes)?;
        let file = MetadataFile(file);
        if writes {
            let file_bytes = file.0.file_bytes()?;
            let whole = file_bytes.next_multiple_of(header.geometry.cluster_bytes());
            if whole != file_bytes
                && let Err(error) = file.0.resize(whole)
                // A block device has a fixed size; the remainder at its end is not used.
                && error.kind() != ErrorKind::Unsupported
            {
                return Err(error);
            }
            if let Some(data) = &data
                && data.file_bytes()? < header.virtual_bytes
            {
                data.resize(header.virtual_bytes)?;
            }
            clear_unknown_features(&file, header)?;
        }
        let metadata = Metadata::load(file.clone(), header, writes, cache_bytes)?;
        Ok(Self {
            file,
            data,
            backing,
            geometry: header.geometry,
            version: header.version,
            compression: header.compression,
            disk_geometry,
            metadata: Mutex::new(metadata),
            idle: Condvar::new(),
            commits: parking_lot::Mutex::default(),
            commit_ended: parking_lot::Condvar::new(),
            asides: Asides::default(),
        })
    }

    fn is_writable(&self) -> bool {
        !self.disk_geometry.features.contains(Features::READ_ONLY)
    }

    /// The device with the guest's data.
    fn data_device(&self) -> &Arc<dyn Store> {
        self.data.as_ref().unwrap_or(&self.file.0)
    }

    /// The backing file, if any cluster still reads from it.
    fn behind(&self) -> &Arc<dyn Device> {
        self.backing
            .as_ref()
            .expect("only with one there is such a source")
    }

    fn flush_data(&self) -> Result<()> {
        self.data_device().run(Operation::Flush)
    }

    /// The metadata. A panic under this lock ends all use of it (`Metadata::check_sound`).
    fn metadata(&self) -> MutexGuard<'_, Metadata> {
        unpoisoned(self.metadata.lock())
    }

    /// The metadata, when none of the clusters is being made.
    fn wait_until_idle(&self, clusters: &Range<u64>) -> MutexGuard<'_, Metadata> {
        let mut metadata = self.metadata();
        // Few are being made at a time, and a range may be long.
        while metadata
            .busy
            .iter()
            .any(|cluster| clusters.contains(cluster))
        {
            metadata = unpoisoned(self.idle.wait(metadata));
        }
        metadata
    }

    /// An error in the files of the image, as an error of the disk.
    fn of_disk(&self, error: Error, operation: &Operation<'_>) -> Error {
        // A refused request may have no range.
        let is_admitted = self.disk_geometry.admit(operation).is_ok();
        match is_admitted.then(|| operation.range()).flatten() {
            Some(range) => error.in_range_above(range),
            None => error,
        }
    }

    fn change_space(&self, operation: &Operation<'_>) -> Result<()> {
        match operation {
            Operation::Discard(range) => self.discard(*range),
            Operation::WriteZeroes(range, zeroing) => self.write_zeroes(*range, *zeroing),
            Operation::Assign(range) => self.assign(*range),
            _ => Ok(()),
        }
    }

    /// Commits, frees retired clusters, and truncates the preallocated end of the file.
    fn close(&self) -> Result<()> {
        if !self.is_writable() {
            return Ok(());
        }
        // The second commit frees the clusters that the first one retires; the third writes the
        // resulting changes.
        for _ in 0..3 {
            if !self.metadata().is_clean() {
                self.commit()?;
            }
        }
        let spare = self.metadata().spare_from();
        match spare {
            Some(end) => self.file.0.resize(end),
            None => Ok(()),
        }
    }
}

impl Drop for Qcow2 {
    fn drop(&mut self) {
        // A caller that needs the result flushes first; a failure leaks clusters at worst.
        let _ = self.close();
    }
}

impl Device for Qcow2 {
    fn geometry(&self) -> DeviceGeometry {
        self.disk_geometry.clone()
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        let geometry = &self.disk_geometry;
        let admit = |request: &Request<'_>| geometry.admit(&request.operation);
        let mut results: Vec<Result<()>> = requests.iter().map(admit).collect();
        let is_wanted = |what: fn(&Operation<'_>) -> bool| {
            requests.iter().any(|request| what(&request.operation))
        };
        let has_changes = is_wanted(|what| what.changes());
        let has_transfers =
            is_wanted(|what| matches!(what, Operation::Read { .. } | Operation::Write { .. }));
        if has_changes && let Err(error) = self.make_room() {
            for (request, result) in requests.iter().zip(&mut results) {
                if result.is_ok() && request.operation.changes() {
                    *result = Err(again(&error));
                }
            }
        }
        let mut is_flushed = true;
        if has_transfers {
            is_flushed = self.transfer(requests, &mut results);
        }
        for (request, result) in requests.iter().zip(&mut results) {
            if result.is_ok() {
                *result = self.change_space(&request.operation);
            }
        }
        let wants_flush = |operation: &Operation<'_>| match operation {
            Operation::Flush => true,
            Operation::Write { persistence, .. } => *persistence == Persistence::Fua && !is_flushed,
            Operation::WriteZeroes(_, zeroing) => zeroing.persistence == Persistence::Fua,
            _ => false,
        };
        if requests
            .iter()
            .any(|request| wants_flush(&request.operation))
            && let Err(error) = self.flush()
        {
            for (request, result) in requests.iter().zip(&mut results) {
                if result.is_ok() && wants_flush(&request.operation) {
                    *result = Err(again(&error));
                }
            }
        }
        for (request, result) in requests.iter_mut().zip(results) {
            let result = result.map_err(|error| self.of_disk(error, &request.operation));
            request.complete(result);
        }
    }

    fn run_stream(&self, stream: &mut dyn TransferStream) -> bool {
        self.stream(stream)
    }

    fn shared_memory_alignment(&self) -> Option<usize> {
        self.data_device().shared_memory_alignment()
    }

    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()> {
        self.disk_geometry.admit_status(range)?;
        self.status(range, visit)
    }

    fn extents(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        self.disk_geometry.admit_status(range)?;
        self.extents(range, visit)
    }

    fn visit_layers(
        &self,
        at: LayerRange,
        visit: &mut LayerVisitor<'_>,
    ) -> Result<ControlFlow<()>> {
        self.disk_geometry.admit_status(at.range)?;
        self.layers(at, visit)
    }
}

fn unpoisoned(locked: LockResult<MutexGuard<'_, Metadata>>) -> MutexGuard<'_, Metadata> {
    locked.unwrap_or_else(|poisoned| {
        let mut metadata = poisoned.into_inner();
        metadata.note_panic();
        metadata
    })
}

/// Refuses to write to an image whose state a write would make worse.
fn check_writable(header: &Header) -> Result<()> {
    let refuse = |kind, detail: &str, advice: &str| {
        Err(Error::new(kind)
            .detail(format!("the qcow2 image {detail}"))
            .advice(advice))
    };
    let features = header.incompatible;
    if features.contains(Incompatible::CORRUPT) {
        let detail = "is marked as corrupt";
        return refuse(
            ErrorKind::Corrupt,
            detail,
            "repair it, or open it for reading",
        );
    }
    if features.contains(Incompatible::DIRTY) {
        let detail = "was not closed, and its refcounts are behind (lazy refcounts)";
        return refuse(ErrorKind::Corrupt, detail, "check and repair it first");
    }
    if header.autoclear.contains(Autoclear::BITMAPS) {
        let detail = "has persistent bitmaps, which writing would make wrong";
        return refuse(
            ErrorKind::Unsupported,
            detail,
            "remove them, or open it for reading",
        );
    }
    Ok(())
}

/// Clears autoclear features that are not maintained here, before the first write.
fn clear_unknown_features(file: &MetadataFile, header: &Header) -> Result<()> {
    let kept = header.autoclear & Autoclear::RAW_DATA_FILE;
    if kept == header.autoclear {
        return Ok(());
    }
    let block = file.block_bytes() as usize;
    let mut first = vec![0; block];
    file.read(0, &mut first)?;
    first[AUTOCLEAR_FEATURES..][..8].copy_from_slice(&kept.bits().to_be_bytes());
    file.write(0, &first)?;
    file.flush()
}

/// Geometry of the image as a device.
fn device_geometry(
    header: &Header,
    file: &Arc<dyn Store>,
    data: Option<&Arc<dyn Store>>,
    backing: Option<&Arc<dyn Device>>,
    writes: bool,
) -> Result<DeviceGeometry> {
    let file = file.geometry();
    let below = data.map_or_else(|| file.clone(), |data| data.geometry());
    let backing_block = backing.map_or(1, |backing| backing.geometry().logical_block);
    let block = below
        .logical_block
        .max(file.logical_block)
        .max(backing_block)
        .max(512);
    let cluster_bytes = header.geometry.cluster_bytes();
    if u64::from(block) > cluster_bytes || !header.virtual_bytes.is_multiple_of(block.into()) {
        return Err(Error::new(ErrorKind::Unsupported)
            .detail(format!(
                "clusters of {cluster_bytes} bytes and a disk of {} are not whole blocks of {block} bytes",
                header.virtual_bytes
            ))
            .advice("open the image through the page cache"));
    }
    let mut features = Features::VOLATILE_CACHE | Features::STATUS;
    features |= below.features & Features::EXTENTS;
    if writes {
        features |= Features::DISCARD
            | Features::WRITE_ZEROES
            | Features::WRITE_ZEROES_UNMAP
            | Features::ASSIGN
            | below.features & (Features::WRITE_ZEROES_ALLOCATE | Features::FUA);
    } else {
        features |= Features::READ_ONLY;
    }
    Ok(DeviceGeometry {
        size: header.virtual_bytes,
        logical_block: block,
        physical_block: below.physical_block.max(block),
        limits: Limits {
            discard: RangeLimit {
                bytes: u64::MAX,
                granularity: cluster_bytes,
            },
            assign: RangeLimit {
                bytes: u64::MAX,
                granularity: cluster_bytes,
            },
            ..Limits::NONE
        },
        features,
    })
}

//! qcow2 images directly on disks and NBD exports: how the device is opened, and how a new image is
//! written over old contents.
//!
//! A block device has a fixed size and old contents: the zeros of the image are written first, and
//! the header when all else is durable. Until then the disk begins with zeros, so that it is no
//! image.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use extant_blockdev::{
    HostAccess, HostOptions, Operation, Persistence, Speed, ZeroedSpace, Zeroing,
};
use extant_hostfs::{CreateReport, Existing, Verified};
use extant_space::{
    ByteRange, ByteSize, Control, Error, ErrorKind, MapSummary, Phase, Preallocation, Remedy,
    Result,
};
use extant_sys::extents::MapSource;

use crate::hold::{OpenDevice, is_export, open_device};
use crate::lock::{LockAccess, lock};
use crate::new_image::NewImage;
use crate::store::{Store, StoreFile};

/// Bytes zeroed between two checks for a cancel.
const PIECE_BYTES: u64 = 64 << 20;

pub(crate) fn is_disk(path: &Path) -> bool {
    is_export(path)
        || std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device())
}

/// Opens a block device for changes, exclusively, so that no process mounts it, and locks out QEMU;
/// or an export.
pub(crate) fn open_disk(path: &Path) -> Result<Arc<dyn Store>> {
    let options = HostOptions {
        access: HostAccess::ReadWrite,
        ..HostOptions::default()
    };
    Ok(match open_device(path, &options)? {
        OpenDevice::Nbd(export) => Arc::new(export),
        OpenDevice::Rbd(image) => Arc::new(image),
        OpenDevice::Host(disk) => {
            lock(&disk, LockAccess::Write).map_err(|error| error.at(path))?;
            Arc::new(disk)
        }
    })
}

/// # Errors
/// `NoSpace` with the missing bytes, for an image larger than the block device.
pub(crate) fn check_fits(image_bytes: u64, disk_bytes: u64) -> Result<()> {
    if image_bytes <= disk_bytes {
        return Ok(());
    }
    Err(Error::new(ErrorKind::NoSpace).detail(format!(
        "no space: the image may take {}, the disk has {}, {} missing",
        ByteSize(image_bytes),
        ByteSize(disk_bytes),
        ByteSize(image_bytes - disk_bytes)
    )))
}

/// Creates the image on the disk at `path`, which must not be in use.
///
/// # Errors
/// `AlreadyExists` unless the contents may be replaced; `NoSpace` for an image larger than the
/// disk; write errors, after which the disk holds no image.
pub(crate) fn create_on_disk(
    path: &Path,
    new: &NewImage,
    existing: Existing,
    control: Control<'_>,
) -> Result<CreateReport> {
    let started = Instant::now();
    if existing != Existing::Replace {
        return Err(Error::new(ErrorKind::AlreadyExists)
            .at(path)
            .detail("is a disk, and its contents would be lost")
            .remedy(Remedy::Replace));
    }
    let disk = open_disk(path)?;
    check_fits(new.file_bytes(), disk.geometry().size).map_err(|error| error.at(path))?;
    fill(&disk, new, control).map_err(|error| error.at(path))?;
    Ok(CreateReport {
        path: path.to_path_buf(),
        size_bytes: new.file_bytes(),
        allocation_bytes: 0,
        preallocation: Preallocation::Off,
        written_bytes: 0,
        resumed_bytes: 0,
        plan: None,
        verified: Verified::AllocatedSize,
        layers: Vec::new(),
        map: MapSummary::for_block_size(disk.geometry().logical_block.into()),
        map_source: MapSource::Seek,
        notes: vec!["on a disk, which has its space".to_owned()],
        elapsed_seconds: started.elapsed().as_secs_f64(),
    })
}

fn fill(disk: &Arc<dyn Store>, new: &NewImage, control: Control<'_>) -> Result<()> {
    let space = match new.preallocation().space() {
        Preallocation::Off => ZeroedSpace::MayUnmap,
        Preallocation::Falloc => ZeroedSpace::Allocated,
        Preallocation::Full => ZeroedSpace::Written,
    };
    let block = u64::from(disk.geometry().logical_block);
    let bytes = new.zeroed_bytes().next_multiple_of(block);
    for piece in ByteRange::new(0, bytes).chunks(PIECE_BYTES) {
        control.cancel.check()?;
        let zeroing = Zeroing {
            space,
            speed: Speed::Any,
            persistence: Persistence::Cached,
        };
        disk.write_zeroes(piece, zeroing)?;
        control.report(Phase::Write, piece.end(), bytes);
    }
    disk.run(Operation::Flush)?;
    let file = StoreFile(Arc::clone(disk));
    new.write_in_steps(&file, control)
}

//! A new capacity.
//!
//! A larger capacity is visible at once, and its space is made afterwards: no other process knows
//! of the new part yet. Until the job has ended, its record holds the old capacity.

use std::sync::Arc;

use extant_hostfs::Access;
use extant_image::{Format, ResizeOptions};
use extant_space::{ByteRange, Control, FallocateMode, Phase, Preallocation, Result, SyncMode};

use super::open_to_undo;
use crate::format::{Facts, known, qcow2};
use crate::job::{Record, Resize, copy_name, remove_work_of};
use crate::storage::{MakeWritten, ResizeWork, Storage, VolumeFile};
use crate::volume_lock::{check_not_open, lock_alone};
use crate::work::Work;

/// Allocated in one call.
const ALLOCATE: u64 = 16 << 30;

pub(super) fn perform(work: &Work<'_>, resize: &Resize, control: Control<'_>) -> Result<()> {
    let file = work.storage.open(&resize.volume, Access::ReadWrite)?;
    let file: Arc<dyn VolumeFile> = Arc::from(file);
    let _locked = lock_alone(&*file)?;
    if known(&*file, &resize.volume)? == Format::Qcow2 {
        return resize_image(&file, work, resize, control);
    }
    let preallocation = resize.preallocation.of_raw()?;
    let (before, after) = (
        work.record.reservation.capacity_before_bytes,
        resize.capacity_bytes,
    );
    if after < before {
        check_not_open(&*file)?;
    }
    control.cancel.check()?;
    let resize_work = ResizeWork {
        volume: &resize.volume,
        size_bytes: after,
        work: &copy_name(work.record.id),
        pace: &work.pace(),
        checkpoint: work,
    };
    if work.storage.resize_volume(&resize_work, control)? {
        return Ok(());
    }
    file.resize(after)?;
    if after > before {
        let part = ByteRange::new(before, after);
        make_real(&*file, part, preallocation, work, control)?;
    }
    file.sync(SyncMode::All)
}

/// The image keeps its size until it can have the new one.
fn resize_image(
    file: &Arc<dyn VolumeFile>,
    work: &Work<'_>,
    resize: &Resize,
    control: Control<'_>,
) -> Result<()> {
    let change = qcow2::Change::new(file, work.pace(), false)?;
    if work.is_resumed {
        change.undo_growth(growth(work.record, resize), control)?;
    }
    let options = ResizeOptions {
        preallocation: Some(resize.preallocation),
        may_shrink: resize.shrink,
    };
    change.resize(resize.capacity_bytes, &options, control)
}

fn growth(record: &Record, resize: &Resize) -> qcow2::Growth {
    qcow2::Growth {
        before_bytes: record.reservation.disk_before_bytes,
        after_bytes: resize.capacity_bytes,
    }
}

/// Makes a part of a raw file real.
pub(super) fn make_real(
    file: &dyn VolumeFile,
    part: ByteRange,
    preallocation: Preallocation,
    work: &Work<'_>,
    control: Control<'_>,
) -> Result<()> {
    match preallocation {
        Preallocation::Off => Ok(()),
        Preallocation::Falloc => part.chunks(ALLOCATE).try_for_each(|piece| {
            control.cancel.check()?;
            file.fallocate(FallocateMode::Allocate, piece)?;
            control.report(Phase::Allocate, piece.end() - part.start(), part.len());
            Ok(())
        }),
        Preallocation::Full => {
            let wanted = MakeWritten {
                range: Some(part),
                unshare: false,
                // Processes that have the volume open do not know of the new part yet.
                is_unknown_to_others: true,
                pace: work.pace(),
            };
            file.make_written(&wanted, control).map(drop)
        }
    }
}

/// Removes the new part. Data past a smaller capacity is lost: shrinking is one call, at the end of
/// its job.
pub(super) fn roll_back(storage: &dyn Storage, record: &Record, resize: &Resize) -> Result<()> {
    let Some(file) = open_to_undo(storage, &resize.volume)? else {
        return Ok(());
    };
    if Facts::of(&*file, &resize.volume)?.format == Some(Format::Qcow2) {
        return qcow2::undo(&file, Some(growth(record, resize)));
    }
    remove_work_of(storage, record.id)?;
    let before = record.reservation.capacity_before_bytes;
    let after = resize.capacity_bytes.next_multiple_of(storage.unit_bytes());
    if after > before && file.size()? == after {
        file.resize(before)?;
        file.sync(SyncMode::All)?;
    }
    Ok(())
}

//! A new capacity.
//!
//! A larger capacity is visible before its space is made. A process that opens the volume then may
//! write to the new part, so written space is made in steps, and the capacity grows with them.
//! Until the job has ended, its record holds the old capacity.

use std::sync::Arc;

use extant_hostfs::Access;
use extant_image::{Format, ResizeOptions};
use extant_space::{
    ByteRange, ByteSize, Control, Error, ErrorKind, FallocateMode, MappedProgress, Phase,
    Preallocation, Progress, Result, SyncMode,
};

use super::open_to_undo;
use crate::format::{Facts, known, qcow2};
use crate::job::{Record, Resize, copy_name, job_of, remove_work_of};
use crate::storage::{MakeWritten, ResizeWork, Storage, VolumeFile};
use crate::volume_lock::{check_not_open, lock_alone};
use crate::work::Work;

/// Allocated in one call.
const ALLOCATE: u64 = 16 << 30;
/// A step of written space, and the least at a low rate.
const STEP_BYTES: u64 = 256 << 20;
const STEP_BYTES_MIN: u64 = 4 << 20;
/// How long a step takes at most.
const STEP_SECONDS: f64 = 0.25;

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
    let now = file.size()?;
    if now > after.next_multiple_of(work.storage.unit_bytes()) {
        if !resize.shrink {
            return Err(Error::new(ErrorKind::InvalidArgument).detail(format!(
                "the volume has grown to {} since the job was made",
                ByteSize(now)
            )));
        }
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
    // The size is between the two where a killed process has begun.
    let part = ByteRange::new(before.min(now), after.max(before.min(now)));
    let is_written = preallocation == Preallocation::Full;
    if is_written && work.storage.grows_in_steps() {
        grow_written(&*file, part, work, control)?;
    } else {
        if is_written && now < after {
            file.resize(after)?;
        }
        make_real(&*file, part, preallocation, work, control)?;
    }
    // Others may have added more meanwhile.
    if now > after || file.size()? < after {
        file.resize(after)?;
    }
    file.sync(SyncMode::All)
}

/// Makes `part`, the end of the volume, written: step by step, as others may write to what they
/// see. A step starts from what the file has then; data that another process writes to the step at
/// work may be replaced by zeros.
fn grow_written(
    file: &dyn VolumeFile,
    part: ByteRange,
    work: &Work<'_>,
    control: Control<'_>,
) -> Result<()> {
    // All of it in few extents. If the file system cannot, space is allocated with the zeros.
    for piece in part.chunks(ALLOCATE) {
        control.cancel.check()?;
        match file.fallocate(FallocateMode::AllocateKeepSize, piece) {
            Err(error) if error.kind() == ErrorKind::Unsupported => break,
            allocated => allocated?,
        }
    }
    let step = match work.rate() {
        Some(rate) => (rate.get() as f64 * STEP_SECONDS) as u64,
        None => STEP_BYTES,
    };
    let step = step.clamp(STEP_BYTES_MIN, STEP_BYTES) / STEP_BYTES_MIN * STEP_BYTES_MIN;
    for piece in part.chunks(step) {
        control.cancel.check()?;
        if file.size()? < piece.end() {
            file.resize(piece.end())?;
        }
        let update = |progress: Progress| {
            let done = piece.start() - part.start() + progress.done_bytes;
            control.report(progress.phase, done.min(part.len()), part.len());
        };
        let progress = MappedProgress {
            update,
            caller: control.progress,
        };
        make_written(file, piece, work, Control::new(control.cancel, &progress))?;
    }
    Ok(())
}

fn make_written(
    file: &dyn VolumeFile,
    part: ByteRange,
    work: &Work<'_>,
    control: Control<'_>,
) -> Result<()> {
    let wanted = MakeWritten {
        range: Some(part),
        unshare: false,
        // Processes that have the volume open do not know of the new part yet.
        is_unknown_to_others: true,
        pace: work.pace(),
    };
    file.make_written(&wanted, control).map(drop)
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
        Preallocation::Full => make_written(file, part, work, control),
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
    let now = file.size()?;
    if before < after && before <= now && now <= after {
        let _locked = match lock_alone(&*file) {
            // The job could not lock it either.
            Err(error) if error.kind() == ErrorKind::InUse && now == before => return Ok(()),
            locked => locked?,
        };
        // Others may have changed it while this waited.
        let now = file.size()?;
        if now < before || now > after {
            return Ok(());
        }
        if before < now {
            check_not_open(&*file)?;
        }
        // Space that was allocated past the end is freed as well.
        file.resize(before)?;
        file.sync(SyncMode::All)?;
    }
    Ok(())
}

/// Whether a volume whose storage resizes it in one step had its new size when its process ended.
pub(super) fn was_done(storage: &dyn Storage, record: &Record, resize: &Resize) -> Result<bool> {
    if !storage.resizes_at_once() {
        return Ok(false);
    }
    let files = storage.work_files()?;
    if files
        .iter()
        .any(|file| job_of(&file.name) == Some(record.id))
    {
        return Ok(false);
    }
    let Some(file) = open_to_undo(storage, &resize.volume)? else {
        return Ok(false);
    };
    let after = resize.capacity_bytes.next_multiple_of(storage.unit_bytes());
    Ok(record.reservation.capacity_before_bytes != after && file.size()? == after)
}

//! Destroys the content of a volume; its capacity does not change.
//!
//! Zeros are written in chunks, each durable before the next. The heartbeat file of the job holds
//! the position, because the extent map cannot show it; a resumed job continues there. The position
//! is trusted only if no other process has changed the volume since: data written over a wiped part
//! would survive.

use std::ops::ControlFlow;

use extant_hostfs::Access;
use extant_image::{ImageOptions, LockAccess, NewImage};
use extant_space::{
    ByteRange, Control, ErrorKind, ExtentState, FallocateMode, MappedProgress, Phase, Progress,
    Result, SyncMode,
};

use super::open_to_undo;
use super::resize::make_real;
use crate::format::qcow2;
use crate::job::{Record, Wipe, WipeMethod, Wiped};
use crate::storage::{Storage, VolumeFile};
use crate::volume_lock::{check_not_open, lock_alone};
use crate::work::Work;

/// Bytes wiped and synced at once: the most progress that a kill can lose. A piece costs a sync.
const PIECE: u64 = 256 << 20;
/// Punched in one call.
const PUNCH: u64 = 1 << 30;
/// A multiple of every block.
const BLOCK_MAX: u64 = 64 << 10;

pub(super) fn perform(work: &Work<'_>, wipe: &Wipe, control: Control<'_>) -> Result<()> {
    let file = work.storage.open(&wipe.volume, Access::ReadWrite)?;
    let _locked = lock_alone(&*file)?;
    if !wipe.force {
        check_not_open(&*file)?;
    }
    let _held = match &work.record.shape {
        Some(_) if !wipe.force => Some(qcow2::hold(&*file, LockAccess::Write)?),
        _ => None,
    };
    if work.record.shape.is_some() {
        qcow2::take_header_away(&*file)?;
    }
    match wipe.method {
        WipeMethod::Zero => zero(&*file, work, control)?,
        WipeMethod::Discard => discard(&*file, control)?,
    }
    if let Some(shape) = &work.record.shape {
        make_empty(&*file, shape, work, control)?;
    }
    file.sync(SyncMode::All)
}

/// Makes an image of a file of zeros.
fn make_empty(
    file: &dyn VolumeFile,
    shape: &ImageOptions,
    work: &Work<'_>,
    control: Control<'_>,
) -> Result<()> {
    let image = NewImage::new(shape)?;
    file.resize(image.file_bytes())?;
    let whole = ByteRange::new(0, image.file_bytes());
    make_real(file, whole, image.preallocation().space(), work, control)?;
    image.write_metadata(file, control)
}

/// Overwritten data is lost. The rest of an image becomes an empty one.
pub(super) fn roll_back(storage: &dyn Storage, record: &Record, wipe: &Wipe) -> Result<()> {
    match (&record.shape, open_to_undo(storage, &wipe.volume)?) {
        (Some(shape), Some(file)) => qcow2::end_wipe(&*file, shape),
        _ => Ok(()),
    }
}

/// Writes zeros over the written extents, in place. The rest reads as zeros anyway.
fn zero(file: &dyn VolumeFile, work: &Work<'_>, control: Control<'_>) -> Result<()> {
    let mut end_byte = match work.record.shape {
        // A part of the new image may be there already, and that needs a file of zeros.
        Some(_) => 0,
        None => wiped_before(file, work)?,
    };
    let mut durable_ns = file.changed_ns()?;
    record_progress(file, work, end_byte, durable_ns);
    let written = written_runs(file)?;
    let total: u64 = written.iter().map(|run| run.len()).sum();
    let pace = work.pace();
    let mut done = 0;
    for piece in written.iter().flat_map(|run| run.chunks(PIECE)) {
        control.cancel.check()?;
        if piece.end() <= end_byte {
            done += piece.len();
            continue;
        }
        let update = |inner: Progress| {
            let within = match inner.phase {
                Phase::Write => inner.done_bytes.min(piece.len()),
                Phase::Allocate => 0,
                _ => piece.len(),
            };
            record_progress(file, work, end_byte, durable_ns);
            control.report(Phase::Write, done + within, total);
        };
        let progress = MappedProgress {
            update,
            caller: control.progress,
        };
        let inner = Control::new(control.cancel, &progress);
        file.write_zeroes(piece, &pace, inner)?;
        end_byte = piece.end();
        durable_ns = file.changed_ns()?;
        record_progress(file, work, end_byte, durable_ns);
        done += piece.len();
        control.report(Phase::Write, done, total);
    }
    Ok(())
}

/// Up to where an earlier process has wiped the volume; 0 when others have changed it since.
fn wiped_before(file: &dyn VolumeFile, work: &Work<'_>) -> Result<u64> {
    let (Some(wiped), Some(changed_ns)) = (work.wiped(), file.changed_ns()?) else {
        return Ok(0);
    };
    // A clock that was set back is no proof either.
    let last_writes = file.last_writes().as_nanos() as u64;
    let own = wiped.durable_ns..=wiped.changed_ns.saturating_add(last_writes);
    Ok(if own.contains(&changed_ns) {
        wiped.end_byte
    } else {
        0
    })
}

/// For the process that resumes the job.
fn record_progress(file: &dyn VolumeFile, work: &Work<'_>, end_byte: u64, durable_ns: Option<u64>) {
    // Without ctimes the position could not be trusted.
    if let (Some(durable_ns), Ok(Some(changed_ns))) = (durable_ns, file.changed_ns()) {
        work.set_wiped(Wiped {
            end_byte,
            durable_ns,
            changed_ns,
        });
    }
}

/// Neighbours are joined: each run costs a sync.
fn written_runs(file: &dyn VolumeFile) -> Result<Vec<ByteRange>> {
    let whole = ByteRange::new(0, file.size()?);
    let mut runs: Vec<ByteRange> = Vec::new();
    file.for_each_extent(whole, &mut |extent| {
        let inside = extent.clip(whole);
        if let (ExtentState::Written, Some(extent)) = (extent.state, inside) {
            match runs.last_mut() {
                Some(last) if last.end() == extent.logical.start() => {
                    *last = ByteRange::new(last.start(), extent.logical.end());
                }
                _ => runs.push(extent.logical),
            }
        }
        ControlFlow::Continue(())
    })?;
    Ok(runs)
}

fn discard(file: &dyn VolumeFile, control: Control<'_>) -> Result<()> {
    let exact = file.size()?;
    // The last block as a whole.
    let size = exact.next_multiple_of(BLOCK_MAX);
    for piece in ByteRange::new(0, size).chunks(PUNCH) {
        control.cancel.check()?;
        match file.fallocate(FallocateMode::PunchHole, piece) {
            // Past the largest file.
            Err(error) if error.kind() == ErrorKind::TooLarge => {
                let piece = ByteRange::new(piece.start(), exact);
                file.fallocate(FallocateMode::PunchHole, piece)?;
            }
            punched => punched?,
        }
        control.report(Phase::Write, piece.end(), size);
    }
    Ok(())
}

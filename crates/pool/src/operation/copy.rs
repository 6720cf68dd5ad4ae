//! Copies a file to another and keeps its extents: holes stay holes, unwritten parts unwritten.
//!
//! Space is allocated first, in pieces as large as extents are, so that the allocator sees full
//! sizes. An interrupted copy starts from the beginning: the data of the target is compared with
//! the source, not trusted, and rewritten where it differs; the source may have changed meanwhile.

use std::ops::ControlFlow;

use extant_provision::{DataWriter, Provisioner};
use extant_space::{
    ByteRange, Control, Error, ErrorKind, Extent, ExtentState, FallocateMode, MappedProgress,
    Phase, RateLimiter, Result, Silent, SpaceFile, SyncMode,
};

use crate::storage::VolumeFile;
use crate::work::Work;

/// Zeroed in one call, between reports.
const ZEROED_BYTES: u64 = 256 << 20;

/// Whether the target has a part of the content already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TargetContent {
    Empty,
    Begun,
}

/// Copies all of `source` at the rate and pace of the job. The target is durable on return.
pub(super) fn copy(
    source: &dyn SpaceFile,
    target: &dyn VolumeFile,
    state: TargetContent,
    work: &Work<'_>,
    control: Control<'_>,
) -> Result<()> {
    let pace = work.pace();
    let writer = if pace.is_background() {
        Some(DataWriter::new(target, &pace)?)
    } else {
        None
    };
    let quiet = Control::new(control.cancel, &Silent);
    let pauses = MappedProgress {
        update: |_| {},
        caller: control.progress,
    };
    let paused = Control::new(control.cancel, &pauses);
    let size = source.size()?;
    let whole = ByteRange::new(0, size);
    // Each of its parts is written or zeroed, once, by one reading of the map of the source.
    let has_old_data = !target.starts_zeroed();
    let state = match state {
        _ if has_old_data => state,
        TargetContent::Begun => {
            target.resize(size)?;
            clear_what_is_no_data(source, target, whole, control)?
        }
        TargetContent::Empty => {
            target.resize(size)?;
            TargetContent::Empty
        }
    };
    let mut total = if has_old_data { size } else { 0 };
    let allocated = if has_old_data {
        ByteRange::new(0, 0)
    } else {
        whole
    };
    for_each_allocated(source, allocated, &mut |extent| {
        control.cancel.check()?;
        if extent.state == ExtentState::Written {
            total += extent.logical.len();
        }
        // If the file system cannot, space is allocated as the data is written.
        let provisioner = Provisioner::new(target, extent.logical, quiet);
        provisioner.allocate().map(drop)
    })?;
    let units = target.copy_units();
    let buffer = || vec![0; units.piece_bytes.min(size) as usize];
    let mut copier = Copier {
        source,
        target,
        state,
        buffers: [buffer(), buffer()],
        sync_bytes: units.sync_bytes,
        done: 0,
        unsynced: 0,
        total,
        work,
        writer,
        limiter: RateLimiter::default(),
        control,
    };
    let mut covered = 0;
    for_each_extent(source, whole, &mut |extent| {
        let range = extent.logical;
        covered = range.end();
        match extent.state {
            ExtentState::Written => range
                .chunks(units.piece_bytes)
                .try_for_each(|piece| copier.copy(piece)),
            _ if has_old_data => range.chunks(ZEROED_BYTES).try_for_each(|piece| {
                target.write_zeroes(piece, &pace, paused)?;
                copier.pass(piece.len());
                Ok(())
            }),
            _ => Ok(()),
        }
    })?;
    let rest = ByteRange::new(covered, target.size()?.max(covered));
    if has_old_data && !rest.is_empty() {
        target.write_zeroes(rest, &pace, paused)?;
    }
    control.report(Phase::Sync, total, total);
    target.sync(SyncMode::All)?;
    control.cancel.check()
}

/// The source may have changed since the copy was begun: extents that no longer hold data in the
/// source become holes in the target.
fn clear_what_is_no_data(
    source: &dyn SpaceFile,
    target: &dyn SpaceFile,
    whole: ByteRange,
    control: Control<'_>,
) -> Result<TargetContent> {
    let cleared = for_each_extent(source, whole, &mut |extent| {
        control.cancel.check()?;
        match extent.state {
            ExtentState::Written => Ok(()),
            _ => target.fallocate(FallocateMode::PunchHole, extent.logical),
        }
    });
    match cleared {
        Ok(()) => Ok(TargetContent::Begun),
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            target.resize(0)?;
            target.resize(whole.end())?;
            Ok(TargetContent::Empty)
        }
        Err(error) => Err(error),
    }
}

fn for_each_allocated(
    file: &dyn SpaceFile,
    range: ByteRange,
    visit: &mut dyn FnMut(Extent) -> Result<()>,
) -> Result<()> {
    for_each_extent(file, range, &mut |extent| match extent.state {
        ExtentState::Hole => Ok(()),
        _ => visit(extent),
    })
}

fn for_each_extent(
    file: &dyn SpaceFile,
    range: ByteRange,
    visit: &mut dyn FnMut(Extent) -> Result<()>,
) -> Result<()> {
    file.walk_extents(range, &mut |extent| {
        visit(extent)?;
        Ok(ControlFlow::Continue(()))
    })
}

struct Copier<'a> {
    source: &'a dyn SpaceFile,
    target: &'a dyn SpaceFile,
    state: TargetContent,
    buffers: [Vec<u8>; 2],
    sync_bytes: u64,
    done: u64,
    unsynced: u64,
    total: u64,
    work: &'a Work<'a>,
    /// In the background.
    writer: Option<DataWriter<'a>>,
    limiter: RateLimiter,
    control: Control<'a>,
}

impl Copier<'_> {
    fn copy(&mut self, piece: ByteRange) -> Result<()> {
        let cancel = self.control.cancel;
        self.limiter.admit(piece.len(), self.work.rate(), cancel)?;
        let [ours, theirs] = &mut self.buffers;
        let ours = &mut ours[..piece.len() as usize];
        if self.source.read_at(ours, piece.start())? < ours.len() {
            return Err(
                Error::new(ErrorKind::InUse).detail("the file became shorter while it was copied")
            );
        }
        let theirs = &mut theirs[..ours.len()];
        let is_there = self.state == TargetContent::Begun
            && is_written(self.target, piece)?
            && self.target.read_at(theirs, piece.start())? == ours.len()
            && theirs == ours;
        if !is_there {
            match &self.writer {
                Some(writer) => {
                    let written = writer.write(ours, piece.start(), cancel);
                    writer.report(self.control.progress);
                    written?;
                }
                None => self.target.write_at(ours, piece.start())?,
            }
            self.unsynced += piece.len();
        }
        self.pass(piece.len());
        if self.unsynced >= self.sync_bytes {
            self.target.sync(SyncMode::Data)?;
            self.unsynced = 0;
        }
        Ok(())
    }

    fn pass(&mut self, bytes: u64) {
        self.done += bytes;
        self.control.report(Phase::Copy, self.done, self.total);
    }
}

/// Zeros that were never written read like zeros that were.
fn is_written(file: &dyn SpaceFile, piece: ByteRange) -> Result<bool> {
    let mut is_written = true;
    file.for_each_extent(piece, &mut |extent| {
        is_written &= extent.state == ExtentState::Written;
        if is_written {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    })?;
    Ok(is_written)
}

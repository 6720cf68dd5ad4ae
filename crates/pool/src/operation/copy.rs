//! Copies a file to another and keeps its extents: holes stay holes, unwritten parts unwritten.
//!
//! Space is allocated first, in pieces as large as extents are, so that the allocator sees full
//! sizes. A copy that was interrupted is gone through again: what the target has is compared with
//! the source, not trusted, and written where it differs; the source may have changed meanwhile.

use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use extant_space::{
    ByteRange, Control, Error, ErrorKind, Extent, ExtentState, FallocateMode, Phase, Result,
    SpaceFile, SyncMode,
};

/// Read and written at once.
const PIECE: u64 = 1 << 20;
/// Written data is flushed in units of this size, so that the final sync is short and does not
/// delay a cancel.
const SYNC_EVERY: u64 = 64 << 20;
/// Allocated in one call.
const ALLOCATE: u64 = 16 << 30;
/// Extents of a map that are kept in memory.
const PART: usize = 1024;

/// Whether the target has a part of the content already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Empty,
    Begun,
}

/// Copies all of `source` at the `rate` of each moment. The target is durable on return.
pub(super) fn copy(
    source: &dyn SpaceFile,
    target: &dyn SpaceFile,
    state: Target,
    rate: &dyn Fn() -> Option<NonZeroU64>,
    control: Control<'_>,
) -> Result<()> {
    let size = source.size()?;
    let whole = ByteRange::new(0, size);
    target.resize(size)?;
    let state = match state {
        Target::Begun => clear_what_is_no_data(source, target, whole, control)?,
        Target::Empty => Target::Empty,
    };
    let mut total = 0;
    for_each_allocated(source, whole, &mut |extent| {
        control.cancel.check()?;
        if extent.state == ExtentState::Written {
            total += extent.logical.len();
        }
        allocate(target, extent.logical)
    })?;
    let mut copier = Copier {
        source,
        target,
        state,
        buffers: [vec![0; PIECE as usize], vec![0; PIECE as usize]],
        done: 0,
        unsynced: 0,
        total,
        rate,
        due: Instant::now(),
        control,
    };
    for_each_allocated(source, whole, &mut |extent| match extent.state {
        ExtentState::Written => extent
            .logical
            .chunks(PIECE)
            .try_for_each(|piece| copier.copy(piece)),
        _ => Ok(()),
    })?;
    control.report(Phase::Sync, total, total);
    target.sync(SyncMode::All)?;
    control.cancel.check()
}

/// The source may have changed since the copy was begun: what is no data in it any more is made a
/// hole in the target.
fn clear_what_is_no_data(
    source: &dyn SpaceFile,
    target: &dyn SpaceFile,
    whole: ByteRange,
    control: Control<'_>,
) -> Result<Target> {
    let cleared = for_each_extent(source, whole, &mut |extent| {
        control.cancel.check()?;
        match extent.state {
            ExtentState::Written => Ok(()),
            _ => target.fallocate(FallocateMode::PunchHole, extent.logical),
        }
    });
    match cleared {
        Ok(()) => Ok(Target::Begun),
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            target.resize(0)?;
            target.resize(whole.end())?;
            Ok(Target::Empty)
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

/// Visits the extents in `range` while other threads read and write the file: its map is read in
/// parts.
fn for_each_extent(
    file: &dyn SpaceFile,
    range: ByteRange,
    visit: &mut dyn FnMut(Extent) -> Result<()>,
) -> Result<()> {
    let mut at = range.start();
    loop {
        let mut part: Vec<Extent> = Vec::new();
        file.for_each_extent(ByteRange::new(at, range.end()), &mut |extent| {
            part.push(extent);
            if part.len() < PART {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })?;
        let is_last = part.len() < PART;
        for extent in part {
            at = extent.logical.end();
            if let Some(extent) = extent.clip(range) {
                visit(extent)?;
            }
        }
        if is_last || at >= range.end() {
            return Ok(());
        }
    }
}

/// Where the file system cannot, the data makes the space.
fn allocate(target: &dyn SpaceFile, range: ByteRange) -> Result<()> {
    for piece in range.chunks(ALLOCATE) {
        match target.fallocate(FallocateMode::AllocateKeepSize, piece) {
            Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(()),
            done => done?,
        }
    }
    Ok(())
}

struct Copier<'a> {
    source: &'a dyn SpaceFile,
    target: &'a dyn SpaceFile,
    state: Target,
    buffers: [Vec<u8>; 2],
    done: u64,
    unsynced: u64,
    total: u64,
    rate: &'a dyn Fn() -> Option<NonZeroU64>,
    /// When the next piece may be copied.
    due: Instant,
    control: Control<'a>,
}

impl Copier<'_> {
    fn copy(&mut self, piece: ByteRange) -> Result<()> {
        self.control.cancel.check()?;
        let [ours, theirs] = &mut self.buffers;
        let ours = &mut ours[..piece.len() as usize];
        if self.source.read_at(ours, piece.start())? < ours.len() {
            return Err(
                Error::new(ErrorKind::InUse).detail("the file became shorter while it was copied")
            );
        }
        let theirs = &mut theirs[..ours.len()];
        let is_there = self.state == Target::Begun
            && is_written(self.target, piece)?
            && self.target.read_at(theirs, piece.start())? == ours.len()
            && theirs == ours;
        if !is_there {
            self.target.write_at(ours, piece.start())?;
            self.unsynced += piece.len();
        }
        self.done += piece.len();
        if self.unsynced >= SYNC_EVERY {
            self.target.sync(SyncMode::Data)?;
            self.unsynced = 0;
        }
        self.control.report(Phase::Copy, self.done, self.total);
        self.hold_rate(piece.len())
    }

    fn hold_rate(&mut self, copied: u64) -> Result<()> {
        let Some(rate) = (self.rate)() else {
            return Ok(());
        };
        // Time that was lost is not made up for.
        let took = Duration::from_secs_f64(copied as f64 / rate.get() as f64);
        self.due = (self.due + took).max(Instant::now());
        while let Some(left) = self.due.checked_duration_since(Instant::now()) {
            if left.is_zero() {
                break;
            }
            self.control.cancel.check()?;
            std::thread::sleep(left.min(Duration::from_millis(20)));
        }
        Ok(())
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

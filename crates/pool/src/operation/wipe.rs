//! The content of a volume is destroyed; its capacity stays.

use std::ops::ControlFlow;

use extant_hostfs::Access;
use extant_space::{
    ByteRange, Control, ExtentState, FallocateMode, Phase, Progress, Result, SyncMode,
};

use crate::job::{Wipe, WipeMethod, Work};
use crate::storage::VolumeFile;
use crate::volume::{check_nobody_has_it_open, lock_alone};

/// Punched in one call.
const PUNCH: u64 = 1 << 30;
/// A multiple of every block.
const BLOCK_MAX: u64 = 64 << 10;

pub(super) fn perform(work: &Work<'_>, wipe: &Wipe, control: Control<'_>) -> Result<()> {
    let file = work.storage.open(&wipe.volume, Access::ReadWrite)?;
    let _locked = lock_alone(&*file)?;
    if !wipe.force {
        check_nobody_has_it_open(&*file)?;
    }
    match wipe.method {
        WipeMethod::Zero => zero(&*file, work, control)?,
        WipeMethod::Discard => discard(&*file, control)?,
    }
    file.sync(SyncMode::All)
}

/// Writes zeros over what is written, in place. The rest reads as zeros anyway.
fn zero(file: &dyn VolumeFile, work: &Work<'_>, control: Control<'_>) -> Result<()> {
    let written = written_runs(file)?;
    let total: u64 = written.iter().map(|run| run.len()).sum();
    let pace = work.pace();
    let mut done = 0;
    for run in written {
        control.cancel.check()?;
        let progress = |inner: Progress| {
            let within = match inner.phase {
                Phase::Write => inner.done_bytes.min(run.len()),
                Phase::Allocate => 0,
                _ => run.len(),
            };
            control.report(Phase::Write, done + within, total);
        };
        let inner = Control::new(control.cancel, &progress);
        file.write_zeroes(run, &pace, inner)?;
        done += run.len();
    }
    Ok(())
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
    // The last block as a whole.
    let size = file.size()?.next_multiple_of(BLOCK_MAX);
    for piece in ByteRange::new(0, size).chunks(PUNCH) {
        control.cancel.check()?;
        file.fallocate(FallocateMode::PunchHole, piece)?;
        control.report(Phase::Write, piece.end(), size);
    }
    Ok(())
}

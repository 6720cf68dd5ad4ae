//! Verifies a result before success is reported.
//!
//! A file system, a disk or a FUSE server may acknowledge an operation that it did not perform.
//! Checked are the size, the extent map (every byte in the wanted state, none shared), the
//! allocated blocks if the map cannot show the state, and a sample of the contents if they are
//! known.

use std::ops::ControlFlow;

use extant_space::{
    ByteRange, Error, ErrorKind, ExtentFlags, ExtentState, Phase, Result, SpaceFile,
};
use serde::Serialize;

use crate::filesystem::FileSystemKind;
use crate::target::RangeTarget;

/// Places of the file that are read back.
const SAMPLES: u64 = 64;
const SAMPLE_BYTES: u64 = 4096;

/// How a result was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verified {
    /// The extent map shows every byte in the wanted state.
    ExtentMap,
    /// The file system cannot show states; the blocks it counts are enough.
    AllocatedSize,
}

/// What the range is known to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contents {
    Any,
    Zeros,
}

/// Every byte of the target's range is written and stays where it is.
pub(crate) fn written(target: &RangeTarget<'_>, contents: Contents) -> Result<Verified> {
    let verified = at_least(target, ExtentState::Written)?;
    if contents == Contents::Zeros {
        sample_zeros(target)?;
    }
    Ok(verified)
}

/// Every byte of the target's range is in `state` or a better one.
pub(crate) fn at_least(target: &RangeTarget<'_>, state: ExtentState) -> Result<Verified> {
    let (file, range) = (target.file, target.range);
    if state == ExtentState::Hole || range.is_empty() {
        return Ok(Verified::ExtentMap);
    }
    // In memory, allocated pages that were never written look like holes.
    let by_map = file.map_source().distinguishes_unwritten()
        || (target.filesystem.kind == FileSystemKind::Memory && state == ExtentState::Written);
    if by_map {
        by_extent_map(target, state)?;
        return Ok(Verified::ExtentMap);
    }
    let allocated = file.allocated_bytes()?;
    if allocated < range.len() {
        return Err(Error::new(ErrorKind::NotKept).at(file.path()).detail(format!(
            "the file system reported success and shows {allocated} bytes allocated instead of {}",
            range.len()
        )));
    }
    Ok(Verified::AllocatedSize)
}

fn by_extent_map(target: &RangeTarget<'_>, state: ExtentState) -> Result<()> {
    let mut wrong = None;
    target.for_each_extent(&mut |extent| {
        let moves = extent
            .flags
            .intersects(ExtentFlags::SHARED | ExtentFlags::DELAYED);
        if extent.state < state || (state == ExtentState::Written && moves) {
            wrong = Some(extent);
            return Ok(ControlFlow::Break(()));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    let Some(extent) = wrong else {
        return Ok(());
    };
    let flags: Vec<&str> = extent.flags.names().collect();
    Err(Error::new(ErrorKind::NotKept)
        .at(target.file.path())
        .during("verify")
        .in_range(extent.logical)
        .detail(
            format!(
                "reported as {state}, but the extent map shows {} {}",
                extent.state,
                flags.join(" ")
            )
            .trim_end()
            .to_owned(),
        ))
}

/// Reads places all over the range: its ends and an even spread.
fn sample_zeros(target: &RangeTarget<'_>) -> Result<()> {
    let (file, range) = (target.file, target.range);
    let mut buffer = [0; SAMPLE_BYTES as usize];
    let last = range.len().saturating_sub(SAMPLE_BYTES);
    target
        .control
        .report(Phase::Verify, range.len(), range.len());
    for index in 0..SAMPLES {
        target.check_stop()?;
        let offset = u128::from(last) * u128::from(index) / u128::from(SAMPLES - 1);
        let start = range.start() + offset as u64;
        let piece = ByteRange::new(start, range.end().min(start + SAMPLE_BYTES));
        let buffer = &mut buffer[..piece.len() as usize];
        let read = file.read_at(buffer, piece.start())?;
        if read < buffer.len() || buffer.iter().any(|&byte| byte != 0) {
            return Err(Error::new(ErrorKind::NotKept)
                .at(file.path())
                .during("verify")
                .in_range(piece)
                .detail("zeros were written, but something else is read back"));
        }
    }
    Ok(())
}

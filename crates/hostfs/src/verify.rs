//! Holds a result against what was asked for, before success is reported.
//!
//! A file system, a disk or a FUSE server may acknowledge what it did not do. What
//! can be seen is looked at: the size, the extent map (every byte in the wanted
//! state, none shared), the blocks that the file takes where the map cannot tell,
//! and a sample of the contents where they are known.

use std::ops::ControlFlow;

use extant_space::{
    ByteRange, Control, Error, ErrorKind, ExtentFlags, ExtentState, Phase, Result, SpaceFile,
};
use serde::Serialize;

use crate::file::HostFile;
use crate::filesystem::{FileSystem, FileSystemKind};

/// Places of the file that are read back.
const SAMPLES: u64 = 64;
const SAMPLE_BYTES: u64 = 4096;

/// What a result was held against.
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

/// Every byte of `range` is written and stays where it is.
pub(crate) fn written(
    file: &HostFile,
    filesystem: &FileSystem,
    range: ByteRange,
    contents: Contents,
    control: Control<'_>,
) -> Result<Verified> {
    let verified = at_least(file, filesystem, range, ExtentState::Written)?;
    if contents == Contents::Zeros {
        sample_zeros(file, range, control)?;
    }
    Ok(verified)
}

/// Every byte of `range` is in `state` or a better one.
pub(crate) fn at_least(
    file: &HostFile,
    filesystem: &FileSystem,
    range: ByteRange,
    state: ExtentState,
) -> Result<Verified> {
    if state == ExtentState::Hole || range.is_empty() {
        return Ok(Verified::ExtentMap);
    }
    // In memory, allocated pages that were never written look like holes.
    let by_map = file.map_source().tells_states()
        || (filesystem.kind == FileSystemKind::Memory && state == ExtentState::Written);
    if by_map {
        by_extent_map(file, range, state)?;
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

fn by_extent_map(file: &HostFile, range: ByteRange, state: ExtentState) -> Result<()> {
    let mut wrong = None;
    file.for_each_extent(range, &mut |extent| {
        let moves = extent
            .flags
            .intersects(ExtentFlags::SHARED | ExtentFlags::DELAYED);
        if extent.state < state || (state == ExtentState::Written && moves) {
            wrong = Some(extent);
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    let Some(extent) = wrong else {
        return Ok(());
    };
    let flags: Vec<&str> = extent.flags.names().collect();
    Err(Error::new(ErrorKind::NotKept)
        .at(file.path())
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

/// Reads places all over `range`: its ends and an even spread.
fn sample_zeros(file: &HostFile, range: ByteRange, control: Control<'_>) -> Result<()> {
    let mut buffer = [0; SAMPLE_BYTES as usize];
    let last = range.len().saturating_sub(SAMPLE_BYTES);
    control.report(Phase::Verify, range.len(), range.len());
    for index in 0..SAMPLES {
        control.cancel.check()?;
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

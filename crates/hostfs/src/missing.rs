//! What of a range is there, and what is missing.

use std::ops::ControlFlow;

use extant_space::{ByteRange, ExtentFlags, ExtentState, Result, SpaceFile};

use crate::file::HostFile;
use crate::filesystem::{FileSystem, FileSystemKind};

/// Looked at in one piece where holes cannot be told from data.
const LOOK_THROUGH: u64 = 1 << 20;
/// The kernel's write zeroes is tried on so much.
const TRIAL: u64 = 1 << 20;

/// Bytes of a range by what is to be done about them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Survey {
    pub(crate) hole_bytes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) shared_bytes: u64,
}

pub(crate) fn survey(file: &HostFile, range: ByteRange) -> Result<Survey> {
    let mut survey = Survey::default();
    file.for_each_extent(range, &mut |extent| {
        let bytes = extent.logical.len();
        match extent.state {
            ExtentState::Hole => survey.hole_bytes += bytes,
            ExtentState::Unwritten => {}
            ExtentState::Written => survey.written_bytes += bytes,
        }
        if extent.flags.contains(ExtentFlags::SHARED) {
            survey.shared_bytes += bytes;
        }
        ControlFlow::Continue(())
    })?;
    Ok(survey)
}

/// The piece to try the kernel's write zeroes on.
pub(crate) fn first_unwritten(file: &HostFile, range: ByteRange) -> Result<Option<ByteRange>> {
    let mut found = None;
    file.for_each_extent(range, &mut |extent| {
        if extent.state == ExtentState::Unwritten {
            let end = extent.logical.end().min(extent.logical.start() + TRIAL);
            found = Some(ByteRange::new(extent.logical.start(), end));
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

/// Holes and data are all that the map tells, so unwritten space may pass for data. Not in
/// memory: pages that were never written are holes there.
pub(crate) fn map_is_blind(file: &HostFile, filesystem: &FileSystem) -> bool {
    !file.map_source().tells_states() && filesystem.kind != FileSystemKind::Memory
}

/// Visits what is not written. Where the map is blind, what reads as zeros counts as missing:
/// zeros written over zeros change no data.
pub(crate) fn for_each(
    file: &HostFile,
    range: ByteRange,
    is_blind: bool,
    visit: &mut dyn FnMut(ByteRange) -> Result<()>,
) -> Result<()> {
    if is_blind {
        let mut buffer = vec![0; LOOK_THROUGH as usize];
        for piece in range.chunks(LOOK_THROUGH) {
            let buffer = &mut buffer[..piece.len() as usize];
            let read = file.read_at(buffer, piece.start())?;
            for zeros in zero_runs(&buffer[..read]) {
                let (start, end) = (piece.start() + zeros.start, piece.start() + zeros.end);
                visit(ByteRange::new(start, end))?;
            }
        }
        return Ok(());
    }
    let mut outcome = Ok(());
    file.for_each_extent(range, &mut |extent| {
        if extent.state == ExtentState::Written {
            return ControlFlow::Continue(());
        }
        outcome = visit(extent.logical);
        match outcome {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    })?;
    outcome
}

/// Runs of zero sectors in `bytes`: no file system has blocks smaller than a sector.
fn zero_runs(bytes: &[u8]) -> Vec<std::ops::Range<u64>> {
    const SECTOR: usize = 512;
    let mut runs: Vec<std::ops::Range<u64>> = Vec::new();
    for (index, sector) in bytes.chunks(SECTOR).enumerate() {
        if sector.iter().any(|&byte| byte != 0) {
            continue;
        }
        let start = (index * SECTOR) as u64;
        let end = start + sector.len() as u64;
        match runs.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => runs.push(start..end),
        }
    }
    runs
}

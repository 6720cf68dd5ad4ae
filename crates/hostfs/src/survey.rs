//! What of a range is there, and what is missing.

use std::ops::ControlFlow;

use extant_space::{ByteRange, ExtentFlags, ExtentState, Result, SpaceFile};

use crate::file::HostFile;
use crate::filesystem::{FileSystem, FileSystemKind};
use crate::written::Target;

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

pub(crate) fn survey(target: &Target<'_>) -> Result<Survey> {
    let mut survey = Survey::default();
    target.for_each_extent(&mut |extent| {
        let bytes = extent.logical.len();
        match extent.state {
            ExtentState::Hole => survey.hole_bytes += bytes,
            ExtentState::Unwritten => {}
            ExtentState::Written => survey.written_bytes += bytes,
        }
        if extent.flags.contains(ExtentFlags::SHARED) {
            survey.shared_bytes += bytes;
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(survey)
}

/// The piece to try the kernel's write zeroes on.
pub(crate) fn first_unwritten(target: &Target<'_>) -> Result<Option<ByteRange>> {
    let mut found = None;
    target.for_each_extent(&mut |extent| {
        if extent.state == ExtentState::Unwritten {
            let end = extent.logical.end().min(extent.logical.start() + TRIAL);
            found = Some(ByteRange::new(extent.logical.start(), end));
            return Ok(ControlFlow::Break(()));
        }
        Ok(ControlFlow::Continue(()))
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
    target: &Target<'_>,
    is_blind: bool,
    visit: &mut dyn FnMut(ByteRange) -> Result<()>,
) -> Result<()> {
    if is_blind {
        let mut buffer = vec![0; LOOK_THROUGH as usize];
        for piece in target.range.chunks(LOOK_THROUGH) {
            target.check_go_on()?;
            let buffer = &mut buffer[..piece.len() as usize];
            let read = target.file.read_at(buffer, piece.start())?;
            for zeros in zero_runs(&buffer[..read]) {
                let (start, end) = (piece.start() + zeros.start, piece.start() + zeros.end);
                visit(ByteRange::new(start, end))?;
            }
        }
        return Ok(());
    }
    target.for_each_extent(&mut |extent| {
        if extent.state != ExtentState::Written {
            visit(extent.logical)?;
        }
        Ok(ControlFlow::Continue(()))
    })
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

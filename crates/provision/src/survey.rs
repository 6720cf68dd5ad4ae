//! The survey of a range: written, unwritten and missing parts.

use std::ops::ControlFlow;

use extant_space::{
    ByteRange, CancelToken, Control, ExtentFlags, ExtentState, MapDetail, Result, Silent, SpaceFile,
};

use crate::provisioner::Provisioner;

/// Read at a time if the map does not distinguish holes from data.
const READ_BYTES: u64 = 1 << 20;
/// Bytes on which the kernel's write zeroes is tried.
const TRIAL_BYTES: u64 = 1 << 20;

/// Bytes of a range by the state of their space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Bytes without space.
    pub hole_bytes: u64,
    /// Bytes that are written.
    pub written_bytes: u64,
    /// Bytes whose space other files have as well.
    pub shared_bytes: u64,
}

impl Survey {
    /// Reads the extent map of `range`.
    ///
    /// # Errors
    /// Those of the map.
    pub fn of(file: &dyn SpaceFile, range: ByteRange) -> Result<Self> {
        let cancel = CancelToken::new();
        Provisioner::new(file, range, Control::new(&cancel, &Silent)).survey()
    }
}

impl Provisioner<'_> {
    /// Reads the extent map of the range.
    ///
    /// # Errors
    /// Those of the map; `Cancelled`.
    pub fn survey(&self) -> Result<Survey> {
        let mut survey = Survey::default();
        self.for_each_extent(&mut |extent| {
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

    /// Whether the map hides unwritten space.
    pub(crate) fn map_hides_unwritten(&self) -> Result<bool> {
        Ok(self.file.map_detail()? == MapDetail::HolesAndData)
    }
}

/// The chunk to try the kernel's write zeroes on.
pub(crate) fn first_unwritten(target: &Provisioner<'_>) -> Result<Option<ByteRange>> {
    let mut found = None;
    target.for_each_extent(&mut |extent| {
        if extent.state == ExtentState::Unwritten {
            let end = extent
                .logical
                .end()
                .min(extent.logical.start() + TRIAL_BYTES);
            found = Some(ByteRange::new(extent.logical.start(), end));
            return Ok(ControlFlow::Break(()));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(found)
}

/// Visits the parts that are not written. If the map hides unwritten space, a part that reads as
/// zeros counts as missing: zeros written over zeros change no data.
pub(crate) fn for_each(
    target: &Provisioner<'_>,
    hides_unwritten: bool,
    visit: &mut dyn FnMut(ByteRange) -> Result<()>,
) -> Result<()> {
    if hides_unwritten {
        let mut buffer = vec![0; READ_BYTES as usize];
        for piece in target.range.chunks(READ_BYTES) {
            target.check_stop()?;
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

//! Verifies a result before success is reported.
//!
//! A file system, a disk or a FUSE server may acknowledge an operation that it did not perform.
//! Checked are the size, the extent map (every byte in the wanted state, none shared), the
//! allocated blocks if the map cannot show the state, and a sample of the contents if they are
//! known.

use std::ops::ControlFlow;

use extant_space::{
    ByteRange, Error, ErrorKind, ExtentFlags, ExtentState, MapDetail, Phase, Result, SpaceFile,
};
use serde::Serialize;

use crate::provisioner::Provisioner;

/// Places of the file that are read back.
const SAMPLES: u64 = 64;
const SAMPLE_BYTES: u64 = 4096;
/// Read at once where all is read.
const READ_BYTES: u64 = 1 << 20;

/// How a result was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verified {
    /// The extent map shows every byte in the wanted state.
    ExtentMap,
    /// The file system cannot show states; the blocks it counts are enough.
    AllocatedSize,
}

/// Known contents of the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Any data.
    Any,
    /// Zeros.
    Zeros,
}

impl Provisioner<'_> {
    /// Verifies that all of `part` reads as zeros.
    ///
    /// # Errors
    /// `NotKept` with the place; those of the device; `Cancelled`.
    pub(crate) fn verify_zeros(&self, part: ByteRange) -> Result<()> {
        let mut buffer = vec![0; READ_BYTES as usize];
        for piece in part.chunks(READ_BYTES) {
            self.check_stop()?;
            check_zeros(self.file, piece, &mut buffer)?;
            self.control
                .report(Phase::Verify, piece.end() - part.start(), part.len());
        }
        Ok(())
    }

    /// Verifies that samples of `part` read as zeros.
    ///
    /// # Errors
    /// As [`verify_zeros`](Self::verify_zeros).
    pub(crate) fn verify_samples(&self, part: ByteRange) -> Result<()> {
        sample_zeros(&Self {
            range: part,
            ..*self
        })
    }

    /// Verifies that every byte of the range is written and is overwritten in place.
    ///
    /// # Errors
    /// `NotKept` where a byte is not; those of the map; `Cancelled`.
    pub fn verify_written(&self, contents: Contents) -> Result<Verified> {
        let verified = self.verify_state(ExtentState::Written)?;
        if contents == Contents::Zeros {
            sample_zeros(self)?;
        }
        Ok(verified)
    }

    /// Verifies that every byte of the range is in `state` or a better one.
    ///
    /// # Errors
    /// As [`verify_written`](Self::verify_written).
    pub fn verify_state(&self, state: ExtentState) -> Result<Verified> {
        if state == ExtentState::Hole || self.range.is_empty() {
            return Ok(Verified::ExtentMap);
        }
        let by_map = match self.file.map_detail()? {
            MapDetail::States => true,
            // Allocated pages that were never written look like holes.
            MapDetail::Pages => state == ExtentState::Written,
            MapDetail::HolesAndData => false,
        };
        if by_map {
            by_extent_map(self, state)?;
            if state == ExtentState::Written {
                self.verify_below()?;
            }
            return Ok(Verified::ExtentMap);
        }
        let allocated = self.file.allocated_bytes()?;
        if allocated < self.range.len() {
            return Err(Error::new(ErrorKind::NotKept).detail(format!(
                "the file system reported success and shows {allocated} bytes allocated instead of {}",
                self.range.len()
            )));
        }
        Ok(Verified::AllocatedSize)
    }
}

fn by_extent_map(target: &Provisioner<'_>, state: ExtentState) -> Result<()> {
    let mut wrong = None;
    let mut verified_to = target.range.start();
    target.for_each_extent(&mut |extent| {
        let moves = extent
            .flags
            .intersects(ExtentFlags::SHARED | ExtentFlags::DELAYED);
        if extent.state < state || (state == ExtentState::Written && moves) {
            wrong = Some(extent);
            return Ok(ControlFlow::Break(()));
        }
        verified_to = extent.logical.end();
        Ok(ControlFlow::Continue(()))
    })?;
    let Some(extent) = wrong else {
        let rest = ByteRange::new(verified_to.min(target.range.end()), target.range.end());
        if rest.is_empty() {
            return Ok(());
        }
        return Err(Error::new(ErrorKind::NotKept)
            .during("verify")
            .in_range(rest)
            .detail(format!(
                "reported as {state}, but the extent map ends before"
            )));
    };
    let flags: Vec<&str> = extent.flags.names().collect();
    Err(Error::new(ErrorKind::NotKept)
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
fn sample_zeros(target: &Provisioner<'_>) -> Result<()> {
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
        check_zeros(file, piece, &mut buffer)?;
    }
    Ok(())
}

/// Reads `piece` into a buffer that is at least as long.
fn check_zeros(file: &dyn SpaceFile, piece: ByteRange, buffer: &mut [u8]) -> Result<()> {
    let buffer = &mut buffer[..piece.len() as usize];
    let read = file.read_at(buffer, piece.start())?;
    if read < buffer.len() || buffer.iter().any(|&byte| byte != 0) {
        return Err(Error::new(ErrorKind::NotKept)
            .during("verify")
            .in_range(piece)
            .detail("zeros were written, but something else is read back"));
    }
    Ok(())
}

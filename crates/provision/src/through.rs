//! Written space in the layers below a file that [writes through](SpaceFile::writes_through).
//!
//! Zeros that are written from now on reach every layer as written space. Extents that the file
//! already had as written may be holes or unwritten in lower layers, and are made written there;
//! its data is preserved.
//!
//! [SpaceFile::writes_through]: extant_space::SpaceFile::writes_through

use std::ops::ControlFlow;

use extant_space::{ByteRange, Error, ErrorKind, ExtentState, Phase, Remedy, Result};

use crate::pace::{PACED_UNIT, Pace, Pacer};
use crate::provisioner::Provisioner;
use crate::timed_calls;

impl Provisioner<'_> {
    /// Makes the written extents of the file written in the layers below. Returns the bytes zeroed
    /// there. Not durable on return.
    pub(crate) fn write_through(&self) -> Result<u64> {
        if !self.file.writes_through() {
            return Ok(0);
        }
        let mut pacer = match self.pace {
            Pace::Full => None,
            paced => Some(Pacer::of_file(self.file, paced)?),
        };
        let total = self.range.len();
        let (mut done, mut zeroed) = (0, 0);
        self.for_each_extent(&mut |extent| {
            if extent.state != ExtentState::Written {
                return Ok(ControlFlow::Continue(()));
            }
            let part = extent.logical;
            // Space that is written below already needs no tokens.
            if self.first_not_written_below(part)?.is_some() {
                let mut zero = |chunk: ByteRange| {
                    self.check_stop()?;
                    zeroed += self.file.write_through(chunk)?;
                    let there = done + (chunk.end() - part.start());
                    self.control.report(Phase::Write, there, total);
                    Ok(())
                };
                match &mut pacer {
                    None => timed_calls::zero(self.file, part, &mut zero)?,
                    Some(pacer) => {
                        pacer.one_at_a_time(part, PACED_UNIT, self.control, &mut zero)?;
                    }
                }
            }
            done += part.len();
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(zeroed)
    }

    /// Verifies that the range is written in every layer below that has a map.
    ///
    /// # Errors
    /// `NotKept` with the layer where it is not; those of the maps.
    pub(crate) fn verify_below(&self) -> Result<()> {
        if !self.file.writes_through() {
            return Ok(());
        }
        match self.first_not_written_below(self.range)? {
            None => Ok(()),
            Some((layer, state, range)) => Err(Error::new(ErrorKind::NotKept)
                .during("verify")
                .in_range(range)
                .detail(format!("written in the file, but {state} in {layer} below"))
                .remedy(Remedy::MetadataZeroes)),
        }
    }

    /// The first part of `range` that is not written in a layer below: the layer, the state there,
    /// and the bytes of the file.
    fn first_not_written_below(
        &self,
        range: ByteRange,
    ) -> Result<Option<(String, ExtentState, ByteRange)>> {
        self.check_stop()?;
        let mut first = None;
        self.file.for_each_extent_below(range, &mut |found| {
            if found.extent.state == ExtentState::Written {
                return ControlFlow::Continue(());
            }
            first = Some((found.layer.to_owned(), found.extent.state, found.top()));
            ControlFlow::Break(())
        })?;
        Ok(first)
    }
}

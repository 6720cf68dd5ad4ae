//! Gives the partial file the requested size and state.
//!
//! A file of an earlier run is resumed: its written part stays, and space past the requested part
//! is freed.

use std::time::SystemTime;

use extant_space::{
    ByteRange, ByteSize, ErrorKind, FallocateMode, Preallocation, Remedy, Result, SpaceFile,
};

use super::content_writer::ContentWriter;
use crate::file::HostFile;
use crate::plan::Plan;
use crate::survey;
use crate::target::RangeTarget;
use crate::written::Made;
use crate::zero_writer::ZeroWriter;

/// What is to be made. The target's range is the part that is made real.
pub(super) struct Content<'a> {
    pub(super) target: RangeTarget<'a>,
    pub(super) size_bytes: u64,
    pub(super) preallocation: Preallocation,
}

impl Content<'_> {
    /// Makes it, with `early` before what is not written becomes so; durable on return.
    pub(super) fn make(&self, early: Option<&ContentWriter<'_>>) -> Result<Made> {
        if let Some(filling) = early {
            return self.make_filled(filling);
        }
        let target = &self.target;
        match self.preallocation {
            Preallocation::Off => {
                target.file.resize(0)?;
                self.resize()?;
                Ok(Made::default())
            }
            Preallocation::Falloc => self.allocated(),
            Preallocation::Full if survey::map_hides_unwritten(target.file, target.filesystem) => {
                self.written_in_order()
            }
            Preallocation::Full => {
                self.size_up()?;
                target.make_written()
            }
        }
    }

    /// Space is reserved, then filled, and zeros go where nothing was put.
    fn make_filled(&self, filling: &ContentWriter<'_>) -> Result<Made> {
        let target = &self.target;
        match self.preallocation {
            Preallocation::Off => {
                target.file.resize(0)?;
                self.resize()?;
            }
            Preallocation::Falloc => {
                self.allocated()?;
            }
            Preallocation::Full => {
                self.size_up()?;
                // Refused: what is written gets its space by that.
                let _ = target.allocate()?;
            }
        }
        (filling.fill)(target.file, target.control)?;
        match self.preallocation {
            Preallocation::Full => target.make_written(),
            _ => {
                target.sync()?;
                Ok(Made::default())
            }
        }
    }

    fn allocated(&self) -> Result<Made> {
        self.size_up()?;
        if self.target.allocate()?.is_some() {
            let error = self.target.file.error(rustix::io::Errno::OPNOTSUPP);
            return Err(error
                .detail(format!(
                    "{} cannot reserve space",
                    self.target.filesystem.name
                ))
                .remedy(Remedy::WriteZeros));
        }
        self.target.sync()?;
        Ok(Made::default())
    }

    /// If the map does not distinguish unwritten from written space, the size is the record of
    /// progress: it grows with the zeros. It is valid until the machine restarts.
    fn written_in_order(&self) -> Result<Made> {
        let RangeTarget {
            file,
            filesystem,
            range,
            ..
        } = self.target;
        let mut kept = file.size()?.min(range.end());
        if kept > 0 && !is_from_this_boot(file)? {
            file.resize(0)?;
            kept = 0;
        }
        let rest = RangeTarget {
            range: ByteRange::new(kept, range.end()),
            ..self.target
        };
        rest.check_space(rest.range.len())?;
        let refused = rest.allocate()?;
        let mut plan = Plan::of(file, filesystem, None)?;
        plan.fall_back_to_write_in_order(
            refused
                .as_deref()
                .unwrap_or("the file system does not show which parts are written"),
        );
        let mut writer = ZeroWriter::new(&self.target, &plan, kept)?;
        writer.zero(rest.range)?;
        let zeroed_bytes = writer.finish()?;
        self.resize()?;
        self.target.sync()?;
        Ok(Made {
            plan: Some(plan),
            already_written_bytes: kept,
            zeroed_bytes,
        })
    }

    /// Gives the file its size and makes sure that what is missing fits.
    fn size_up(&self) -> Result<()> {
        self.resize()?;
        self.trim()?;
        let allocated = self.target.file.allocated_bytes()?;
        let missing = self.target.range.len().saturating_sub(allocated);
        self.target.check_space(missing)
    }

    fn resize(&self) -> Result<()> {
        self.target
            .file
            .resize(self.size_bytes)
            .map_err(|error| match error.kind() {
                ErrorKind::TooLarge | ErrorKind::InvalidArgument => {
                    error.with_kind(ErrorKind::TooLarge).detail(format!(
                        "{} is past the largest file of this {}",
                        ByteSize(self.size_bytes),
                        self.target.filesystem.name
                    ))
                }
                _ => error,
            })
    }

    /// An earlier run may have been asked for more: the rest stays sparse.
    fn trim(&self) -> Result<()> {
        let file = self.target.file;
        let rest = ByteRange::new(self.target.range.end(), self.size_bytes);
        if rest.is_empty() || file.allocated_bytes()? == 0 {
            return Ok(());
        }
        file.fallocate(FallocateMode::PunchHole, rest)
            .or_else(|error| match error.kind() {
                // Then a shorter file has fewer blocks as well.
                ErrorKind::Unsupported => {
                    file.resize(rest.start())?;
                    self.resize()
                }
                _ => Err(error),
            })
    }
}

fn is_from_this_boot(file: &HostFile) -> Result<bool> {
    let modified = file
        .metadata()?
        .modified()
        .map_err(|source| file.error(source))?;
    let up = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let up = std::time::Duration::new(up.tv_sec as u64, up.tv_nsec as u32);
    Ok(SystemTime::now()
        .checked_sub(up)
        .is_some_and(|booted| modified > booted))
}

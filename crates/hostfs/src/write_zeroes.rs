//! `fallocate -w` on any file system: the range reads as zeros and is written.
//!
//! The kernel's own operation is tried first. Where it is refused the same
//! guarantee is reached from here: the range is allocated in one piece, then all
//! of it is overwritten with zeros. Edge blocks follow the rules of the kernel: an
//! edge block that is a hole or unwritten becomes written as a whole, one that is
//! written is zeroed only inside the range.
//!
//! Unlike [`materialize`](crate::materialize) this destroys the data in the range,
//! and like `fallocate(2)` it keeps nobody out.

use extant_space::{
    ByteRange, Control, Error, ErrorKind, FallocateMode, Phase, Result, SpaceFile, SyncMode,
};
use serde::Serialize;

use crate::file::HostFile;
use crate::filesystem::FileSystem;
use crate::materialize;
use crate::pace::Pace;
use crate::plan::{Plan, refusal};
use crate::verify::{self, Contents, Verified};
use crate::zero_writer::ZeroWriter;

/// What is done when the kernel refuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallback {
    /// Zeros are written from here.
    #[default]
    Write,
    /// The kernel's error is returned.
    None,
}

/// What [`write_zeroes`] did.
#[derive(Clone, Debug, Serialize)]
pub struct WriteZeroesReport {
    /// The bytes that are zero and written now.
    pub range: ByteRange,
    /// The way taken where the kernel refused; `None`: the kernel did it.
    pub fallback: Option<Plan>,
    /// What the fallback's result was held against.
    pub verified: Option<Verified>,
}

/// Zeroes `range` of `file` and leaves it written; the file grows to the end of the range.
///
/// Errors are the kernel's, and with [`Fallback::Write`] [`ErrorKind::CopyOnWrite`] where
/// written space would not stay. A cancel leaves a part of the range zeroed.
pub fn write_zeroes(
    file: &HostFile,
    range: ByteRange,
    fallback: Fallback,
    pace: Pace,
    control: Control<'_>,
) -> Result<WriteZeroesReport> {
    let by_kernel = if fallback == Fallback::Write {
        materialize::zero_in_calls(range, |piece| {
            control.cancel.check()?;
            file.fallocate(FallocateMode::WriteZeroes, piece)?;
            control.report(Phase::Write, piece.end() - range.start(), range.len());
            Ok(())
        })
    } else {
        file.fallocate(FallocateMode::WriteZeroes, range)
    };
    let refused = match by_kernel {
        Ok(()) => {
            return Ok(WriteZeroesReport {
                range,
                fallback: None,
                verified: None,
            });
        }
        Err(error) if error.kind() == ErrorKind::Unsupported && fallback == Fallback::Write => {
            refusal(&error)
        }
        Err(error) => return Err(error),
    };
    let filesystem = FileSystem::of(file.as_file()).map_err(|error| error.at(file.path()))?;
    if let Some(why) = filesystem.moves_written_space(file.attributes()) {
        return Err(Error::new(ErrorKind::CopyOnWrite)
            .at(file.path())
            .detail(format!(
                "space made written here would not stay in place: {why}"
            )));
    }
    let allocated =
        materialize::allocate(file, &filesystem, range, FallocateMode::Allocate, control);
    let mut plan = Plan::by_writing(file, &filesystem, &refused);
    match allocated {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            plan.fall_back_to_write_in_order(&refusal(&error));
            if file.size()? < range.end() {
                file.resize(range.end())?;
            }
        }
        Err(error) => return Err(error),
    }
    let mut writer = ZeroWriter::new(file, &plan, pace, control, None, (0, range.len()))?;
    writer.zero(range)?;
    writer.finish()?;
    control.report(Phase::Sync, range.len(), range.len());
    file.sync(SyncMode::Data)?;
    let verified = verify::written(file, &filesystem, range, Contents::Zeros, control)?;
    Ok(WriteZeroesReport {
        range,
        fallback: Some(plan),
        verified: Some(verified),
    })
}

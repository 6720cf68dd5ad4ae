//! `fallocate -w` on any file system: the range reads as zeros and is written.
//!
//! The kernel's own operation is tried first. If it is refused, the range is allocated in one
//! request, then overwritten with zeros. Edge blocks follow the rules of the kernel: an edge block
//! that is a hole or unwritten becomes written as a whole, one that is written is zeroed only
//! inside the range.
//!
//! Unlike [`materialize`](crate::materialize) this destroys the data in the range,
//! and like `fallocate(2)` it excludes no other process.

use extant_space::{ByteRange, Control, ErrorKind, FallocateMode, Phase, Result, SpaceFile};
use serde::Serialize;

use crate::pace::{PACED_UNIT, Pace, Pacer};
use crate::plan::{Plan, refusal};
use crate::provisioner::Provisioner;
use crate::timed_calls;
use crate::verify::{Contents, Verified};

/// Treatment of a refusal by the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallback {
    /// Zeros are written from here.
    #[default]
    Write,
    /// The kernel's error is returned.
    None,
}

/// Report of [`write_zeroes`].
#[derive(Clone, Debug, Serialize)]
pub struct WriteZeroesReport {
    /// The bytes that are zero and written now.
    pub range: ByteRange,
    /// The way taken where the kernel refused; `None`: the kernel did it.
    pub fallback: Option<Plan>,
    /// How the fallback's result was verified.
    pub verified: Option<Verified>,
}

/// Zeroes `range` of `file` and leaves it written; the file grows to the end of the range.
///
/// Errors are the kernel's, and with [`Fallback::Write`] [`ErrorKind::CopyOnWrite`] where
/// written space would not stay. A cancel leaves a part of the range zeroed.
pub fn write_zeroes(
    file: &dyn SpaceFile,
    range: ByteRange,
    fallback: Fallback,
    pace: &Pace,
    control: Control<'_>,
) -> Result<WriteZeroesReport> {
    if fallback == Fallback::None {
        file.fallocate(FallocateMode::WriteZeroes, range)?;
        return Ok(WriteZeroesReport::by_kernel(range));
    }
    pace.check(file, control.progress)?;
    let refused = match by_kernel(file, range, pace, control) {
        Ok(()) => None,
        Err(error) if error.kind() == ErrorKind::Unsupported => Some(refusal(&error)),
        Err(error) => return Err(error),
    };
    let target = Provisioner::new(file, range, control).at_pace(pace);
    let Some(refused) = refused else {
        target.write_rest(&Plan::by_writing(file, "only the rest"))?;
        return Ok(WriteZeroesReport::by_kernel(range));
    };
    file.check_written_stays()?;
    let mut plan = Plan::by_writing(file, &refused);
    let allocated = timed_calls::allocate(&target, FallocateMode::Allocate);
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
    plan.report();
    target.write(&plan, range, 0)?;
    target.sync()?;
    let verified = target.verify_written(Contents::Zeros)?;
    Ok(WriteZeroesReport {
        range,
        fallback: Some(plan),
        verified: Some(verified),
    })
}

pub(crate) fn by_kernel(
    file: &dyn SpaceFile,
    range: ByteRange,
    pace: &Pace,
    control: Control<'_>,
) -> Result<()> {
    let mut zero = |chunk: ByteRange| {
        control.cancel.check()?;
        file.fallocate(FallocateMode::WriteZeroes, chunk)?;
        control.report(Phase::Write, chunk.end() - range.start(), range.len());
        Ok(())
    };
    match pace {
        Pace::Full => timed_calls::zero(file, range, zero),
        paced => Pacer::of_file(file, paced)?.one_at_a_time(range, PACED_UNIT, control, &mut zero),
    }
}

impl WriteZeroesReport {
    fn by_kernel(range: ByteRange) -> Self {
        Self {
            range,
            fallback: None,
            verified: None,
        }
    }
}

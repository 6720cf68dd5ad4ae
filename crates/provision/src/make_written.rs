//! Makes a range of a file allocated or written: the core of every operation.
//!
//! The holes are allocated in requests as large as possible; then zeros are written over the rest,
//! by the plan. The caller excludes other writers and checks for shared parts.

use extant_space::{ByteRange, ByteSize, Error, ErrorKind, FallocateMode, Phase, Result};

use crate::pace::{PACED_UNIT, Pace, Pacer};
use crate::plan::{Plan, Strategy, refusal};
use crate::provisioner::Provisioner;
use crate::survey;
use crate::timed_calls;
use crate::zero_writer::ZeroWriter;

/// Report of [`Provisioner::make_written`].
#[derive(Clone, Debug, Default)]
pub struct Provisioned {
    /// The way taken; `None`: nothing had to be done.
    pub plan: Option<Plan>,
    /// Bytes that were written before.
    pub already_written_bytes: u64,
    /// Bytes of zeros written, by the file system or by us.
    pub zeroed_bytes: u64,
    /// Bytes that were written in the file, and are now in the layers below as well.
    pub zeroed_below_bytes: u64,
}

impl Provisioner<'_> {
    /// Allocates the holes of the range, which must be inside the file, and writes zeros over the
    /// extents that are not written; data is preserved. Durable on return, and not verified.
    ///
    /// # Errors
    /// `NoSpace`, `CopyOnWrite`, `Cancelled`, those of the device and of the guard.
    pub fn make_written(&self) -> Result<Provisioned> {
        let before = self.survey()?;
        let total = self.range.len();
        let hides_unwritten = self.map_hides_unwritten()?;
        if before.written_bytes == total && !hides_unwritten {
            let zeroed_below_bytes = self.write_through()?;
            if zeroed_below_bytes > 0 {
                self.sync()?;
            }
            return Ok(Provisioned {
                already_written_bytes: total,
                zeroed_below_bytes,
                ..Provisioned::default()
            });
        }
        let no_fallocate = if before.hole_bytes == 0 && !hides_unwritten {
            None
        } else {
            self.allocate()?
        };
        let trial = survey::first_unwritten(self)?;
        let mut plan = Plan::of(self.file, trial)?;
        if let Some(reason) = no_fallocate {
            plan.fall_back_to_write_in_order(&reason);
        }
        plan.report();
        let mut made = Provisioned {
            already_written_bytes: before.written_bytes,
            zeroed_below_bytes: self.write_through()?,
            ..Provisioned::default()
        };
        if plan.strategy == Strategy::WriteZeroes {
            // The range of the trial is zeroed already.
            let tried = trial.map_or(0, ByteRange::len);
            made.zeroed_bytes = tried + self.zero_by_kernel(before.written_bytes + tried)?;
            self.write_rest(&plan)?;
        } else {
            let done = if hides_unwritten {
                0
            } else {
                before.written_bytes
            };
            let mut writer = ZeroWriter::new(self, &plan, done)?;
            survey::for_each(self, hides_unwritten, &mut |part| writer.zero(part))?;
            made.zeroed_bytes = writer.finish()?;
        }
        if hides_unwritten {
            made.already_written_bytes = total - made.zeroed_bytes;
        }
        made.plan = Some(plan);
        self.sync()?;
        Ok(made)
    }

    /// Allocates the holes of the range; the size does not change. Returns the answer of a file
    /// system that cannot.
    ///
    /// # Errors
    /// `NoSpace` with the missing bytes, `Cancelled`, those of the device and of the guard.
    pub fn allocate(&self) -> Result<Option<String>> {
        match timed_calls::allocate(self, FallocateMode::AllocateKeepSize) {
            Ok(()) => Ok(None),
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(Some(refusal(&error))),
            Err(error) => Err(self.explain_full(error)),
        }
    }

    /// Writes zeros as data over all of the range, from the start to the end, and allocates first
    /// where that is possible: for a map that does not show which parts are written. `done_bytes`
    /// before the range are written already. Not durable on return.
    ///
    /// # Errors
    /// As [`make_written`](Self::make_written).
    pub fn write_in_order(&self, done_bytes: u64) -> Result<Provisioned> {
        self.check_space(self.range.len())?;
        let refused = self.allocate()?;
        let mut plan = Plan::of(self.file, None)?;
        plan.fall_back_to_write_in_order(
            refused
                .as_deref()
                .unwrap_or("the file system does not show which parts are written"),
        );
        plan.report();
        let whole = Self {
            range: ByteRange::new(self.range.start() - done_bytes, self.range.end()),
            ..*self
        };
        let mut writer = ZeroWriter::new(&whole, &plan, done_bytes)?;
        writer.zero(self.range)?;
        Ok(Provisioned {
            zeroed_bytes: writer.finish()?,
            plan: Some(plan),
            already_written_bytes: done_bytes,
            ..Provisioned::default()
        })
    }

    /// Writes zeros as data over all of the range, whatever its state. Durable on return. For
    /// erasure: a request for zeros may leave old data on the device below.
    ///
    /// # Errors
    /// As [`make_written`](Self::make_written).
    pub fn overwrite(&self) -> Result<()> {
        let plan = Plan::by_writing(self.file, "every byte has to be written");
        self.write(&plan, self.range, 0)?;
        self.sync()
    }

    /// Writes zeros over `range` by `plan`.
    pub(crate) fn write(&self, plan: &Plan, range: ByteRange, done_bytes: u64) -> Result<u64> {
        let mut writer = ZeroWriter::new(self, plan, done_bytes)?;
        writer.zero(range)?;
        writer.finish()
    }

    /// Writes zeros over the parts that the kernel's write zeroes left unwritten: Linux up to at
    /// least 7.1 zeroes a block at the edge of its range without converting it to written.
    pub(crate) fn write_rest(&self, plan: &Plan) -> Result<()> {
        let mut rest = Vec::new();
        survey::for_each(self, false, &mut |part| {
            rest.push(part);
            Ok(())
        })?;
        if rest.is_empty() {
            return Ok(());
        }
        let mut writer = ZeroWriter::new(self, plan, self.range.len())?;
        rest.into_iter().try_for_each(|part| writer.zero(part))?;
        writer.finish().map(drop)
    }

    /// Makes the file durable. A cancel, or an error of the guard, ends the wait before the device
    /// is done.
    ///
    /// # Errors
    /// Those of the device; `Cancelled`; that of the guard.
    pub fn sync(&self) -> Result<()> {
        let total = self.range.len();
        self.check_stop()?;
        self.control.report(Phase::Sync, total, total);
        self.file.sync_checked(&|| self.check_stop())
    }

    fn zero_by_kernel(&self, done_bytes: u64) -> Result<u64> {
        let mut pacer = match self.pace {
            Pace::Full => None,
            paced => Some(Pacer::of_file(self.file, paced)?),
        };
        let mut zeroed = 0;
        let mut zero = |chunk: ByteRange| {
            self.check_stop()?;
            self.file.fallocate(FallocateMode::WriteZeroes, chunk)?;
            zeroed += chunk.len();
            self.control
                .report(Phase::Write, done_bytes + zeroed, self.range.len());
            Ok(())
        };
        survey::for_each(self, false, &mut |part| match &mut pacer {
            None => timed_calls::zero(self.file, part, &mut zero),
            Some(pacer) => pacer.one_at_a_time(part, PACED_UNIT, self.control, &mut zero),
        })?;
        Ok(zeroed)
    }

    /// Fails when `wanted_bytes` more do not fit, before anything is changed.
    ///
    /// # Errors `NoSpace` with the missing bytes.
    pub fn check_space(&self, wanted_bytes: u64) -> Result<()> {
        let fits = |available: Option<u64>| available.is_none_or(|bytes| wanted_bytes <= bytes);
        if fits(self.file.available_bytes()?) {
            return Ok(());
        }
        // Space freed a moment ago counts only once the journal has committed.
        self.sync()?;
        match self.file.available_bytes()? {
            Some(available) if wanted_bytes > available => {
                Err(Error::new(ErrorKind::NoSpace).detail(no_space(wanted_bytes, available)))
            }
            _ => Ok(()),
        }
    }

    /// Adds the missing amount, by its current counts, to an error of a full file system.
    fn explain_full(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::NoSpace {
            return error;
        }
        match (self.file.available_bytes(), self.file.allocated_bytes()) {
            (Ok(Some(available)), Ok(allocated)) => {
                let wanted = self.range.len().saturating_sub(allocated);
                error.detail(no_space(wanted, available))
            }
            _ => error,
        }
    }
}

fn no_space(wanted_bytes: u64, available_bytes: u64) -> String {
    let missing = match wanted_bytes.saturating_sub(available_bytes) {
        // The file system reserves some of its free space.
        0 => "not all of it to be had".to_owned(),
        bytes => format!("{} missing", ByteSize(bytes)),
    };
    format!(
        "no space: {} wanted, {} available, {missing}",
        ByteSize(wanted_bytes),
        ByteSize(available_bytes)
    )
}

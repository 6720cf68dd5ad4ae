//! Makes a range of a file written: the core of `create` and `materialize`.
//!
//! The holes are allocated in requests as large as possible; then zeros go over what is still not
//! written, by the plan. The caller excludes other writers, checks for shared parts, and verifies.

use std::time::Duration;

use extant_space::{
    ByteRange, ByteSize, Control, Error, ErrorKind, FallocateMode, Phase, Result, SpaceFile,
};

use crate::detached;
use crate::filesystem::FileSystem;
use crate::pace::{Pace, Pacer};
use crate::plan::{Plan, Strategy, refusal};
use crate::survey;
use crate::target::RangeTarget;
use crate::timed_calls;
use crate::zero_writer::ZeroWriter;

/// Granularity of paced requests, bytes: a multiple of any block.
const PACED_UNIT: u32 = 64 << 10;
/// Longest time between two checks for a cancel.
const CANCEL_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// What [`RangeTarget::make_written`] did.
#[derive(Default)]
pub(crate) struct Made {
    /// `None`: nothing had to be done.
    pub(crate) plan: Option<Plan>,
    pub(crate) already_written_bytes: u64,
    pub(crate) zeroed_bytes: u64,
}

impl RangeTarget<'_> {
    /// Allocates the holes of the range, which must be inside the file, and writes zeros over
    /// what is not written. Synced on return.
    pub(crate) fn make_written(&self) -> Result<Made> {
        let before = survey::survey(self)?;
        let total = self.range.len();
        let hides_unwritten = survey::map_hides_unwritten(self.file, self.filesystem);
        if before.written_bytes == total && !hides_unwritten {
            return Ok(Made {
                already_written_bytes: total,
                ..Made::default()
            });
        }
        let no_fallocate = match before.hole_bytes {
            0 if !hides_unwritten => None,
            _ => self.allocate()?,
        };
        let trial = survey::first_unwritten(self)?;
        let mut plan = Plan::of(self.file, self.filesystem, trial)?;
        if let Some(reason) = no_fallocate {
            plan.fall_back_to_write_in_order(&reason);
        }
        let mut made = Made {
            already_written_bytes: before.written_bytes,
            ..Made::default()
        };
        if plan.strategy == Strategy::WriteZeroes {
            // What the plan was tried on is zeroed already.
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

    /// Reserves the range; what was answered where the file system cannot.
    pub(crate) fn allocate(&self) -> Result<Option<String>> {
        let mode = FallocateMode::AllocateKeepSize;
        match timed_calls::allocate(self, mode) {
            Ok(()) => Ok(None),
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(Some(refusal(&error))),
            Err(error) => Err(self.explain_full(error)),
        }
    }

    /// Writes zeros over the parts that the kernel's write zeroes left unwritten: Linux up to at
    /// least 7.1 zeroes a block at the edge of its range without converting it to written.
    pub(crate) fn write_rest(&self, plan: &Plan) -> Result<()> {
        let mut writer = ZeroWriter::new(self, plan, self.range.len())?;
        survey::for_each(self, false, &mut |part| writer.zero(part))?;
        writer.finish()?;
        Ok(())
    }

    /// Makes the data durable. A cancel, or a process that waits to open the file, ends the wait
    /// before the disk is done.
    pub(crate) fn sync(&self) -> Result<()> {
        self.check_stop()?;
        let total = self.range.len();
        self.control.report(Phase::Sync, total, total);
        let fail = |source| self.file.error(source).during("sync");
        let mut sync = detached::Sync::start(self.file.as_file()).map_err(fail)?;
        loop {
            if let Some(result) = sync.wait(CANCEL_CHECK_INTERVAL) {
                return result.map_err(fail);
            }
            self.check_stop()?;
        }
    }

    fn zero_by_kernel(&self, done_bytes: u64) -> Result<u64> {
        let mut pacer = match self.pace {
            Pace::Full => None,
            paced => Some(Pacer::of_file(self.file, paced)?),
        };
        let mut zeroed = 0;
        let mut zero = |piece: ByteRange| {
            self.check_stop()?;
            self.file.fallocate(FallocateMode::WriteZeroes, piece)?;
            zeroed += piece.len();
            self.control
                .report(Phase::Write, done_bytes + zeroed, self.range.len());
            Ok(())
        };
        survey::for_each(self, false, &mut |part| match &mut pacer {
            None => timed_calls::zero(part, &mut zero),
            Some(pacer) => {
                let Control { cancel, progress } = self.control;
                pacer.one_at_a_time(part, PACED_UNIT, cancel, progress, &mut zero)
            }
        })?;
        Ok(zeroed)
    }

    /// Fails with the missing amount when `wanted_bytes` more do not fit.
    pub(crate) fn check_space(&self, wanted_bytes: u64) -> Result<()> {
        // A file system that does not count (some FUSE) shows a size of 0.
        if self.filesystem.total_bytes == 0 || wanted_bytes <= self.filesystem.available_bytes {
            return Ok(());
        }
        // Space freed a moment ago counts only once the journal has committed.
        self.sync()?;
        let available_bytes = FileSystem::of(self.file.as_file())?.available_bytes;
        if wanted_bytes <= available_bytes {
            return Ok(());
        }
        let error = Error::new(ErrorKind::NoSpace).at(self.file.path());
        Err(error.detail(no_space(wanted_bytes, available_bytes)))
    }

    /// Adds the missing amount, by its current counts, to an error of a full file system.
    fn explain_full(&self, error: Error) -> Error {
        let now = FileSystem::of(self.file.as_file());
        match (error.kind(), now, self.file.allocated_bytes()) {
            (ErrorKind::NoSpace, Ok(now), Ok(allocated)) => {
                let wanted = self.range.len().saturating_sub(allocated);
                error.detail(no_space(wanted, now.available_bytes))
            }
            _ => error,
        }
    }
}

fn no_space(wanted_bytes: u64, available_bytes: u64) -> String {
    let missing = match wanted_bytes.saturating_sub(available_bytes) {
        // The file system keeps some of what it counts as free for itself.
        0 => "not all of it to be had".to_owned(),
        bytes => format!("{} missing", ByteSize(bytes)),
    };
    format!(
        "no space: {} wanted, {} available, {missing}",
        ByteSize(wanted_bytes),
        ByteSize(available_bytes)
    )
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::Instant;

    use extant_space::{CancelToken, ExtentState, Silent};

    use super::*;
    use crate::exclusion::take_lease;
    use crate::file::{Access, HostFile};
    use crate::verify::{self, Contents};

    #[test]
    fn waiting_opener_ends_every_phase() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        File::create(&path).unwrap().set_len(8 << 20).unwrap();
        let file = HostFile::open(&path, Access::ReadWrite).unwrap();
        let filesystem = FileSystem::under(&file).unwrap();
        let lease = take_lease(&file, &filesystem).unwrap();
        let cancel = CancelToken::new();
        let target = RangeTarget {
            file: &file,
            filesystem: &filesystem,
            range: ByteRange::new(0, 8 << 20),
            pace: &Pace::Full,
            control: Control::new(&cancel, &Silent),
            lease: Some(&lease),
        };
        // Waits in the kernel until the lease is released.
        let opener = std::thread::spawn(move || File::open(path));
        let deadline = Instant::now() + Duration::from_secs(20);
        while !lease.is_contended() {
            assert!(Instant::now() < deadline, "no process opened the file");
            std::thread::sleep(Duration::from_millis(1));
        }
        let phases: [(&str, Result<()>); 6] = [
            (
                "allocate",
                timed_calls::allocate(&target, FallocateMode::AllocateKeepSize),
            ),
            ("survey", survey::survey(&target).map(drop)),
            (
                "blind scan",
                survey::for_each(&target, true, &mut |_| Ok(())),
            ),
            ("sync", target.sync()),
            (
                "verify",
                verify::at_least(&target, ExtentState::Written).map(drop),
            ),
            (
                "samples",
                verify::written(&target, Contents::Zeros).map(drop),
            ),
        ];
        for (name, result) in phases {
            let kind = result.map_err(|error| error.kind());
            assert_eq!(kind, Err(ErrorKind::InUse), "{name}");
        }
        assert_eq!(file.allocated_bytes().unwrap(), 0);
        drop(lease);
        opener.join().unwrap().unwrap();
    }
}

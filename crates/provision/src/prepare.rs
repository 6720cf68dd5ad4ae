//! Prepares a range of a disk for a new owner: whatever was there before reads as zeros.
//!
//! The device's own write zeroes is used only if it is confirmed: a pattern written at both ends of
//! the range reads as zeros afterwards, and so do samples of every piece. Otherwise zeros are
//! written as data, and everything that the device claimed to have zeroed is written again.
//!
//! The work is done in pieces, each durable before the next, so that a process that resumes it has
//! a position to start from. The caller keeps the position: the content of a disk does not show
//! which zeros are new.

use extant_space::{
    ByteRange, Control, ErrorKind, ExtentState, FallocateMode, MappedProgress, Phase, Progress,
    Result,
};

use crate::plan::{Plan, Strategy, refusal};
use crate::provisioner::Provisioner;
use crate::verify::{Contents, Verified};
use crate::write_zeroes::by_kernel;

/// Zeroed, and made durable, at once: the most progress that a kill can lose.
const PIECE_BYTES: u64 = 1 << 30;
/// Written with a pattern at each end of the range.
const TRIAL_BYTES: u64 = 64 << 10;
const PATTERN: u8 = 0xa5;

/// Report of [`Provisioner::prepare`].
#[derive(Clone, Debug)]
pub struct Prepared {
    /// Zeroed in this run, bytes.
    pub zeroed_bytes: u64,
    /// How.
    pub plan: Plan,
    /// The reference that verified the result, besides samples of the content.
    pub verified: Verified,
    /// Things the user should know, one line each.
    pub notes: Vec<String>,
}

impl Provisioner<'_> {
    /// Zeroes the range, whatever it holds, from its first `done_bytes` on. Calls `is_done` with
    /// the number of its bytes that are zeroed durably. Durable on return; samples are verified.
    ///
    /// # Errors
    /// `NotKept` if something else than zeros is read back; `NoSpace` and `CopyOnWrite` for the
    /// image of a disk; those of the device; `Cancelled`.
    pub fn prepare(&self, done_bytes: u64, is_done: &mut dyn FnMut(u64)) -> Result<Prepared> {
        let mut done_bytes = done_bytes.min(self.range.len());
        self.pace.check(self.file, self.control.progress)?;
        self.file.check_written_stays()?;
        let mut notes = Vec::new();
        let survey = self.survey()?;
        if survey.written_bytes < self.range.len() {
            // The image of a disk. A file system without fallocate allocates while it writes.
            self.check_space(survey.hole_bytes)?;
            self.allocate()?;
        }
        let start = self.range.start() + done_bytes;
        let rest = Self {
            range: ByteRange::new(start, self.range.end()),
            ..*self
        };
        let mut plan = if rest.range.is_empty() {
            Plan::by_writing(self.file, "all of it was zeroed before")
        } else {
            rest.confirmed_plan(&mut notes)?
        };
        plan.report();
        let mut zeroed_bytes = 0;
        while done_bytes < self.range.len() {
            let start = self.range.start() + done_bytes;
            let end = self.range.end().min(start + PIECE_BYTES);
            let piece = ByteRange::new(start, end);
            if plan.strategy == Strategy::WriteZeroes {
                self.zero_piece_by_device(piece)?;
                if let Err(error) = self.verify_samples(piece) {
                    if error.kind() != ErrorKind::NotKept {
                        return Err(error);
                    }
                    let reason = "the device reported success, and left other data";
                    notes.push(format!("write zeroes of the device is not used: {reason}"));
                    plan = Plan::by_writing(self.file, reason);
                    plan.report();
                    done_bytes = 0;
                    is_done(0);
                    continue;
                }
            } else {
                self.write(&plan, piece, done_bytes)?;
                self.sync()?;
            }
            zeroed_bytes += piece.len();
            done_bytes += piece.len();
            is_done(done_bytes);
        }
        let verified = self.verify_written(Contents::Zeros)?;
        Ok(Prepared {
            zeroed_bytes,
            plan,
            verified,
            notes,
        })
    }

    /// The device's write zeroes if it is effective at both ends of the range, which lose their
    /// data.
    fn confirmed_plan(&self, notes: &mut Vec<String>) -> Result<Plan> {
        let length = TRIAL_BYTES.min(self.range.len());
        let ends = [
            ByteRange::new(self.range.start(), self.range.start() + length),
            ByteRange::new(self.range.end() - length, self.range.end()),
        ];
        // A refusal costs no pattern.
        match self.file.fallocate(FallocateMode::WriteZeroes, ends[0]) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                return Ok(Plan::by_writing(self.file, &refusal(&error)));
            }
            Err(error) => return Err(error),
        }
        let pattern = vec![PATTERN; length as usize];
        for end in ends {
            self.file.write_at(&pattern, end.start())?;
        }
        self.sync()?;
        for end in ends {
            self.file.fallocate(FallocateMode::WriteZeroes, end)?;
        }
        self.sync()?;
        for end in ends {
            if let Err(error) = self.verify_zeros(end) {
                if error.kind() != ErrorKind::NotKept {
                    return Err(error);
                }
                let reason = "a pattern was still there after the device had zeroed it";
                notes.push(format!("write zeroes of the device is not used: {reason}"));
                return Ok(Plan::by_writing(self.file, reason));
            }
        }
        Ok(Plan::by_kernel(self.file))
    }

    fn zero_piece_by_device(&self, piece: ByteRange) -> Result<()> {
        let before = piece.start() - self.range.start();
        let progress = MappedProgress {
            update: |inner: Progress| {
                self.control
                    .report(Phase::Write, before + inner.done_bytes, self.range.len());
            },
            caller: self.control.progress,
        };
        let inner = Control::new(self.control.cancel, &progress);
        by_kernel(self.file, piece, self.pace, inner)?;
        // Blocks at the edges may stay unwritten.
        let rest = Self {
            range: piece,
            ..*self
        };
        rest.write_rest(&Plan::by_writing(self.file, "only the rest"))?;
        self.sync()
    }

    /// Whether a new owner of the range reads zeros everywhere; reads all of it.
    ///
    /// # Errors
    /// `NotKept` with the place; those of the device; `Cancelled`.
    pub fn verify_all_zeros(&self) -> Result<()> {
        self.verify_state(ExtentState::Written)?;
        self.verify_zeros(self.range)
    }
}

#[cfg(test)]
mod tests;

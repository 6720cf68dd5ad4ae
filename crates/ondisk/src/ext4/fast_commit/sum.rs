//! The sum over the records of a commit.

use super::record::Record;
use crate::checksum;
use crate::jbd2::Sequence;

/// Fields of a tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is complete.
    Whole,
    /// It is torn, or left from an earlier transaction: it and all following ones are ignored.
    Torn,
}

/// The checksum of the records of a commit read so far. Other checksums begin with all ones, this
/// one with zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CommitSum(u32);

impl CommitSum {
    /// That of no records.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the next record. A tail returns whether the commit is valid for `transaction`, the one
    /// that the journal would commit next; the checksum then begins again.
    pub fn take(&mut self, record: &Record<'_>, transaction: Sequence) -> Option<Verdict> {
        self.add(record.summed());
        let tail = record.tail()?;
        let sum = std::mem::take(self);
        let is_whole = tail.fc_tid.get() == transaction.0 && tail.fc_crc.get() == sum.0;
        Some(if is_whole {
            Verdict::Whole
        } else {
            Verdict::Torn
        })
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.0 = checksum::crc32c(self.0, bytes);
    }

    pub(super) fn value(self) -> u32 {
        self.0
    }
}

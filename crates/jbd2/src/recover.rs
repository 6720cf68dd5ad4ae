//! Recovery: the log after a crash, and its replay.
//!
//! Model: the log is walked once ([`scan`]), transaction by transaction, up to its end. The result
//! is a table of copies, for each block of the file system the last one that was not revoked. That
//! table is then written in place ([`Recovery::replay`]), or read through by readers of a device
//! that must not change ([`Overlay`]). The kernel makes three passes and writes every copy, older
//! ones too; the result is the same.
//!
//! Order: replay is durable before the superblock says that the log is empty
//! ([`Recovery::finish`]), so that a crash in between only repeats it. The file system replays fast
//! commits between the two: in one transaction of the resumed journal ([`Recovery::resume`]).
//!
//! Memory: under 100 bytes for every block of the log, and one batch.

mod overlay;
mod scan;

use std::sync::Arc;

use extant_blockdev::Device;
use extant_ondisk::jbd2::format::Checksums;
use extant_ondisk::jbd2::{Format, JournalSuperblock, Sequence, unescape};
use extant_space::{Error, Result, traced};

use crate::disk::Disk;
use crate::fast_commit_blocks::FastCommitBlocks;
use crate::log::{Position, mark_empty};
use crate::{Journal, JournalLocation};

pub use overlay::Overlay;
pub(crate) use scan::Copy;

/// Bytes of replay in flight at a time.
const BATCH_BYTES: usize = 4 << 20;

/// Report of a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Transactions that were complete.
    pub transactions: u32,
    /// Blocks that the log has newer contents of.
    pub blocks: u32,
    /// Blocks whose copies were found and dropped, because their own or a later transaction revoked
    /// them.
    pub revoked: u64,
    /// The first transaction that is not complete.
    pub next: Sequence,
    /// A transaction beyond the end of the log whose commit block exists: its checksum is wrong.
    /// Its changes are lost, and the file system should be checked.
    pub failed_commit: Option<Sequence>,
    /// `s_errno`: the error that stopped the journal, as a negative number of Linux; 0 for none.
    pub error_number: i32,
}

/// A log that has been read, with all that counts in it verified.
pub struct Recovery {
    disk: Disk,
    superblock: JournalSuperblock,
    /// In the order of the homes.
    copies: Vec<Copy>,
    report: RecoveryReport,
    head: u32,
}

impl Recovery {
    /// Reads the log. Changes nothing.
    ///
    /// # Errors
    /// `Corrupt` for a superblock or a log that cannot be true, also where a checksum is wrong in a
    /// transaction that was committed; `Unsupported` for features that are not known; errors of the
    /// device.
    pub fn read(device: Arc<dyn Device>, location: JournalLocation) -> Result<Self> {
        let disk = Disk::new(device, location)?;
        let superblock = disk.read_superblock()?;
        let scanned = scan::scan(&disk, &superblock)?;
        let recovery = Self {
            report: RecoveryReport {
                transactions: scanned.transactions,
                blocks: scanned.copies.len() as u32,
                revoked: scanned.revoked,
                next: scanned.next,
                failed_commit: scanned.failed_commit,
                error_number: superblock.error_number(),
            },
            head: scanned.head,
            copies: scanned.copies,
            disk,
            superblock,
        };
        recovery.verify()?;
        Ok(recovery)
    }

    /// Whether the log is not empty, be it of transactions that were never complete.
    pub fn is_needed(&self) -> bool {
        self.superblock.start().is_some()
    }

    /// The report.
    pub fn report(&self) -> &RecoveryReport {
        &self.report
    }

    /// The blocks for fast commits, from the first on, for the transaction
    /// [`RecoveryReport::next`]: blocks of others are outdated. None where there can be no fast
    /// commits.
    pub fn fast_commits(&self) -> FastCommitBlocks<'_> {
        let blocks = if self.is_needed() {
            self.superblock.fast_commits()
        } else {
            0..0
        };
        FastCommitBlocks::new(&self.disk, blocks)
    }

    /// Copies everything to its place, where it is durable on return. May be repeated.
    ///
    /// # Errors
    /// Those of the device. A repetition rewrites the blocks already in place.
    pub fn replay(&self) -> Result<()> {
        if self.copies.is_empty() {
            return Ok(());
        }
        let RecoveryReport {
            transactions,
            blocks,
            revoked,
            next,
            ..
        } = self.report;
        traced!(
            INFO,
            "recover",
            (transactions, blocks, revoked, next_tid = next.0),
            self.write_copies()
        )
    }

    fn write_copies(&self) -> Result<()> {
        let bytes = self.disk.block_bytes();
        let mut batch = Batch::new(&self.disk);
        for copies in self.copies.chunks(batch.capacity()) {
            let read = batch.read(copies)?;
            for (copy, contents) in copies.iter().zip(read.chunks_exact_mut(bytes)) {
                unescape(contents, copy.tag.escaped);
            }
            let homes = copies.iter().map(|copy| copy.tag.block);
            let contents = batch.buffer.chunks_exact(bytes);
            self.disk.write_back(homes.zip(contents))?;
        }
        self.disk.flush()
    }

    /// Marks the log empty once its content is durable in place. The next transaction gets a number
    /// that was not used before, also not by one that was never complete. An error number is
    /// forgotten: it has to be noted elsewhere before.
    ///
    /// # Errors
    /// Those of the device.
    pub fn finish(mut self) -> Result<()> {
        if !self.is_needed() && self.report.error_number == 0 {
            return Ok(());
        }
        if self.is_needed() {
            let next = self.report.next.next();
            mark_empty(&mut self.superblock, next, self.head);
        }
        let edited = self.superblock.edit(|raw| raw.s_errno.set(0));
        edited.expect("no error is always possible");
        self.disk.write_superblock(&self.superblock)
    }

    /// Continues where the log ends, once its contents are durable in place
    /// ([`replay`](Self::replay)): the next transaction is the one of the fast commits, so these
    /// stay valid until it has committed. Writes this to the disk.
    ///
    /// # Errors
    /// As [`Journal::open`]; errors of the device.
    pub fn resume(self) -> Result<Journal> {
        let end = Position {
            block: self.head,
            sequence: self.report.next,
        };
        Journal::resume(self.disk, self.superblock, end)
    }

    /// Makes the content of the log readable without writing.
    pub fn into_overlay(self) -> Overlay {
        Overlay::new(self.disk, &self.copies)
    }

    /// Compares the checksum of every copy that counts.
    fn verify(&self) -> Result<()> {
        let format = self.superblock.format();
        if !has_tag_sums(format) {
            return Ok(());
        }
        let mut order = self.copies.clone();
        order.sort_unstable_by_key(|copy| copy.log_block);
        let mut batch = Batch::new(&self.disk);
        for copies in order.chunks(batch.capacity()) {
            let read = batch.read(copies)?;
            for (copy, contents) in copies
                .iter()
                .zip(read.chunks_exact(format.block_bytes as usize))
            {
                let verified = copy.tag.verify(contents, copy.sequence, format);
                verified.map_err(|error| at_log_block(error, copy.log_block))?;
            }
        }
        Ok(())
    }
}

fn has_tag_sums(format: &Format) -> bool {
    matches!(format.checksums, Checksums::V2 | Checksums::V3)
}

/// Copies that are read together.
struct Batch<'d> {
    disk: &'d Disk,
    block_bytes: usize,
    buffer: Vec<u8>,
}

impl<'d> Batch<'d> {
    fn new(disk: &'d Disk) -> Self {
        Self {
            disk,
            block_bytes: disk.block_bytes(),
            buffer: Vec::new(),
        }
    }

    /// The most copies of one batch.
    fn capacity(&self) -> usize {
        BATCH_BYTES / self.block_bytes
    }

    /// The contents of `copies` as stored in the log, one after the other.
    fn read(&mut self, copies: &[Copy]) -> Result<&mut [u8]> {
        self.buffer.resize(copies.len() * self.block_bytes, 0);
        let places = self.buffer.chunks_exact_mut(self.block_bytes);
        let blocks = copies.iter().map(|copy| copy.log_block);
        self.disk.read_blocks(blocks.zip(places))?;
        Ok(&mut self.buffer)
    }
}

/// Adds the position in the log to an error.
pub(crate) fn at_log_block(error: Error, block: u32) -> Error {
    let detail = format!("block {block} of the journal: {error}");
    error.detail(detail)
}

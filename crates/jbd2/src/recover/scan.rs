//! The walk along the log to its end.
//!
//! A transaction counts if its commit block exists and is valid. The end of the log, and its
//! difference from an error, are those of the kernel:
//!
//! - a block without header, or of another transaction than is due, is the end;
//! - a descriptor or revoke block with a wrong checksum is the result of a crash, unless a commit
//!   block follows that is not older than the one before it: then a committed transaction is
//!   damaged, an error;
//! - a commit block with a wrong checksum is the end; one that is not older than the last is
//!   reported, but for the last of the log when its first sector is right: a crash has torn it on
//!   its way;
//! - a transaction that would be longer than the ring is the end.
//!
//! Transactions are added one after the other, so a revocation is a removal: a block that
//! transaction N revokes is removed from the table after N's copies are added. The final table
//! equals the result of three passes with a table of revocations.

use std::collections::HashMap;

use extant_ondisk::ext4::PhysicalBlock;
use extant_ondisk::jbd2::commit::{Commit, RawCommit, TransactionSum};
use extant_ondisk::jbd2::descriptor::{Tag, tags, tags_unverified};
use extant_ondisk::jbd2::format::Checksums;
use extant_ondisk::jbd2::revoke::revoked;
use extant_ondisk::jbd2::{BlockType, Format, Header, JournalSuperblock, Sequence};
use extant_space::{Error, ErrorKind, Result};
use zerocopy::FromBytes;

use super::at_log_block;
use crate::disk::Disk;
use crate::reader::LogReader;
use crate::ring::Ring;

/// Unit that every disk writes atomically. The fields of a commit block are in its first sector;
/// the rest is zeros.
const SECTOR: usize = 512;

/// A copy in the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    pub(crate) tag: Tag,
    pub(crate) sequence: Sequence,
    pub(crate) log_block: u32,
}

/// Valid transactions of a log.
pub(super) struct Scanned {
    /// In the order of the homes.
    pub(super) copies: Vec<Copy>,
    pub(super) transactions: u32,
    pub(super) revoked: u64,
    pub(super) next: Sequence,
    pub(super) failed_commit: Option<Sequence>,
    /// The block behind the last transaction.
    pub(super) head: u32,
}

pub(super) fn scan(disk: &Disk, superblock: &JournalSuperblock) -> Result<Scanned> {
    let ring = Ring::new(superblock.log());
    let mut scan = Scan {
        disk,
        format: *superblock.format(),
        ring,
        log: LogReader::new(disk, ring),
        copies: HashMap::new(),
        transactions: 0,
        revoked: 0,
        last_commit: 0,
    };
    let Some(start) = superblock.start() else {
        return Ok(scan.finish(End {
            next: superblock.sequence(),
            head: superblock.raw().s_head.get(),
            failed_commit: None,
        }));
    };
    let (mut at, mut sequence) = (start.0, superblock.sequence());
    let mut left = ring.blocks();
    let mut failed_commit = None;
    loop {
        match scan.transaction(at, sequence, left)? {
            Next::Committed { blocks } => {
                at = ring.after(at, blocks);
                left -= blocks;
                sequence = sequence.next();
                scan.transactions += 1;
            }
            Next::End => break,
            Next::FailedCommit => {
                failed_commit = Some(sequence);
                break;
            }
        }
    }
    Ok(scan.finish(End {
        next: sequence,
        head: at,
        failed_commit,
    }))
}

struct End {
    next: Sequence,
    head: u32,
    failed_commit: Option<Sequence>,
}

/// The contents of the position where a transaction is expected.
enum Next {
    Committed { blocks: u32 },
    FailedCommit,
    End,
}

struct Scan<'d> {
    disk: &'d Disk,
    format: Format,
    ring: Ring,
    log: LogReader<'d>,
    copies: HashMap<PhysicalBlock, Copy>,
    transactions: u32,
    revoked: u64,
    /// Seconds of the last commit.
    last_commit: u64,
}

/// A transaction on the way to its commit block.
#[derive(Default)]
struct Pending {
    copies: Vec<Copy>,
    revoke_blocks: Vec<u32>,
    sum: TransactionSum,
    /// An invalid block of it.
    damage: Option<Error>,
}

impl Scan<'_> {
    /// Walks one transaction; adds it if it was committed. `left` blocks of the ring have not been
    /// seen.
    fn transaction(&mut self, first: u32, sequence: Sequence, left: u32) -> Result<Next> {
        let mut pending = Pending::default();
        let mut blocks = 0;
        loop {
            if blocks >= left {
                return Ok(Next::End);
            }
            let at = self.ring.after(first, blocks);
            blocks += 1;
            let header = Header::read(self.log.block(at)?);
            let Some(header) = header.filter(|header| header.sequence == sequence) else {
                return Ok(Next::End);
            };
            match header.kind {
                BlockType::Descriptor => {
                    let copies = self.descriptor(at, sequence, left - blocks, &mut pending)?;
                    blocks = blocks.saturating_add(copies);
                }
                BlockType::Revoke => {
                    if let Err(error) = revoked(self.log.block(at)?, &self.format) {
                        pending.damage.get_or_insert(at_log_block(error, at));
                    }
                    pending.revoke_blocks.push(at);
                }
                BlockType::Commit => {
                    return self.commit(at, pending, blocks);
                }
                BlockType::SuperblockV1 | BlockType::SuperblockV2 => return Ok(Next::End),
            }
        }
    }

    /// Notes the copies that a descriptor block announces, and returns how many blocks they are.
    fn descriptor(
        &mut self,
        at: u32,
        sequence: Sequence,
        left: u32,
        pending: &mut Pending,
    ) -> Result<u32> {
        let block = self.log.block(at)?;
        pending.sum.add(block);
        let before = pending.copies.len();
        let mut copies = 0;
        let tags = match tags(block, &self.format) {
            Ok(tags) => Some(tags),
            // Valid or not, only its tags determine the position of the next block of the log.
            Err(error) => {
                pending.damage.get_or_insert(at_log_block(error, at));
                tags_unverified(block, &self.format).ok()
            }
        };
        for tag in tags.into_iter().flatten() {
            copies += 1;
            match tag {
                Ok(tag) => pending.copies.push(Copy {
                    tag,
                    sequence,
                    log_block: self.ring.after(at, copies),
                }),
                Err(error) => {
                    pending.damage.get_or_insert(at_log_block(error, at));
                }
            }
        }
        if copies > left {
            return Ok(copies);
        }
        if self.format.checksums == Checksums::Transaction {
            for number in 1..=copies {
                let block = self.ring.after(at, number);
                pending.sum.add(self.log.block(block)?);
            }
        }
        for copy in &pending.copies[before..] {
            if !self.disk.is_home(copy.tag.block) {
                pending.damage.get_or_insert_with(|| {
                    let problem = format!(
                        "copy of block {}, which is outside the file system",
                        copy.tag.block
                    );
                    let error = Error::new(ErrorKind::Corrupt).detail(problem);
                    at_log_block(error, at)
                });
            }
        }
        Ok(copies)
    }

    fn commit(&mut self, at: u32, pending: Pending, blocks: u32) -> Result<Next> {
        let block = self.log.block(at)?;
        let (raw, _) = RawCommit::ref_from_prefix(block).expect("a block");
        let seconds = raw.h_commit_sec.get();
        let is_older = seconds < self.last_commit;
        if let Some(damage) = pending.damage {
            // A block of an older round of the log, with a commit block that happens to follow.
            return if is_older { Ok(Next::End) } else { Err(damage) };
        }
        let is_right = match Commit::parse(block, &self.format) {
            Ok(commit) => commit.transaction_sum.is_none_or(|sum| sum == pending.sum),
            Err(_) => false,
        };
        if !is_right {
            let is_left_by_crash = is_older || {
                let mut whole = block[..SECTOR].to_vec();
                whole.resize(block.len(), 0);
                Commit::parse(&whole, &self.format).is_ok() && !self.is_followed(at)?
            };
            return Ok(if is_left_by_crash {
                Next::End
            } else {
                Next::FailedCommit
            });
        }
        self.last_commit = seconds;
        for copy in pending.copies {
            self.copies.insert(copy.tag.block, copy);
        }
        for at in pending.revoke_blocks {
            let block = self.log.block(at)?;
            // The block was read before; a device that answers something else now is at fault.
            let numbers = revoked(block, &self.format).map_err(|error| at_log_block(error, at))?;
            for number in numbers {
                self.revoked += u64::from(self.copies.remove(&number).is_some());
            }
        }
        Ok(Next::Committed { blocks })
    }

    /// Whether a transaction was written behind the one with its commit block `at`.
    fn is_followed(&mut self, at: u32) -> Result<bool> {
        let sequence = Header::read(self.log.block(at)?).map(|header| header.sequence.next());
        let behind = Header::read(self.log.block(self.ring.after(at, 1))?);
        Ok(behind.map(|header| header.sequence) == sequence)
    }

    fn finish(self, end: End) -> Scanned {
        let mut copies: Vec<_> = self.copies.into_values().collect();
        copies.sort_unstable_by_key(|copy| copy.tag.block);
        Scanned {
            copies,
            transactions: self.transactions,
            revoked: self.revoked,
            next: end.next,
            failed_commit: end.failed_commit,
            head: if self.ring.contains(end.head) {
                end.head
            } else {
                self.ring.first()
            },
        }
    }
}

//! The growing end of the log: one transaction after the other.
//!
//! A transaction consists of revoke blocks, descriptor blocks with their copies, and the commit
//! block. All but the last are written concurrently; a flush makes them, and the data written
//! before, durable, and only then the commit block is written. A power cut leaves the first part
//! without effect.
//!
//! A disk may write some sectors of the commit block only. Its contents are in the first sector;
//! the others must be zeros then, for the checksum, so zeros are written in its place together with
//! the first part. Otherwise other implementations consider the journal damaged (e2fsck 1.47, older
//! kernels), although it is only a commit that has not happened.
//!
//! The superblock records where the log begins. It is written when the first transaction enters an
//! empty log, before it, and when the tail moves, after the blocks there are durably checkpointed.

use std::ops::Range;
use std::time::SystemTime;

use extant_blockdev::Persistence;
use extant_ondisk::ext4::PhysicalBlock;
use extant_ondisk::jbd2::commit::{Commit, TransactionSum};
use extant_ondisk::jbd2::descriptor::DescriptorWriter;
use extant_ondisk::jbd2::format::{BlockNumbers, Checksums};
use extant_ondisk::jbd2::header::MAGIC;
use extant_ondisk::jbd2::revoke::RevokeWriter;
use extant_ondisk::jbd2::{
    Escaped, Format, JournalBlock, JournalIncompat, JournalSuperblock, Sequence, escape,
};
use extant_space::{Error, ErrorKind, Result};

use crate::disk::Disk;
use crate::frozen::Settled;
use crate::ring::Ring;

/// `EIO` as stored in `s_errno`.
const ERROR_NUMBER: i32 = -5;

/// Position of the next transaction.
pub(crate) struct Log {
    disk: Disk,
    ring: Ring,
    format: Format,
    /// As it is on the disk, once there is a log; before that, as it will be.
    superblock: JournalSuperblock,
    is_started: bool,
    /// The features that it has while there is a log.
    incompat: u32,
    head: u32,
    next: Sequence,
    /// Blocks from the tail to the head.
    used: u32,
    /// Blocks of all transactions since it was opened.
    logged: u64,
}

/// A location in the log, and the transaction that begins there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) block: u32,
    pub(crate) sequence: Sequence,
}

impl Log {
    /// A log that is empty on the disk. `superblock` has the features that the log shall have.
    pub(crate) fn new(disk: Disk, superblock: JournalSuperblock) -> Self {
        let ring = Ring::new(superblock.log());
        // A later kernel continues where the log ended; an older one leaves zero here.
        let head = superblock.raw().s_head.get();
        Self {
            disk,
            ring,
            format: *superblock.format(),
            is_started: false,
            incompat: superblock.features().incompat.bits(),
            head: if ring.contains(head) {
                head
            } else {
                ring.first()
            },
            // The number in an empty log may have been given to a transaction that was never
            // complete.
            next: superblock.sequence().next(),
            superblock,
            used: 0,
            logged: 0,
        }
    }

    /// A log that continues at `end`, with everything before durably checkpointed. Writes this to
    /// the disk.
    pub(crate) fn resume(disk: Disk, superblock: JournalSuperblock, end: Position) -> Result<Self> {
        let mut log = Self::new(disk, superblock);
        log.head = end.block;
        log.next = end.sequence;
        log.start()?;
        Ok(log)
    }

    /// The blocks of the journal that are kept for fast commits.
    pub(crate) fn fast_commits(&self) -> Range<u32> {
        self.superblock.fast_commits()
    }

    pub(crate) fn disk(&self) -> &Disk {
        &self.disk
    }

    pub(crate) fn ring(&self) -> Ring {
        self.ring
    }

    /// Position of the next transaction.
    pub(crate) fn head(&self) -> Position {
        Position {
            block: self.head,
            sequence: self.next,
        }
    }

    /// Blocks from the tail to the head.
    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// Blocks of all transactions that were written since it was opened.
    pub(crate) fn logged(&self) -> u64 {
        self.logged
    }

    pub(crate) fn free(&self) -> u32 {
        self.ring.blocks() - self.used
    }

    /// Whether the disk says that there may be transactions.
    pub(crate) fn is_started(&self) -> bool {
        self.is_started
    }

    /// Blocks of the log that a transaction needs.
    pub(crate) fn space(&self, transaction: &Settled) -> u64 {
        let (blocks, revoked) = (transaction.blocks.len(), transaction.revoked.len());
        let descriptors = blocks.div_ceil(DescriptorWriter::capacity(&self.format));
        let revokes = revoked.div_ceil(RevokeWriter::capacity(&self.format));
        (blocks + descriptors + revokes) as u64 + 1
    }

    /// Refuses a transaction too large for the log.
    pub(crate) fn check(&self, transaction: &Settled) -> Result<()> {
        let invalid = |detail: String| Err(Error::new(ErrorKind::InvalidArgument).detail(detail));
        for (block, contents) in &transaction.blocks {
            if contents.len() != self.disk.block_bytes() {
                let bytes = contents.len();
                return invalid(format!("{bytes} bytes as the contents of block {block}"));
            }
            if !self.disk.is_home(*block) {
                return invalid(format!(
                    "block {block} in a transaction, which is outside the file system"
                ));
            }
        }
        let is_narrow = self.format.block_numbers == BlockNumbers::Bits32;
        let mut numbers = transaction.revoked.iter();
        if let Some(block) = numbers.find(|block| is_narrow && block.0 > u64::from(u32::MAX)) {
            return invalid(format!("block {block} revoked, of more than 32 bits"));
        }
        if self.space(transaction) > u64::from(self.ring.blocks()) {
            let (space, ring) = (self.space(transaction), self.ring.blocks());
            return invalid(format!("transaction of {space} blocks in a log of {ring}"));
        }
        Ok(())
    }

    /// Writes a transaction that was checked and has space; it is durable when this returns.
    ///
    /// # Errors
    /// Those of the device; then it is unknown whether the transaction counts, and nothing may
    /// follow it.
    pub(crate) fn append(&mut self, transaction: &Settled) -> Result<()> {
        let space = self.space(transaction) as u32;
        assert!(
            space <= self.free(),
            "a transaction without space in the log"
        );
        self.start()?;

        let written = Written::new(transaction, self.next, &self.format);
        let mut parts = written.parts();
        debug_assert_eq!(parts.len() as u32, space - 1);
        let commit = written.commit(&parts);
        let uncommitted = vec![0; commit.len()];
        parts.push(&uncommitted);
        let mut requests = Vec::new();
        let mut rest = &parts[..];
        for part in self.ring.parts(self.head, space) {
            let (these, others) = rest.split_at(part.len());
            rest = others;
            let cached = Persistence::Cached;
            self.disk
                .write_requests(part.start, these, cached, &mut requests);
        }
        self.disk.submit(requests)?;
        self.disk.flush()?;

        let at = self.ring.after(self.head, space - 1);
        let mut requests = Vec::new();
        self.disk
            .write_requests(at, &[&commit], Persistence::Fua, &mut requests);
        self.disk.submit(requests)?;

        self.head = self.ring.after(self.head, space);
        self.used += space;
        self.logged += u64::from(space);
        self.next = self.next.next();
        Ok(())
    }

    /// Writes the start of the log to the superblock, if it is still marked empty.
    fn start(&mut self) -> Result<()> {
        if self.is_started {
            return Ok(());
        }
        let mut superblock = self.superblock.clone();
        superblock.edit(|raw| raw.s_feature_incompat.set(self.incompat))?;
        superblock.set_start(Some(JournalBlock(self.head)), self.next);
        self.disk.write_superblock(&superblock)?;
        self.superblock = superblock;
        self.is_started = true;
        Ok(())
    }

    /// Frees the blocks before `tail`; `used` blocks remain. Their content is durable in place.
    pub(crate) fn set_tail(&mut self, tail: Position, used: u32) -> Result<()> {
        let mut superblock = self.superblock.clone();
        superblock.set_start(Some(JournalBlock(tail.block)), tail.sequence);
        self.disk.write_superblock(&superblock)?;
        self.superblock = superblock;
        self.used = used;
        Ok(())
    }

    /// Says on the disk that the log is empty. All its transactions are durable in place.
    pub(crate) fn set_empty(&mut self) -> Result<()> {
        if !self.is_started {
            return Ok(());
        }
        let mut superblock = self.superblock.clone();
        mark_empty(&mut superblock, self.next, self.head);
        self.disk.write_superblock(&superblock)?;
        self.superblock = superblock;
        self.is_started = false;
        self.used = 0;
        Ok(())
    }

    /// Leaves a note for e2fsck that the journal was stopped by an error. It may fail as well,
    /// which changes nothing any more.
    pub(crate) fn note_failure(&self) {
        let mut superblock = self.superblock.clone();
        let edited = superblock.edit(|raw| raw.s_errno.set(ERROR_NUMBER as u32));
        if self.is_started && edited.is_ok() {
            let _ = self.disk.write_superblock(&superblock);
        }
    }
}

/// A transaction in log format.
struct Written<'t> {
    transaction: &'t Settled,
    format: &'t Format,
    sequence: Sequence,
    revokes: Vec<Vec<u8>>,
    descriptors: Vec<Vec<u8>>,
    /// Copies that must be escaped, by their index.
    escaped: Vec<(usize, Vec<u8>)>,
}

impl<'t> Written<'t> {
    fn new(transaction: &'t Settled, sequence: Sequence, format: &'t Format) -> Self {
        let block = || vec![0; format.block_bytes as usize];
        let revokes = transaction
            .revoked
            .chunks(RevokeWriter::capacity(format))
            .map(|numbers| {
                let mut block = block();
                let mut writer = RevokeWriter::new(&mut block, sequence, format);
                numbers.iter().for_each(|number| writer.push(*number));
                writer.finish();
                block
            })
            .collect();
        let mut escaped = Vec::new();
        let mut number = 0;
        let descriptors = transaction
            .blocks
            .chunks(DescriptorWriter::capacity(format))
            .map(|copies| {
                let mut block = block();
                let mut writer = DescriptorWriter::new(&mut block, sequence, format);
                for (home, contents) in copies {
                    push(&mut writer, *home, contents, number, &mut escaped);
                    number += 1;
                }
                writer.finish();
                block
            })
            .collect();
        Self {
            transaction,
            format,
            sequence,
            revokes,
            descriptors,
            escaped,
        }
    }

    /// Its blocks in their order, without the commit block.
    fn parts(&self) -> Vec<&[u8]> {
        let mut parts: Vec<&[u8]> = self.revokes.iter().map(Vec::as_slice).collect();
        let mut escaped = self.escaped.iter().peekable();
        let capacity = DescriptorWriter::capacity(self.format);
        let copies = self.transaction.blocks.iter().enumerate();
        for (number, (_, contents)) in copies {
            if number.is_multiple_of(capacity) {
                parts.push(&self.descriptors[number / capacity]);
            }
            match escaped.next_if(|(which, _)| *which == number) {
                Some((_, copy)) => parts.push(copy),
                None => parts.push(contents),
            }
        }
        parts
    }

    fn commit(&self, parts: &[&[u8]]) -> Vec<u8> {
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let has_sum = self.format.checksums == Checksums::Transaction;
        let commit = Commit {
            sequence: self.sequence,
            seconds: now.as_secs(),
            nanoseconds: now.subsec_nanos(),
            transaction_sum: has_sum.then(|| {
                let mut sum = TransactionSum::new();
                let covered = &parts[self.revokes.len()..];
                covered.iter().for_each(|block| sum.add(block));
                sum
            }),
        };
        let mut block = vec![0; self.format.block_bytes as usize];
        commit.write(&mut block, self.format);
        block
    }
}

/// Adds a tag, and a copy of the contents where they would look like a block of the journal.
fn push(
    writer: &mut DescriptorWriter<'_>,
    home: PhysicalBlock,
    contents: &[u8],
    number: usize,
    escaped: &mut Vec<(usize, Vec<u8>)>,
) {
    if !contents.starts_with(&MAGIC.to_be_bytes()) {
        return writer.push(home, contents, Escaped::No);
    }
    let mut copy = contents.to_vec();
    let how = escape(&mut copy);
    writer.push(home, &copy, how);
    escaped.push((number, copy));
}

/// Makes the superblock that of an empty log. As in the kernel, `fast_commit` is cleared, so that
/// implementations without it may use the journal; it is set again with the next transaction.
pub(crate) fn mark_empty(superblock: &mut JournalSuperblock, next: Sequence, head: u32) {
    let edited = superblock.edit(|raw| {
        raw.s_start.set(0);
        raw.s_sequence.set(next.0);
        raw.s_head.set(head);
        let incompat = raw.s_feature_incompat.get();
        // A superblock of the first version has zeros there.
        let fast_commit = JournalIncompat::FAST_COMMIT.bits();
        raw.s_feature_incompat.set(incompat & !fast_commit);
    });
    edited.expect("an empty log is always possible");
}

//! The journal in use: transactions are added at the head of the log, and removed at its tail when
//! they are checkpointed.
//!
//! Model: `state` belongs to the writer; readers use only the table. Every change of the log holds
//! the state's lock, also during I/O, so that commits and checkpoints alternate.
//!
//! After the first error of the device nothing is written any more: the state that it protected is
//! undefined. Every later call returns that error. Recovery finds the transactions committed
//! before.

use std::ops::Range;
use std::sync::Arc;

use extant_blockdev::{Device, Persistence};
use extant_ondisk::ext4::PhysicalBlock;
use extant_ondisk::jbd2::format::{BlockNumbers, Checksums};
use extant_ondisk::jbd2::superblock::RawJournalSuperblock;
use extant_ondisk::jbd2::{
    BlockType, Header, JournalCompat, JournalIncompat, JournalSuperblock, Sequence,
};
use extant_space::{Error, ErrorKind, Result};

use crate::checkpoint::Checkpoints;
use crate::disk::Disk;
use crate::failure::Failure;
use crate::frozen::Settled;
use crate::log::{Log, Position};
use crate::sync::{Mutex, lock};
use crate::table::Table;
use crate::{FastCommitBlocks, Frozen, JournalLocation};

/// Maximum share of the log for a transaction. The rest holds committed blocks that are not
/// checkpointed.
const TRANSACTION_SHARE: u32 = 4;
/// A log with fewer blocks has no room for a transaction and its overhead.
const LOG_BLOCKS_MIN: u32 = 16;
/// `s_checksum_type` of crc32c.
const CRC32C: u8 = 4;

/// How a log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogFormat {
    /// The kind of checksums.
    pub checksums: Checksums,
    /// Width of block numbers.
    pub block_numbers: BlockNumbers,
}

/// Whether the end of the journal is kept for fast commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FastCommits {
    /// All of it is log.
    #[default]
    Off,
    /// `s_num_fc_blks` blocks are reserved, if the journal is large enough.
    On,
}

/// Options of a journal.
#[derive(Clone, Copy, Debug, Default)]
pub struct JournalOptions {
    /// How the log is written; `None`: as the superblock says. The kernel's ext4 uses checksums v3
    /// if the file system has `metadata_csum`, otherwise none, and 64 bits if it has `64bit`.
    pub format: Option<LogFormat>,
    /// Whether there will be fast commits.
    pub fast_commits: FastCommits,
}

/// Blocks of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogUse {
    /// All.
    pub blocks: u32,
    /// Those of transactions that are not checkpointed.
    pub used: u32,
    /// Those of all transactions that were written since the journal was opened.
    pub logged: u64,
}

/// Position of the next fast commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastCommitSpace {
    /// The transaction that it is on: the one that the log gets next.
    pub sequence: Sequence,
    /// Blocks of fast commits on this transaction.
    pub used: u32,
    /// Blocks that are left.
    pub left: u32,
    /// Bytes of a block.
    pub block_bytes: u32,
}

/// Whether a checkpoint has more to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checkpoint {
    /// There is space enough in the log.
    Done,
    /// Call again.
    More,
}

/// A journal that transactions can be written to.
pub struct Journal {
    state: Mutex<State>,
    table: Table,
    failure: Arc<Failure>,
    disk: Disk,
    fast_commits: Range<u32>,
    transaction_blocks_max: u32,
}

struct State {
    log: Log,
    checkpoints: Checkpoints,
    /// Blocks of fast commits on the next transaction.
    fast_used: u32,
    /// The last block written in place on its own, with its content.
    written_back: Option<(PhysicalBlock, Arc<[u8]>)>,
}

impl Journal {
    /// Opens a journal whose log is empty: new, left so, or [recovered](crate::Recovery). Writes
    /// nothing yet. An error number in its superblock is forgotten with the first transaction.
    ///
    /// # Errors
    /// `InvalidArgument` when the log is not empty, and for a format that cannot name the blocks of
    /// the device; `Unsupported` for a superblock of the first version; as
    /// [`Recovery::read`](crate::Recovery::read).
    pub fn open(
        device: Arc<dyn Device>,
        location: JournalLocation,
        options: JournalOptions,
    ) -> Result<Self> {
        let disk = Disk::new(device, location)?;
        let superblock = disk.read_superblock()?;
        if superblock.start().is_some() {
            return Err(invalid("the journal needs recovery"));
        }
        let superblock = prepared(&disk, superblock, options)?;
        let log = Log::new(disk.clone(), superblock);
        Ok(Self::with_log(disk, log))
    }

    /// A journal whose log was recovered and continues at its end, with the transaction that was
    /// never complete. Writes this to the disk.
    pub(crate) fn resume(disk: Disk, superblock: JournalSuperblock, end: Position) -> Result<Self> {
        let options = JournalOptions {
            format: None,
            fast_commits: if superblock.has_fast_commits() {
                FastCommits::On
            } else {
                FastCommits::Off
            },
        };
        let superblock = prepared(&disk, superblock, options)?;
        let log = Log::resume(disk.clone(), superblock, end)?;
        let journal = Self::with_log(disk, log);
        // They count until the next transaction, and there are no more.
        lock(&journal.state).fast_used = journal.fast_commits.len() as u32;
        Ok(journal)
    }

    fn with_log(disk: Disk, log: Log) -> Self {
        Self {
            fast_commits: log.fast_commits(),
            transaction_blocks_max: log.ring().blocks() / TRANSACTION_SHARE,
            state: Mutex::new(State {
                log,
                checkpoints: Checkpoints::default(),
                fast_used: 0,
                written_back: None,
            }),
            table: Table::new(),
            failure: Arc::default(),
            disk,
        }
    }

    /// The latest committed contents of a block that is not checkpointed yet. `None`: they are in
    /// place.
    pub fn lookup(&self, block: PhysicalBlock) -> Option<Arc<[u8]>> {
        Some(self.table.get(block)?.contents)
    }

    /// Most blocks that a transaction may change or revoke. [`commit`](Self::commit) takes more, as
    /// long as the log has the space.
    pub fn transaction_blocks_max(&self) -> u32 {
        self.transaction_blocks_max
    }

    /// Writes a transaction, which is durable when this returns, along with all that was written to
    /// the device before. Checkpoints older ones if the log needs the space. An empty one writes
    /// nothing.
    ///
    /// # Errors
    /// `InvalidArgument` for blocks that are none of the device's, are the journal's own or have
    /// another length, and for more of them than the log has space. Errors of the device stop the
    /// journal.
    pub fn commit(&self, transaction: Frozen) -> Result<()> {
        let mut state = lock(&self.state);
        self.failure.check()?;
        if transaction.is_empty() {
            return Ok(());
        }
        let transaction = transaction.settle();
        state.log.check(&transaction)?;
        let written = self.write(&mut state, transaction);
        self.stop_on_error(&state, written)
    }

    /// Position of a fast commit on the next transaction. `None` when it would not be found after a
    /// crash, as there is no log yet, and where none are kept.
    pub fn fast_commit_space(&self) -> Option<FastCommitSpace> {
        let state = lock(&self.state);
        let left = self.fast_commits.len() as u32 - state.fast_used;
        (state.log.is_started() && left > 0).then(|| FastCommitSpace {
            sequence: state.log.head().sequence,
            used: state.fast_used,
            left,
            block_bytes: self.disk.location().block_bytes(),
        })
    }

    /// Writes a fast commit behind the existing ones: whole blocks, as the file system reads them.
    /// It is durable when this returns, along with all that was written to the device before; the
    /// next transaction ends it. No bytes are a flush.
    ///
    /// The first block is written last, when the others are durable: after a power cut there is no
    /// beginning without an end, which other implementations reject.
    ///
    /// # Errors
    /// `InvalidArgument` for more than there is [space](Self::fast_commit_space) for. Errors of the
    /// device stop the journal.
    pub fn write_fast_commit(&self, bytes: &[u8]) -> Result<()> {
        let mut state = lock(&self.state);
        self.failure.check()?;
        let size = self.disk.block_bytes();
        let blocks: Vec<&[u8]> = bytes.chunks(size).collect();
        let left = self.fast_commits.len() as u64 - u64::from(state.fast_used);
        let is_whole = bytes.len().is_multiple_of(size);
        if !is_whole || blocks.len() as u64 > left || !state.log.is_started() {
            let count = blocks.len();
            return Err(invalid(&format!(
                "a fast commit of {count} blocks, where {left} are left"
            )));
        }
        let written = self.write_fast_blocks(state.fast_used, &blocks);
        state.fast_used += blocks.len() as u32;
        self.stop_on_error(&state, written)
    }

    /// Writes a transaction that was checked. Fast commits before it count no more.
    fn write(&self, state: &mut State, transaction: Settled) -> Result<()> {
        if !state.log.is_started() {
            self.erase_fast_commits()?;
        }
        state.write(transaction, &self.table)?;
        match std::mem::take(&mut state.fast_used) {
            0 => Ok(()),
            // Not before the transaction, which contains their changes.
            _ => self.erase_fast_commits(),
        }
    }

    /// Makes sure that no block looks like a fast commit of another transaction: e2fsck 1.47.0
    /// treats that as an error.
    fn erase_fast_commits(&self) -> Result<()> {
        if self.fast_commits.is_empty() {
            return Ok(());
        }
        let zeros = vec![0; self.disk.block_bytes()];
        let mut requests = Vec::new();
        let first = self.fast_commits.start;
        self.disk
            .write_requests(first, &[&zeros], Persistence::Fua, &mut requests);
        self.disk.submit(requests)
    }

    /// Writes the committed content of a block in place now, if it is not checkpointed; durable
    /// with the next flush.
    ///
    /// # Errors
    /// Errors of the device stop the journal.
    pub fn bring_home(&self, block: PhysicalBlock) -> Result<()> {
        let mut state = lock(&self.state);
        self.failure.check()?;
        let Some(uncheckpointed) = self.table.get(block) else {
            return Ok(());
        };
        let before = state.written_back.as_ref();
        if before.is_some_and(|(other, contents)| {
            *other == block && Arc::ptr_eq(contents, &uncheckpointed.contents)
        }) {
            return Ok(());
        }
        // It remains in the table: when the tail of the log may move is the checkpoint's to know.
        let written = self.disk.write_back([(block, &*uncheckpointed.contents)]);
        state.written_back = Some((block, uncheckpointed.contents));
        self.stop_on_error(&state, written)
    }

    fn write_fast_blocks(&self, used: u32, blocks: &[&[u8]]) -> Result<()> {
        let first = self.fast_commits.start + used;
        let mut requests = Vec::new();
        if blocks.len() > 1 {
            self.disk
                .write_requests(first + 1, &blocks[1..], Persistence::Cached, &mut requests);
            self.disk.submit(requests)?;
        }
        self.disk.flush()?;
        let mut requests = Vec::new();
        self.disk.write_requests(
            first,
            &blocks[..blocks.len().min(1)],
            Persistence::Fua,
            &mut requests,
        );
        self.disk.submit(requests)
    }

    /// Checkpoints a few megabytes if more than half of the log is in use, until it is a quarter.
    ///
    /// # Errors
    /// Errors of the device stop the journal.
    pub fn checkpoint(&self) -> Result<Checkpoint> {
        let mut state = lock(&self.state);
        self.failure.check()?;
        let State {
            log, checkpoints, ..
        } = &mut *state;
        let blocks = log.ring().blocks();
        if !checkpoints.is_under_way() {
            if log.used() <= blocks / 2 {
                return Ok(Checkpoint::Done);
            }
            checkpoints.plan(log, blocks / 4, &self.table);
        }
        let stepped = checkpoints.step(log, &self.table);
        let is_under_way = checkpoints.is_under_way();
        self.stop_on_error(&state, stepped)?;
        Ok(if is_under_way {
            Checkpoint::More
        } else {
            Checkpoint::Done
        })
    }

    /// Checkpoints everything and marks the log empty, as for an unmount. The next transaction
    /// begins a new one.
    ///
    /// # Errors
    /// Errors of the device stop the journal.
    pub fn empty(&self) -> Result<()> {
        let mut state = lock(&self.state);
        self.failure.check()?;
        let emptied = state.empty(&self.table);
        self.stop_on_error(&state, emptied)
    }

    /// Usage of the log.
    pub fn log_use(&self) -> LogUse {
        let state = lock(&self.state);
        LogUse {
            blocks: state.log.ring().blocks(),
            used: state.log.used(),
            logged: state.log.logged(),
        }
    }

    /// The number that the next transaction will have on the disk, while there is a log there: that
    /// of fast commits made before it. `None` also means that fast commits would not be found after
    /// a crash.
    pub fn next_sequence(&self) -> Option<Sequence> {
        let state = lock(&self.state);
        let is_started = state.log.is_started();
        is_started.then(|| state.log.head().sequence)
    }

    /// The same, also while there is no log.
    pub(crate) fn head(&self) -> Sequence {
        lock(&self.state).log.head().sequence
    }

    /// The blocks of the journal for fast commits; empty without them. Their content belongs to the
    /// file system.
    pub fn fast_commits(&self) -> Range<u32> {
        self.fast_commits.clone()
    }

    /// Reads the fast-commit blocks, from the first on.
    pub fn read_fast_commits(&self) -> FastCommitBlocks<'_> {
        FastCommitBlocks::new(&self.disk, self.fast_commits())
    }

    /// Location of the journal.
    pub fn location(&self) -> &JournalLocation {
        self.disk.location()
    }

    /// The error that stopped the journal.
    pub fn failure(&self) -> Option<&Error> {
        self.failure.get()
    }

    pub(crate) fn shared_failure(&self) -> Arc<Failure> {
        Arc::clone(&self.failure)
    }

    /// Stops the journal; the first error is kept and returned.
    pub(crate) fn stop(&self, error: Error) -> &Error {
        self.failure.set(error)
    }

    fn stop_on_error(&self, state: &State, result: Result<()>) -> Result<()> {
        let Err(error) = result else { return Ok(()) };
        self.stop(error);
        state.log.note_failure();
        self.failure.check()
    }
}

/// The superblock with the features that the journal shall have.
fn prepared(
    disk: &Disk,
    mut superblock: JournalSuperblock,
    options: JournalOptions,
) -> Result<JournalSuperblock> {
    let kind = Header::read(superblock.as_bytes()).map(|header| header.kind);
    if kind == Some(BlockType::SuperblockV1) {
        return Err(Error::new(ErrorKind::Unsupported)
            .detail("journal superblock of the first version, which has no features"));
    }
    let mut options = options;
    if !superblock.has_room_for_fast_commits() {
        options.fast_commits = FastCommits::Off;
    }
    superblock.edit(|raw| options.apply(raw))?;
    let is_narrow = superblock.format().block_numbers == BlockNumbers::Bits32;
    if is_narrow && disk.last_block().0 > u64::from(u32::MAX) {
        return Err(invalid("numbers of 32 bits on a device with more blocks"));
    }
    let blocks = superblock.log().len() as u32;
    if blocks < LOG_BLOCKS_MIN {
        return Err(Error::new(ErrorKind::Unsupported)
            .detail(format!("a log of {blocks} blocks, not {LOG_BLOCKS_MIN}")));
    }
    Ok(superblock)
}

fn invalid(detail: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument).detail(detail)
}

impl State {
    /// Writes a transaction that was checked.
    fn write(&mut self, transaction: Settled, table: &Table) -> Result<()> {
        let space = self.log.space(&transaction) as u32;
        self.bring_home(self.log.ring().blocks() - space, table)?;
        let position = self.log.head();
        self.log.append(&transaction)?;
        self.checkpoints
            .committed(transaction, position, space, table);
        Ok(())
    }

    fn empty(&mut self, table: &Table) -> Result<()> {
        self.bring_home(0, table)?;
        self.fast_used = 0;
        self.log.set_empty()
    }

    /// Checkpoints old transactions until at most `used` blocks of the log are in use.
    fn bring_home(&mut self, used: u32, table: &Table) -> Result<()> {
        while self.log.used() > used {
            if !self.checkpoints.is_under_way() {
                self.checkpoints.plan(&self.log, used, table);
            }
            self.checkpoints.step(&mut self.log, table)?;
        }
        Ok(())
    }
}

impl JournalOptions {
    fn apply(&self, raw: &mut RawJournalSuperblock) {
        let mut compat = JournalCompat::from_bits_retain(raw.s_feature_compat.get());
        let mut incompat = JournalIncompat::from_bits_retain(raw.s_feature_incompat.get());
        if let Some(format) = self.format {
            compat.set(
                JournalCompat::CHECKSUM,
                format.checksums == Checksums::Transaction,
            );
            incompat.set(JournalIncompat::CSUM_V2, format.checksums == Checksums::V2);
            incompat.set(JournalIncompat::CSUM_V3, format.checksums == Checksums::V3);
            incompat.set(
                JournalIncompat::BIT64,
                format.block_numbers == BlockNumbers::Bits64,
            );
            if matches!(format.checksums, Checksums::V2 | Checksums::V3) {
                raw.s_checksum_type = CRC32C;
            }
        }
        incompat.insert(JournalIncompat::REVOKE);
        // Commit blocks are written after their transaction.
        incompat.remove(JournalIncompat::ASYNC_COMMIT);
        incompat.set(
            JournalIncompat::FAST_COMMIT,
            self.fast_commits == FastCommits::On,
        );
        raw.s_feature_compat.set(compat.bits());
        raw.s_feature_incompat.set(incompat.bits());
        raw.s_errno.set(0);
    }
}

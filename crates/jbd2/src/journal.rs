//! The journal in use: transactions go in at the head of the log, and leave at its tail when they are home.
//!
//! Model: `state` is that of the one who writes; readers only meet the table. Everything that changes the log
//! goes through the state's lock, also while the device works, so that commits and checkpoints alternate.
//!
//! After the first error of the device nothing is written any more: of what it kept, nothing is known. Every
//! later call gives that error. What recovery finds is what was committed before.

use std::ops::Range;
use std::sync::Arc;

use extant_blockdev::Device;
use extant_ondisk::ext4::PhysicalBlock;
use extant_ondisk::jbd2::format::{BlockNumbers, Checksums};
use extant_ondisk::jbd2::superblock::RawJournalSuperblock;
use extant_ondisk::jbd2::{BlockType, Header, JournalCompat, JournalIncompat, Sequence};
use extant_space::{Error, ErrorKind, Result};

use crate::checkpoint::Checkpoints;
use crate::disk::Disk;
use crate::failure::Failure;
use crate::frozen::Settled;
use crate::log::Log;
use crate::sync::{Mutex, lock};
use crate::table::Table;
use crate::{Frozen, Place};

/// Of the log: what a transaction may take. The rest holds what is committed and not home yet.
const TRANSACTION_SHARE: u32 = 4;
/// A log with fewer blocks has no room for a transaction and what it needs besides.
const LOG_BLOCKS_MIN: u32 = 16;
/// `s_checksum_type` of crc32c.
const CRC32C: u8 = 4;

/// How a log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogFormat {
    /// Which sums there are.
    pub checksums: Checksums,
    /// How wide numbers of blocks are.
    pub block_numbers: BlockNumbers,
}

/// Whether the end of the journal is kept for fast commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FastCommits {
    /// All of it is log.
    #[default]
    Off,
    /// So many blocks as `s_num_fc_blks` says are kept.
    On,
}

/// What a journal is to be like.
#[derive(Clone, Copy, Debug, Default)]
pub struct JournalOptions {
    /// How the log is written; `None`: as the superblock says. The kernel's ext4 takes checksums v3 where
    /// the file system has `metadata_csum`, else none, and 64 bits where it has `64bit`.
    pub format: Option<LogFormat>,
    /// Whether there will be fast commits.
    pub fast_commits: FastCommits,
}

/// Blocks of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogUse {
    /// All.
    pub blocks: u32,
    /// Those of transactions that are not home.
    pub used: u32,
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
    failure: Failure,
    disk: Disk,
    fast_commits: Range<u32>,
    transaction_blocks_max: u32,
}

struct State {
    log: Log,
    checkpoints: Checkpoints,
}

impl Journal {
    /// Opens a journal whose log is empty: new, left so, or [recovered](crate::Recovery). Writes nothing yet.
    /// An error number in its superblock is forgotten with the first transaction.
    ///
    /// # Errors
    /// `InvalidArgument` when the log is not empty, and for a format that cannot name the blocks of the
    /// device; `Unsupported` for a superblock of the first version; as [`Recovery::read`](crate::Recovery::read).
    pub fn open(device: Arc<dyn Device>, place: Place, options: JournalOptions) -> Result<Self> {
        let disk = Disk::new(device, place)?;
        let mut superblock = disk.read_superblock()?;
        let invalid = |detail: String| Error::new(ErrorKind::InvalidArgument).detail(detail);
        if superblock.start().is_some() {
            return Err(invalid("the journal needs recovery".into()));
        }
        let kind = Header::read(superblock.as_bytes()).map(|header| header.kind);
        if kind == Some(BlockType::SuperblockV1) {
            return Err(Error::new(ErrorKind::Unsupported)
                .detail("journal superblock of the first version, which has no features"));
        }
        superblock.edit(|raw| options.apply(raw))?;
        let is_narrow = superblock.format().block_numbers == BlockNumbers::Bits32;
        if is_narrow && disk.last_block().0 > u64::from(u32::MAX) {
            return Err(invalid(
                "numbers of 32 bits on a device with more blocks".into(),
            ));
        }
        let blocks = superblock.log().len() as u32;
        if blocks < LOG_BLOCKS_MIN {
            return Err(Error::new(ErrorKind::Unsupported)
                .detail(format!("a log of {blocks} blocks, not {LOG_BLOCKS_MIN}")));
        }
        Ok(Self {
            fast_commits: superblock.fast_commits(),
            transaction_blocks_max: blocks / TRANSACTION_SHARE,
            state: Mutex::new(State {
                log: Log::new(disk.clone(), superblock),
                checkpoints: Checkpoints::default(),
            }),
            table: Table::new(),
            failure: Failure::default(),
            disk,
        })
    }

    /// The latest committed contents of a block that is not at home yet. `None`: they are at home.
    pub fn lookup(&self, block: PhysicalBlock) -> Option<Arc<[u8]>> {
        Some(self.table.get(block)?.contents)
    }

    /// How many blocks a transaction may change or revoke. [`commit`](Self::commit) takes more, as long as the
    /// log has the space.
    pub fn transaction_blocks_max(&self) -> u32 {
        self.transaction_blocks_max
    }

    /// Writes a transaction, which is durable when this returns, along with all that was written to the device
    /// before. Brings older ones home where the log needs the space. An empty one writes nothing.
    ///
    /// # Errors
    /// `InvalidArgument` for blocks that are none of the device's, are the journal's own or have another
    /// length, and for more of them than the log has space. Errors of the device stop the journal.
    pub fn commit(&self, transaction: Frozen) -> Result<()> {
        let mut state = lock(&self.state);
        self.failure.check()?;
        if transaction.is_empty() {
            return Ok(());
        }
        let transaction = transaction.settle();
        state.log.check(&transaction)?;
        let written = state.write(transaction, &self.table);
        self.stop_on_error(&state, written)
    }

    /// Brings a few megabytes home when more than half of the log is in use, until it is a quarter.
    ///
    /// # Errors
    /// Errors of the device stop the journal.
    pub fn checkpoint(&self) -> Result<Checkpoint> {
        let mut state = lock(&self.state);
        self.failure.check()?;
        let State { log, checkpoints } = &mut *state;
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
        Ok(match is_under_way {
            true => Checkpoint::More,
            false => Checkpoint::Done,
        })
    }

    /// Brings everything home and declares the log empty, as for an unmount. The next transaction begins a
    /// new one.
    ///
    /// # Errors
    /// Errors of the device stop the journal.
    pub fn empty(&self) -> Result<()> {
        let mut state = lock(&self.state);
        self.failure.check()?;
        let emptied = state.empty(&self.table);
        self.stop_on_error(&state, emptied)
    }

    /// How full the log is.
    pub fn log_use(&self) -> LogUse {
        let state = lock(&self.state);
        LogUse {
            blocks: state.log.ring().blocks(),
            used: state.log.used(),
        }
    }

    /// The number that the next transaction will have on the disk, while there is a log there: that of fast
    /// commits made before it. `None` also means that fast commits would not be found after a crash.
    pub fn next_sequence(&self) -> Option<Sequence> {
        let state = lock(&self.state);
        let is_started = state.log.is_started();
        is_started.then(|| state.log.head().sequence)
    }

    /// The blocks of the journal for fast commits; empty without them. What they hold is the file system's.
    pub fn fast_commits(&self) -> Range<u32> {
        self.fast_commits.clone()
    }

    /// Where the journal lies.
    pub fn place(&self) -> &Place {
        self.disk.place()
    }

    /// The error that stopped the journal.
    pub fn failure(&self) -> Option<&Error> {
        self.failure.get()
    }

    /// # Errors
    /// When the journal was stopped.
    pub(crate) fn check_failure(&self) -> Result<()> {
        self.failure.check()
    }

    /// Stops the journal; the first error stays, and is returned.
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
        self.log.set_empty()
    }

    /// Brings old transactions home until at most `used` blocks of the log are in use.
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
        // Commit blocks are written after what they commit.
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

//! An open file system.
//!
//! Model: [`Parts`] is the shared state: cache, groups, inodes, allocator, and the changes of the
//! running transaction. [`Core`] adds the journal, which calls back into the parts when it freezes
//! a transaction. A change begins ([`Core::begin`]) with an upper bound of the blocks it may
//! modify, is made in memory, and ends when the transaction handle is dropped. The journal writes
//! the accumulated changes every few seconds, or on a sync.
//!
//! Lock order: `inode.rs`.

mod assign;
mod assigned;
mod freeze;
mod open;
mod recover;
mod statistics;
mod superblock;
mod trim;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use extant_blockdev::Device;
use extant_jbd2::Transactions;
use extant_mballoc::Allocator;
use extant_ondisk::ext4::{Access, Layout, Seed, Superblock};
use extant_space::{Error, ErrorKind, Result};

use crate::cache::{Block, BlockCache};
use crate::groups::Groups;
use crate::inode::InodeTable;
use crate::options::{OnError, Options};
use crate::orphan::Orphans;
use crate::transaction::{Epoch, Running, Transaction, TransactionId};

use assigned::AssignedBlocks;

pub(crate) use freeze::allocator_id;
pub use statistics::Statistics;

/// An ext4 file system.
///
/// Cheap to clone; all clones are equivalent. Dropping the last one closes it as
/// [`close`](Self::close) does, but discards errors.
#[derive(Clone)]
pub struct Filesystem {
    pub(crate) core: Arc<Core>,
}

/// What [`Filesystem::cut`] makes durable first, as the flags of `FS_IOC_SHUTDOWN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Everything (`FS_SHUTDOWN_FLAGS_DEFAULT`).
    Default,
    /// The running transaction (`FS_SHUTDOWN_FLAGS_LOGFLUSH`).
    LogFlush,
    /// Nothing (`FS_SHUTDOWN_FLAGS_NOLOGFLUSH`).
    NoLogFlush,
}

/// How often a change waits for blocks to come free, which others may take first; as in the kernel.
const COMMITS_FOR_SPACE: u32 = 3;

/// The parts and the journal.
pub(crate) struct Core {
    pub(crate) parts: Arc<Parts>,
    /// `None` when nothing is written.
    journal: Option<Transactions<Arc<Parts>>>,
}

/// The shared state.
pub(crate) struct Parts {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) options: Options,
    pub(crate) layout: Layout,
    /// Whether there is a journal.
    pub(crate) has_log: bool,
    pub(crate) seed: Option<Seed>,
    pub(crate) superblock: Mutex<Superblock>,
    /// As it was last given to the device or the journal.
    superblock_given: Mutex<Superblock>,
    /// The block that contains it, pinned so that a freeze need not read it.
    superblock_block: Arc<Block>,
    pub(crate) cache: Arc<BlockCache>,
    pub(crate) groups: Arc<Groups>,
    pub(crate) inodes: InodeTable,
    pub(crate) allocator: Allocator,
    assigned: AssignedBlocks,
    pub(crate) running: Running,
    pub(crate) orphans: Orphans,
    /// Held by renames between two directories: the ancestors of a directory must not change.
    pub(crate) moving: Mutex<()>,
    /// Changes are refused: something was wrong, and the file system is set to stop then.
    stopped: AtomicBool,
    closed: AtomicBool,
    /// It was [shut down](Filesystem::cut): the journal was stopped on purpose, which is not
    /// recorded as an error.
    cut: AtomicBool,
    /// Blocks that files can never have; counted when first asked for.
    overhead: OnceLock<u64>,
    /// Blocks of transactions that were frozen and have not committed: they must stay in the cache.
    frozen: Mutex<Vec<(TransactionId, Vec<Arc<Block>>)>>,
}

impl Filesystem {
    /// Makes all earlier changes durable.
    ///
    /// # Errors
    /// Errors of the device, including unreported ones of earlier writes.
    pub fn sync(&self) -> Result<()> {
        let Some(journal) = &self.core.journal else {
            return Ok(());
        };
        journal.commit(journal.running())?;
        // A transaction that changed nothing has no flush, and data may have been written without
        // one.
        self.core.parts.device.flush()
    }

    /// Checkpoints everything and marks the file system clean. Remaining clones, nodes and files
    /// become read-only; the next opening processes their orphans.
    ///
    /// # Errors
    /// Errors of the device; the journal then still has what is not checkpointed. The first error
    /// of freeing the blocks of a removed file; everything is checkpointed then.
    pub fn close(self) -> Result<()> {
        self.core.close()
    }

    /// Stops the file system as a crash would, after making durable what `shutdown` names. Nothing
    /// is written after that, and the file system is not marked clean: the next opening replays the
    /// journal. Changes fail from now on.
    ///
    /// # Errors
    /// Those of [`sync`](Self::sync); the file system continues then.
    pub fn cut(&self, shutdown: Shutdown) -> Result<()> {
        match shutdown {
            Shutdown::Default | Shutdown::LogFlush => self.sync()?,
            Shutdown::NoLogFlush => {}
        }
        let parts = &self.core.parts;
        parts.cut.store(true, Ordering::Relaxed);
        parts.closed.store(true, Ordering::Relaxed);
        if let Some(journal) = &self.core.journal {
            journal.abort(Error::new(ErrorKind::ReadOnly).detail("the file system was shut down"));
        }
        Ok(())
    }

    /// How full it is.
    pub fn statistics(&self) -> Statistics {
        self.core.parts.statistics()
    }

    /// Whether it can be changed.
    pub fn access(&self) -> Access {
        self.core.parts.options.access
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> u32 {
        self.core.parts.layout.block_bytes()
    }
}

impl Core {
    /// Begins a change that touches at most `blocks` blocks of metadata, and that a fast commit
    /// cannot say.
    ///
    /// # Errors
    /// `ReadOnly`; or what made the journal stop.
    pub(crate) fn begin(&self, blocks: u32) -> Result<Transaction<'_>> {
        let transaction = self.begin_recorded(blocks)?;
        transaction.forbid_fast_commit();
        Ok(transaction)
    }

    /// The same, of which a fast commit can say all: the inodes but directories, their ranges that
    /// are [touched](crate::inode::InodeState::touch), and the names that are
    /// [noted](Transaction::note_name).
    pub(crate) fn begin_recorded(&self, blocks: u32) -> Result<Transaction<'_>> {
        let handle = self.changeable()?.start(blocks)?;
        Ok(Transaction::new(&self.parts.running, handle))
    }

    /// The journal, where changes are taken.
    ///
    /// # Errors
    /// `ReadOnly`.
    pub(crate) fn changeable(&self) -> Result<&Transactions<Arc<Parts>>> {
        let Some(journal) = &self.journal else {
            return Err(Error::new(ErrorKind::ReadOnly).detail("the file system is open read-only"));
        };
        if self.parts.closed.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::ReadOnly).detail("the file system was closed"));
        }
        if self.parts.stopped.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::ReadOnly)
                .detail("the file system was found damaged and takes no more changes")
                .advice("check it"));
        }
        Ok(journal)
    }

    /// Retries a change that failed for lack of space if a commit makes freed blocks available. A
    /// failed change must leave a state from which it can be repeated.
    pub(crate) fn with_space<T>(&self, mut change: impl FnMut() -> Result<T>) -> Result<T> {
        let mut result = change();
        for _ in 0..COMMITS_FOR_SPACE {
            let Some(journal) = &self.journal else { break };
            let is_full = matches!(&result, Err(error) if error.kind() == ErrorKind::NoSpace);
            let has_pending =
                self.parts.allocator.pending_blocks() > 0 || self.parts.groups.has_freed_inodes();
            if !is_full || !has_pending {
                break;
            }
            journal.commit(journal.running())?;
            result = change();
        }
        result
    }

    /// Whether anything can be changed.
    pub(crate) fn is_writable(&self) -> bool {
        let parts = &self.parts;
        self.journal.is_some()
            && !parts.closed.load(Ordering::Relaxed)
            && !parts.stopped.load(Ordering::Relaxed)
    }

    /// Waits until `epoch` is durable, by a fast commit where that can be.
    pub(crate) fn wait_durable(&self, epoch: Epoch) -> Result<()> {
        match &self.journal {
            Some(journal) => journal.sync(epoch),
            None => Ok(()),
        }
    }

    /// Whether what is changed now belongs to `epoch`.
    pub(crate) fn is_present(&self, epoch: Epoch) -> bool {
        let journal = self.journal.as_ref();
        journal.is_some_and(|journal| journal.epoch() == epoch)
    }

    /// Whether `epoch` is durable.
    pub(crate) fn is_durable(&self, epoch: Epoch) -> bool {
        let last = self.journal.as_ref().and_then(Transactions::last_durable);
        last.is_some_and(|last| epoch <= last)
    }

    /// Passes a result on. An error of the structures is noted in the superblock, and stops further
    /// changes where the file system is set to.
    pub(crate) fn judged<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result
            && error.kind() == ErrorKind::Corrupt
            && self.journal.is_some()
        {
            self.parts.note_error(error);
            if self.parts.on_error() == OnError::ReadOnly {
                self.parts.stopped.store(true, Ordering::Relaxed);
            }
        }
        result
    }

    /// Stops everything, as a change failed halfway; called before its transaction ends. Returns
    /// the error.
    pub(crate) fn fail(&self, error: Error) -> Error {
        if let Some(journal) = &self.journal {
            journal.abort(error.clone());
        }
        error
    }

    /// Whether an error or a panic has stopped the journal.
    pub(crate) fn has_failed(&self) -> bool {
        let journal = self.journal.as_ref();
        journal.is_some_and(|journal| journal.failure().is_some())
    }

    fn close(&self) -> Result<()> {
        let Some(journal) = &self.journal else {
            return Ok(());
        };
        if self.parts.closed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        if self.has_failed() {
            // A panic may be the cause: nothing in memory is of any use.
            return journal.empty();
        }
        let release = || self.parts.allocator.release_windows();
        if catch_unwind(AssertUnwindSafe(release)).is_err() {
            // Another thread has panicked in the allocator.
            let error = Error::new(ErrorKind::Io);
            self.fail(error.detail("a thread panicked while it changed the allocator"));
        }
        journal.empty()?;
        self.parts.mark_clean()?;
        // The removal of the name had succeeded, and the error could not be reported.
        self.parts.orphans.take_failure().map_or(Ok(()), Err)
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // As a crash would leave it.
            return;
        }
        // The error cannot be reported.
        let _ = self.close();
    }
}

impl fmt::Debug for Filesystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filesystem")
            .field("options", &self.core.parts.options)
            .finish_non_exhaustive()
    }
}

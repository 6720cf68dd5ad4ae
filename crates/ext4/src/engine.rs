//! The shared state and its journal: how changes begin, and when they are durable.
//!
//! A change begins ([`Engine::begin`]) with an upper bound of the blocks it may modify, is made in
//! memory, and ends when the transaction handle is dropped. The journal writes the accumulated
//! changes every few seconds, or on a sync.
//!
//! Lock order: `inode_cell.rs`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use extant_jbd2::Transactions;
use extant_space::{Error, ErrorKind, Result};

use crate::options::OnError;
use crate::state::FsState;
use crate::transaction::{Epoch, Transaction};

/// How often a change waits for a commit to free blocks, which other changes may take first; as in
/// the kernel.
const COMMITS_FOR_SPACE: u32 = 3;

/// The shared state and the journal.
pub(crate) struct Engine {
    pub(crate) fs: Arc<FsState>,
    /// `None` when nothing is written.
    pub(crate) journal: Option<Transactions<Arc<FsState>>>,
}

impl Engine {
    /// Begins a change that touches at most `blocks` blocks of metadata, and that a fast commit
    /// cannot say.
    ///
    /// # Errors
    /// `ReadOnly`; or the error that stopped the journal.
    pub(crate) fn begin(&self, blocks: u32) -> Result<Transaction<'_>> {
        let transaction = self.begin_recorded(blocks)?;
        transaction.mark_ineligible();
        Ok(transaction)
    }

    /// The same, for changes that a fast commit can describe completely: the inodes but
    /// directories, their ranges that are [touched](crate::inode_cell::InodeState::touch), and the
    /// names that are [noted](Transaction::note_name).
    pub(crate) fn begin_recorded(&self, blocks: u32) -> Result<Transaction<'_>> {
        let handle = self.changeable()?.start(blocks)?;
        Ok(Transaction::new(&self.fs.running, handle))
    }

    /// The journal, where changes are taken.
    ///
    /// # Errors
    /// `ReadOnly`.
    pub(crate) fn changeable(&self) -> Result<&Transactions<Arc<FsState>>> {
        let Some(journal) = &self.journal else {
            return Err(Error::new(ErrorKind::ReadOnly).detail("the file system is open read-only"));
        };
        if self.fs.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::ReadOnly).detail("the file system was closed"));
        }
        if self.fs.stopped.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::ReadOnly)
                .detail("the file system is damaged and refuses changes")
                .advice("check it"));
        }
        Ok(journal)
    }

    /// Retries a change that failed with `NoSpace` if a commit makes freed blocks available. A
    /// failed change must leave a state from which it can be repeated.
    #[inline]
    pub(crate) fn with_space<T>(&self, mut change: impl FnMut() -> Result<T>) -> Result<T> {
        let mut result = change();
        for _ in 0..COMMITS_FOR_SPACE {
            let (Err(error), Some(journal)) = (&result, &self.journal) else {
                break;
            };
            let has_pending =
                || self.fs.allocator.pending_blocks() > 0 || self.fs.groups.has_freed_inodes();
            if error.kind() != ErrorKind::NoSpace || !has_pending() {
                break;
            }
            journal.commit(journal.running())?;
            result = change();
        }
        result
    }

    /// Whether anything can be changed.
    pub(crate) fn is_writable(&self) -> bool {
        let fs = &self.fs;
        self.journal.is_some()
            && !fs.closed.load(Ordering::Relaxed)
            && !fs.stopped.load(Ordering::Relaxed)
    }

    /// Waits until `epoch` is durable, by a fast commit where that can be.
    pub(crate) fn wait_durable(&self, epoch: Epoch) -> Result<()> {
        match &self.journal {
            Some(journal) => journal.sync(epoch),
            None => Ok(()),
        }
    }

    /// Whether a change made now belongs to `epoch`.
    pub(crate) fn is_present(&self, epoch: Epoch) -> bool {
        let journal = self.journal.as_ref();
        journal.is_some_and(|journal| journal.epoch() == epoch)
    }

    /// Whether `epoch` is durable.
    pub(crate) fn is_durable(&self, epoch: Epoch) -> bool {
        let last = self.journal.as_ref().and_then(Transactions::last_durable);
        last.is_some_and(|last| epoch <= last)
    }

    /// Returns the result. An error of kind `Corrupt` is recorded in the superblock, and stops
    /// further changes where the file system is set to.
    pub(crate) fn record_corruption<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result
            && error.kind() == ErrorKind::Corrupt
            && self.journal.is_some()
        {
            self.fs.note_error(error);
            if self.fs.on_error() == OnError::ReadOnly {
                self.fs.stopped.store(true, Ordering::Relaxed);
            }
        }
        result
    }

    /// Stops the engine, as a change failed halfway; called before its transaction ends. Returns
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

    pub(crate) fn close(&self) -> Result<()> {
        let Some(journal) = &self.journal else {
            return Ok(());
        };
        if self.fs.closed.swap(true, Ordering::Release) {
            return Ok(());
        }
        self.leave(journal)?;
        // The removal of the name had succeeded, and the error could not be reported.
        self.fs.orphans.take_failure().map_or(Ok(()), Err)
    }

    /// Checkpoints everything and marks the file system clean. Changes are refused already.
    pub(crate) fn leave(&self, journal: &Transactions<Arc<FsState>>) -> Result<()> {
        if self.has_failed() {
            // A panic may be the cause: nothing in memory is of any use.
            return journal.empty();
        }
        let release = || self.fs.allocator.release_windows();
        if catch_unwind(AssertUnwindSafe(release)).is_err() {
            // Another thread has panicked in the allocator.
            let error = Error::new(ErrorKind::Io);
            self.fail(error.detail("a thread panicked while it changed the allocator"));
        }
        journal.empty()?;
        self.fs.mark_clean()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The state is that after a crash.
            return;
        }
        // The error cannot be reported.
        let _ = self.close();
    }
}

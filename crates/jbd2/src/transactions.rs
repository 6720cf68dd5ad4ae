//! Handles for threads, and a commit thread for all of them.
//!
//! Model: there is one running transaction. A thread that changes metadata opens a [`Handle`],
//! whose changes belong entirely to the transaction that was running then. A commit waits until no
//! handle is open, collects the changes from the client ([`Client::freeze`]), lets the next
//! transaction run, and only then writes. All waiters for a transaction share its commit.
//!
//! A sync need not end the transaction: the client may describe its changes so far in a *fast
//! commit* ([`Client::fast_commit`]). Time is divided into [`Epoch`]s for that, which end with each
//! commit, full or fast.
//!
//! Cost of a handle: a shared lock and three additions on a cache line that few threads share.
//! Nothing is written by all threads: a thread enters the barrier of its own [`Slot`](slots::Slot),
//! and takes credits from the slot's lease on the transaction.
//!
//! Lock order, for clients: a lock that a thread takes while it has a handle open must not be held
//! by one that starts a handle, or waits for a commit. The commit thread calls the client without
//! any lock of this crate but the barriers, in [`Client::freeze`] alone.

mod committer;
mod handle;
mod progress;
mod shared;
mod slots;
mod statistics;

use std::fmt;
use std::time::Duration;

use extant_space::{Error, ErrorKind, Result};

use crate::sync::{Arc, Builder, JoinHandle};
use crate::{CommitTarget, FastCommitSpace, Frozen, Journal};
use handle::assert_no_handle;
use shared::Shared;

pub use handle::{Extension, Handle};
pub use statistics::Statistics;

/// A transaction of this opening of the journal, counted from 1. Not its number on the disk: those
/// that changed nothing have none there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId(u64);

impl TransactionId {
    /// As a number, for counters and tables.
    pub fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for TransactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The time between two commits, full or fast: a part of a transaction of this opening of the
/// journal. Counted from 1; it becomes durable as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(u64);

impl Epoch {
    /// As a number, for counters and tables.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// The one whose metadata it is. All calls are made by the commit thread, one after the other.
pub trait Client: Send + Sync + 'static {
    /// Returns the changes of the transaction: the contents of every changed block, and the blocks
    /// that were revoked. No handle is open meanwhile and none can be opened, so this should be
    /// quick. Changes after it belong to the next transaction.
    fn freeze(&self, transaction: TransactionId, frozen: &mut Frozen);

    /// Describes in a fast commit the changes of the transaction since the last commit, full or
    /// fast: whole blocks as the client reads them after a crash, no more than `space` has left. No
    /// bytes mean that there are no changes. `None`: the transaction is ineligible and is committed
    /// in full. No handle is open meanwhile and none can be opened.
    fn fast_commit(&self, transaction: TransactionId, space: &FastCommitSpace) -> Option<Vec<u8>> {
        let _ = (transaction, space);
        None
    }

    /// Writes the data that must be on the device before the transaction: the data of ordered
    /// files. Handles of the next transaction are open meanwhile. Flushing is not needed.
    ///
    /// # Errors
    /// Stop the journal; the transaction is not committed.
    fn write_data(&self, transaction: TransactionId) -> Result<()> {
        let _ = transaction;
        Ok(())
    }

    /// The transaction is durable. Called before its waiters continue; the blocks it freed can be
    /// reused. Must not start a handle or wait for a commit.
    fn committed(&self, transaction: TransactionId);

    /// The journal was stopped by `error`; nothing that was not committed ever will be.
    fn aborted(&self, error: &Error);
}

impl<C: Client + ?Sized> Client for Arc<C> {
    fn freeze(&self, transaction: TransactionId, frozen: &mut Frozen) {
        (**self).freeze(transaction, frozen);
    }

    fn fast_commit(&self, transaction: TransactionId, space: &FastCommitSpace) -> Option<Vec<u8>> {
        (**self).fast_commit(transaction, space)
    }

    fn write_data(&self, transaction: TransactionId) -> Result<()> {
        (**self).write_data(transaction)
    }

    fn committed(&self, transaction: TransactionId) {
        (**self).committed(transaction);
    }

    fn aborted(&self, error: &Error) {
        (**self).aborted(error);
    }
}

/// Options of commits.
#[derive(Clone, Copy, Debug)]
pub struct TransactionOptions {
    /// Maximum time of a change without a commit.
    pub interval: Duration,
    /// Number of slots for the threads; `None`: by the number of processors.
    pub slots: Option<usize>,
    /// Credits of a transaction; `None`: [`Journal::transaction_blocks_max`], without a journal 32
    /// MiB. A client may give more when it counts parts of one block each; that what it freezes has
    /// space in the log is then its own concern, and found out by the commit: `InvalidArgument`.
    pub credits: Option<u32>,
}

impl Default for TransactionOptions {
    /// The kernel's 5 seconds.
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(5),
            slots: None,
            credits: None,
        }
    }
}

/// The transactions of a journal, or without one, and the thread that commits them.
///
/// When dropped, it stops the thread after its current step, and commits nothing: as a crash would.
/// Before that, [`empty`](Self::empty) leaves everything in place.
pub struct Transactions<C: Client> {
    shared: Arc<Shared<C>>,
    committer: Option<JoinHandle<()>>,
}

impl<C: Client> Transactions<C> {
    /// Begins the first transaction. The owner of the journal may look up blocks in it, and leaves
    /// the rest to the transactions.
    ///
    /// # Errors
    /// If no thread can be created.
    pub fn new(
        target: impl Into<CommitTarget>,
        client: C,
        options: TransactionOptions,
    ) -> Result<Self> {
        let shared = Arc::new(Shared::new(target.into(), client, options));
        let theirs = shared.clone();
        let committer = Builder::new()
            .name("extant-commit".into())
            .spawn(move || committer::run(&theirs))?;
        Ok(Self {
            shared,
            committer: Some(committer),
        })
    }

    /// Opens a handle for the changes of one operation, which may touch up to `credits` blocks that
    /// are not part of the transaction yet, blocks that it revokes among them. Waits for a commit
    /// where the transaction has not that many left. Handles of a thread do not nest.
    ///
    /// # Errors
    /// `InvalidArgument` for more than a transaction can hold; the error that stopped the journal.
    pub fn start(&self, credits: u32) -> Result<Handle<'_>> {
        assert_no_handle(&self.shared.slots, "started");
        self.shared.start(credits)
    }

    /// The transaction that a handle started now would belong to.
    pub fn running(&self) -> TransactionId {
        self.shared.running()
    }

    /// Waits until the transaction is durable, committing it if it is running; then the thread must
    /// have no handle open.
    ///
    /// # Errors
    /// The error that stopped the journal, if the transaction was not durable before.
    pub fn commit(&self, transaction: TransactionId) -> Result<()> {
        let running = self.running();
        if transaction == running {
            // An earlier one is past its freeze, and waits for no handle.
            assert_no_handle(&self.shared.slots, "waited for a commit");
        }
        if transaction > running {
            let detail = format!("commit of transaction {transaction}, {running} is running");
            return Err(Error::new(ErrorKind::InvalidArgument).detail(detail));
        }
        self.shared.request(transaction);
        self.shared.wait_committed(transaction)
    }

    /// Epoch of a handle that would start now.
    pub fn epoch(&self) -> Epoch {
        self.shared.epoch()
    }

    /// Waits until the changes of the epoch are durable, by a fast commit if eligible; if it is the
    /// present one, the thread must have no handle open.
    ///
    /// # Errors
    /// The error that stopped the journal, if the epoch was not durable before.
    pub fn sync(&self, epoch: Epoch) -> Result<()> {
        let present = self.epoch();
        if epoch == present {
            assert_no_handle(&self.shared.slots, "waited for a sync");
        }
        if epoch > present {
            let detail = format!("sync of epoch {}, {} is the present", epoch.0, present.0);
            return Err(Error::new(ErrorKind::InvalidArgument).detail(detail));
        }
        self.shared.request_sync(epoch);
        self.shared.wait_durable(epoch)
    }

    /// The last epoch that is durable; `None` before the first.
    pub fn last_durable(&self) -> Option<Epoch> {
        self.shared.last_durable()
    }

    /// The last transaction that is durable; `None` before the first.
    pub fn last_committed(&self) -> Option<TransactionId> {
        self.shared.last_committed()
    }

    /// Commits the running transaction, checkpoints everything and marks the log empty, as for an
    /// unmount. Changes of handles opened meanwhile are not included.
    ///
    /// # Errors
    /// The error that stopped the journal.
    pub fn empty(&self) -> Result<()> {
        assert_no_handle(&self.shared.slots, "waited for a commit");
        self.shared.empty()
    }

    /// Refuses handles from now on, with an error of kind `ReadOnly`; open ones are not disturbed.
    /// A commit of the returned transaction makes the changes of all handles durable that were
    /// ever started.
    pub fn refuse_handles(&self) -> TransactionId {
        self.shared.refuse_handles()
    }

    /// Stops the journal: nothing that has not been committed ever will be. For a change that
    /// failed halfway, called before its handle is closed. The first error is kept; the client is
    /// notified.
    pub fn abort(&self, error: Error) {
        self.shared.abort(error);
    }

    /// The most credits of a handle: the capacity of one transaction.
    pub fn credits_max(&self) -> u32 {
        self.shared.slots.credits_max()
    }

    /// The journal, to look blocks up; `None` without one.
    pub fn journal(&self) -> Option<&Journal> {
        match &self.shared.target {
            CommitTarget::Journal(journal) => Some(journal),
            CommitTarget::InPlace(_) => None,
        }
    }

    /// The counters. May wait while a transaction is written to the log.
    pub fn statistics(&self) -> Statistics {
        self.shared.statistics()
    }

    /// The error that stopped the journal.
    pub fn failure(&self) -> Option<&Error> {
        self.shared.failure().get()
    }

    /// The client.
    pub fn client(&self) -> &C {
        &self.shared.client
    }
}

impl<C: Client> Drop for Transactions<C> {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(committer) = self.committer.take() {
            // A panic there has been reported, and every waiter got an error.
            let _ = committer.join();
        }
    }
}

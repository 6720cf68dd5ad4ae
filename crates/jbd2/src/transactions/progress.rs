//! Progress of the transactions, and the committer's next step.

use super::{Epoch, TransactionId};

/// Guarded by one lock; every change wakes the affected waiters.
pub(super) struct Progress {
    pub(super) running: TransactionId,
    pub(super) epoch: Epoch,
    /// Syncs are wanted up to this one.
    sync_requested: u64,
    durable: u64,
    /// Commits are wanted up to this one.
    requested: u64,
    /// The last transaction whose interval was over before anything requested its commit.
    overdue: u64,
    committed: u64,
    /// Number of requests for an empty log, and of those served.
    empties_wanted: u64,
    empties_done: u64,
    is_stopping: bool,
    pub(super) wants_checkpoint: bool,
}

/// Work of the committer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Stop,
    Commit,
    /// Make the present epoch durable, by a fast commit where possible.
    Sync,
    /// Commit, and then checkpoint everything.
    Empty,
    Checkpoint,
    Wait,
}

impl Progress {
    pub(super) fn new(first: TransactionId, epoch: Epoch) -> Self {
        Self {
            running: first,
            epoch,
            sync_requested: 0,
            durable: 0,
            requested: 0,
            overdue: 0,
            committed: 0,
            empties_wanted: 0,
            empties_done: 0,
            is_stopping: false,
            wants_checkpoint: false,
        }
    }

    /// The next work: a commit with waiters has priority over checkpoints.
    pub(super) fn work(&self) -> Work {
        match () {
            () if self.is_stopping => Work::Stop,
            () if self.requested >= self.running.0 => Work::Commit,
            () if self.sync_requested >= self.epoch.0 => Work::Sync,
            () if self.empties_done < self.empties_wanted => Work::Empty,
            () if self.wants_checkpoint => Work::Checkpoint,
            () => Work::Wait,
        }
    }

    pub(super) fn request(&mut self, transaction: TransactionId) {
        self.requested = self.requested.max(transaction.0);
    }

    /// The interval of the running transaction is over.
    pub(super) fn request_overdue(&mut self) {
        if self.requested < self.running.0 {
            self.overdue = self.running.0;
            self.requested = self.running.0;
        }
    }

    /// Whether the commit of a transaction was requested before its interval was over.
    pub(super) fn was_requested(&self, transaction: TransactionId) -> bool {
        self.overdue != transaction.0
    }

    pub(super) fn request_sync(&mut self, epoch: Epoch) {
        self.sync_requested = self.sync_requested.max(epoch.0);
    }

    pub(super) fn set_durable(&mut self, epoch: Epoch) {
        self.durable = epoch.0;
    }

    pub(super) fn is_durable(&self, epoch: Epoch) -> bool {
        self.durable >= epoch.0
    }

    pub(super) fn last_durable(&self) -> Option<Epoch> {
        (self.durable > 0).then_some(Epoch(self.durable))
    }

    pub(super) fn stop(&mut self) {
        self.is_stopping = true;
    }

    pub(super) fn set_committed(&mut self, transaction: TransactionId) {
        self.committed = transaction.0;
    }

    pub(super) fn is_committed(&self, transaction: TransactionId) -> bool {
        self.committed >= transaction.0
    }

    pub(super) fn last_committed(&self) -> Option<TransactionId> {
        (self.committed > 0).then_some(TransactionId(self.committed))
    }

    /// A wish for an empty log, by its number.
    pub(super) fn want_empty(&mut self) -> u64 {
        self.empties_wanted += 1;
        self.empties_wanted
    }

    /// The wishes that an empty log made from now on fulfils.
    pub(super) fn empties_wanted(&self) -> u64 {
        self.empties_wanted
    }

    pub(super) fn set_emptied(&mut self, wishes: u64) {
        self.empties_done = wishes;
    }

    pub(super) fn is_emptied(&self, wish: u64) -> bool {
        self.empties_done >= wish
    }
}

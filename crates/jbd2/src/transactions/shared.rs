//! State shared by the threads with handles and the committer.

use std::time::Duration;

use extant_space::{Error, ErrorKind, Result};

use super::handle::Handle;
use super::progress::Progress;
use super::slots::{Slots, Taken};
use super::{Client, Epoch, Statistics, TransactionId, TransactionOptions};
use crate::CommitTarget;
use crate::failure::Failure;
use crate::sync::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering, lock, lock_poisoned, wait};
use crossbeam_utils::CachePadded;

const FIRST: TransactionId = TransactionId(1);
const FIRST_EPOCH: Epoch = Epoch(1);

pub(super) struct Shared<C> {
    pub(super) target: CommitTarget,
    pub(super) client: C,
    pub(super) slots: Slots,
    pub(super) interval: Duration,
    /// The running transaction. Changed while no handle is open, so that an open handle knows it.
    running: CachePadded<AtomicU64>,
    /// The present epoch, likewise.
    epoch: CachePadded<AtomicU64>,
    /// The last transaction whose pool was found half used, so that this is reported once.
    half_used: AtomicU64,
    progress: Mutex<Progress>,
    /// Written by the committer alone. Taken with no other lock held.
    statistics: Mutex<Statistics>,
    /// A transaction was committed, an epoch made durable, the log emptied, the journal stopped.
    news: Condvar,
    /// A transaction began, or the journal stopped. Waiters for a commit sleep on.
    begun: Condvar,
    /// The committer has work.
    pub(super) work: Condvar,
}

impl<C: Client> Shared<C> {
    pub(super) fn new(target: CommitTarget, client: C, options: TransactionOptions) -> Self {
        Self {
            slots: Slots::new(
                options.slots,
                options.credits.unwrap_or(target.transaction_blocks_max()),
                target.failure(),
            ),
            target,
            client,
            interval: options.interval,
            running: CachePadded::new(AtomicU64::new(FIRST.0)),
            epoch: CachePadded::new(AtomicU64::new(FIRST_EPOCH.0)),
            half_used: AtomicU64::new(0),
            progress: Mutex::new(Progress::new(FIRST, FIRST_EPOCH)),
            statistics: Mutex::default(),
            news: Condvar::new(),
            begun: Condvar::new(),
            work: Condvar::new(),
        }
    }

    pub(super) fn running(&self) -> TransactionId {
        TransactionId(self.running.load(Ordering::Relaxed))
    }

    pub(super) fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::Relaxed))
    }

    /// Begins a new epoch, in `transaction`, while no handle is open; returns the one that ends.
    pub(super) fn begin_epoch(&self, transaction: TransactionId) -> Epoch {
        let ended = self.epoch();
        let next = Epoch(ended.0 + 1);
        self.running.store(transaction.0, Ordering::Relaxed);
        self.epoch.store(next.0, Ordering::Relaxed);
        {
            let mut progress = self.progress();
            progress.running = transaction;
            progress.epoch = next;
        }
        self.begun.notify_all();
        ended
    }

    /// The error that stopped the journal.
    pub(super) fn failure(&self) -> &Failure {
        &self.slots.failure
    }

    pub(super) fn progress(&self) -> MutexGuard<'_, Progress> {
        lock(&self.progress)
    }

    /// Changes the counters.
    pub(super) fn count(&self, change: impl FnOnce(&mut Statistics)) {
        change(&mut lock(&self.statistics));
    }

    pub(super) fn statistics(&self) -> Statistics {
        let counted = *lock(&self.statistics);
        let log = match &self.target {
            CommitTarget::Journal(journal) => Some(journal.log_use()),
            CommitTarget::InPlace(_) => None,
        };
        Statistics {
            blocks_max: self.slots.credits_max(),
            handles: self.slots.handles(),
            blocks_logged: log.map_or(0, |log| log.logged),
            log_blocks: log.map_or(0, |log| log.blocks),
            log_used: log.map_or(0, |log| log.used),
            ..counted
        }
    }

    /// Changes the progress and wakes all waiters.
    pub(super) fn update(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.progress());
        self.news.notify_all();
    }

    /// Wakes all waiters because the journal has stopped.
    pub(super) fn tell_stopped(&self) {
        // Under the lock, because a thread checks the journal under it before it waits.
        let _progress = lock_poisoned(&self.progress);
        self.news.notify_all();
        self.begun.notify_all();
    }

    /// Changes the pending work and wakes the commit thread.
    fn order<T>(&self, change: impl FnOnce(&mut Progress) -> T) -> T {
        let answer = change(&mut self.progress());
        self.work.notify_one();
        answer
    }

    pub(super) fn start(&self, credits: u32) -> Result<Handle<'_>> {
        if credits > self.slots.credits_max() {
            let most = self.slots.credits_max();
            return Err(Error::new(ErrorKind::InvalidArgument).detail(format!(
                "a handle of {credits} blocks, a transaction holds {most}"
            )));
        }
        let slot = self.slots.own();
        loop {
            let gate = slot.open();
            self.failure().check()?;
            if self.slots.refuses() {
                return Err(refused());
            }
            let transaction = self.running();
            match self.slots.take(slot, credits) {
                Taken::Yes => {}
                Taken::HalfUsed => self.note_half_used(transaction),
                Taken::No => {
                    drop(gate);
                    self.request(transaction);
                    self.wait_until(&self.begun, |progress| progress.running > transaction)?;
                    continue;
                }
            }
            slot.count_handle();
            let epoch = self.epoch();
            return Ok(Handle::new(
                &self.slots,
                slot,
                (transaction, epoch),
                credits,
                gate,
            ));
        }
    }

    /// Refuses handles; returns the last transaction that may have any.
    pub(super) fn refuse_handles(&self) -> TransactionId {
        self.slots.refuse();
        // Under this lock a next transaction begins, before its gates open.
        self.progress().running
    }

    fn note_half_used(&self, transaction: TransactionId) {
        if self.half_used.fetch_max(transaction.0, Ordering::Relaxed) < transaction.0 {
            self.request(transaction);
        }
    }

    pub(super) fn request(&self, transaction: TransactionId) {
        self.order(|progress| progress.request(transaction));
    }

    pub(super) fn request_sync(&self, epoch: Epoch) {
        self.order(|progress| progress.request_sync(epoch));
    }

    pub(super) fn last_durable(&self) -> Option<Epoch> {
        self.progress().last_durable()
    }

    pub(super) fn wait_durable(&self, epoch: Epoch) -> Result<()> {
        self.wait_until(&self.news, |progress| progress.is_durable(epoch))
    }

    pub(super) fn last_committed(&self) -> Option<TransactionId> {
        self.progress().last_committed()
    }

    pub(super) fn wait_committed(&self, transaction: TransactionId) -> Result<()> {
        self.wait_until(&self.news, |progress| progress.is_committed(transaction))
    }

    pub(super) fn empty(&self) -> Result<()> {
        let wish = self.order(Progress::want_empty);
        self.wait_until(&self.news, |progress| progress.is_emptied(wish))
    }

    pub(super) fn abort(&self, error: Error) {
        self.failure().set(error);
        // The commit thread finds the error, and informs the client.
        self.request(self.running());
        self.tell_stopped();
    }

    pub(super) fn stop(&self) {
        lock_poisoned(&self.progress).stop();
        self.work.notify_one();
    }

    /// Waits for the committer to get somewhere. Progress made before the stop counts.
    fn wait_until(&self, told: &Condvar, is_reached: impl Fn(&Progress) -> bool) -> Result<()> {
        let mut progress = self.progress();
        while !is_reached(&progress) {
            self.failure().check()?;
            progress = wait(told, progress);
        }
        Ok(())
    }
}

#[cold]
fn refused() -> Error {
    Error::new(ErrorKind::ReadOnly).detail("changes are no longer accepted")
}

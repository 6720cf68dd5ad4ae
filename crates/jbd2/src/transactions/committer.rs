//! The commit thread.
//!
//! Order of one commit:
//! 1. The barriers close, the client freezes, the next transaction begins, the barriers open.
//! 2. Ordered data is flushed, the log is written, the client is informed, the waiters continue.
//!
//! Between commits the thread checkpoints old transactions, in steps short enough not to delay the
//! next commit.
//!
//! A sync is the same with a fast commit in place of all that, if the client can describe its
//! changes. Both run on this thread, so that a fast commit is never written while the transaction
//! before its own is being written.
//!
//! A thread that panics while it has a handle open leaves a change half made: it stops the journal
//! before its barrier opens ([`Handle`](super::Handle)), and no transaction is frozen after that.
//!
//! An error ends the thread: the journal is stopped, and every present and later waiter gets the
//! error.

use std::time::Instant;

use extant_space::trace::{Level, Timer};
use extant_space::{Error, ErrorKind, Result, ended};

use super::progress::Work;
use super::shared::Shared;
use super::statistics::CommitTimes;
use super::{Client, Epoch, TransactionId};
use crate::sync::{Woken, wait_for};
use crate::{Checkpoint, FastCommitSpace, Frozen};

pub(super) fn run<C: Client>(shared: &Shared<C>) {
    let _end = End(shared);
    if let Err(error) = serve(shared) {
        // The journal has set its own error already; then that one is kept.
        let first = shared.failure().set(error);
        shared.client.aborted(first);
    }
}

/// Informs the waiters that the commit thread has ended, also after a panic of the client.
struct End<'s, C: Client>(&'s Shared<C>);

impl<C: Client> Drop for End<'_, C> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let detail = "the thread of the commits has panicked";
            let error = Error::new(ErrorKind::Io).detail(detail);
            let first = self.0.failure().set(error);
            self.0.client.aborted(first);
        }
        self.0.tell_stopped();
    }
}

fn serve<C: Client>(shared: &Shared<C>) -> Result<()> {
    let mut due = Instant::now() + shared.interval;
    loop {
        match next_work(shared, &mut due) {
            // The client may not have been notified of an abort.
            Work::Stop => return shared.failure().check(),
            Work::Commit => {
                commit(shared)?;
                due = Instant::now() + shared.interval;
            }
            Work::Sync => {
                if sync(shared)? == Synced::ByCommit {
                    due = Instant::now() + shared.interval;
                }
            }
            Work::Empty => {
                let wishes = shared.progress().empties_wanted();
                commit(shared)?;
                shared.target.empty()?;
                shared.update(|progress| progress.set_emptied(wishes));
            }
            Work::Checkpoint => {
                let more = shared.target.checkpoint()? == Checkpoint::More;
                shared.progress().wants_checkpoint = more;
            }
            Work::Wait => unreachable!("waited for"),
        }
    }
}

/// Waits for work: `due` is the time of the next periodic commit.
fn next_work<C: Client>(shared: &Shared<C>, due: &mut Instant) -> Work {
    let mut progress = shared.progress();
    loop {
        match progress.work() {
            Work::Wait => {}
            work => return work,
        }
        let left = due.saturating_duration_since(Instant::now());
        let woken;
        (progress, woken) = wait_for(&shared.work, progress, left);
        if woken == Woken::TimeOver {
            *due = Instant::now() + shared.interval;
            if shared.failure().get().is_some() {
                // A thread has panicked with a handle open.
                return Work::Stop;
            }
            if shared.slots.is_touched() {
                progress.request_overdue();
            }
        }
    }
}

/// Kind of commit that made an epoch durable.
#[derive(PartialEq, Eq)]
enum Synced {
    ByFastCommit,
    ByCommit,
}

fn sync<C: Client>(shared: &Shared<C>) -> Result<Synced> {
    let Some(space) = shared.target.fast_commit_space() else {
        commit(shared)?;
        return Ok(Synced::ByCommit);
    };
    let Some((epoch, bytes)) = freeze_fast(shared, &space) else {
        shared.count(|counters| counters.fast_commits_ineligible += 1);
        commit(shared)?;
        return Ok(Synced::ByCommit);
    };
    let timer = Timer::start(Level::DEBUG);
    let tid = timer.is_on().then(|| shared.target.next_tid());
    let written = shared.target.write_fast_commit(&bytes);
    ended!(
        timer,
        written,
        DEBUG,
        "commit",
        tid,
        kind = "fast",
        length_bytes = bytes.len()
    );
    written?;
    if !bytes.is_empty() {
        shared.count(|counters| {
            counters.fast_commits += 1;
            counters.fast_commit_blocks += bytes.len() as u64 / u64::from(space.block_bytes);
        });
    }
    shared.update(|progress| progress.set_durable(epoch));
    Ok(Synced::ByFastCommit)
}

/// Requests the changes of the present epoch from the client, and begins the next.
fn freeze_fast<C: Client>(shared: &Shared<C>, space: &FastCommitSpace) -> Option<(Epoch, Vec<u8>)> {
    let _gates = shared.slots.shut();
    // The commit that takes its place finds the error.
    shared.failure().check().ok()?;
    let transaction = shared.running();
    let bytes = shared.client.fast_commit(transaction, space)?;
    Some((shared.begin_epoch(transaction), bytes))
}

fn commit<C: Client>(shared: &Shared<C>) -> Result<()> {
    let timer = Timer::start(Level::DEBUG);
    let mut step = Instant::now();
    let mut elapsed = || {
        let now = Instant::now();
        now.duration_since(std::mem::replace(&mut step, now))
    };
    let (transaction, epoch, frozen) = freeze(shared)?;
    let tid = timer.is_on().then(|| shared.target.next_tid());
    let (locked, blocks, is_empty) = (elapsed(), frozen.blocks(), frozen.is_empty());
    let written = shared.client.write_data(transaction);
    let flushing = elapsed();
    let written = written.and_then(|()| shared.target.commit(frozen));
    let logging = elapsed();
    if !is_empty {
        ended!(
            timer,
            written,
            DEBUG,
            "commit",
            tid,
            kind = "full",
            blocks,
            freeze_us = locked.as_micros() as u64
        );
    }
    written?;
    if !is_empty {
        let requested = shared.progress().was_requested(transaction);
        let times = CommitTimes {
            blocks,
            locked,
            flushing,
            logging,
        };
        shared.count(|counters| counters.add(&times, requested));
    }
    shared.client.committed(transaction);
    shared.update(|progress| {
        progress.set_committed(transaction);
        progress.set_durable(epoch);
        progress.wants_checkpoint = true;
    });
    Ok(())
}

/// Ends the running transaction and begins the next, unless a change was left half made.
fn freeze<C: Client>(shared: &Shared<C>) -> Result<(TransactionId, Epoch, Frozen)> {
    let mut barrier = shared.slots.shut();
    shared.failure().check()?;
    let transaction = shared.running();
    let mut frozen = Frozen::new();
    shared.client.freeze(transaction, &mut frozen);
    barrier.renew();
    let epoch = shared.begin_epoch(TransactionId(transaction.0 + 1));
    Ok((transaction, epoch, frozen))
}

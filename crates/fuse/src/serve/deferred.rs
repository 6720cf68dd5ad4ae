//! Limit of background requests that wait in notifications, and the queue of deferred
//! notifications.
//!
//! Model: a notification that invalidates data waits for locked pages, which the reply to a READ or
//! WRITE unlocks. Asynchronous direct I/O, read-ahead and write-back are the kernel's background,
//! of which at most `BACKGROUND_MAX` requests are in flight. If all of those waited in
//! notifications, the READ that they wait for would never be sent. So a request waits in a
//! notification only with one of [`PERMITS`], which are fewer. A direct write without a permit is
//! answered at once; its notification is queued here and sent by a thread that serves no requests
//! (`WorkerPool::invalidate_written`).
//!
//! Invariant: queued ranges of a file are merged into one, so the queue is no longer than the list
//! of files.
//!
//! Lock: `state` is held briefly, and no other lock with it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::operations::NodeId;
use crate::protocol::connection::BACKGROUND_MAX;

/// Number of requests that may wait in notifications: half of the background.
const PERMITS: usize = BACKGROUND_MAX as usize / 2;

/// Permits, and the queue of deferred notifications.
#[derive(Debug)]
pub(crate) struct Deferred {
    state: Mutex<DeferredState>,
    freed: Condvar,
}

#[derive(Debug)]
struct DeferredState {
    permits: usize,
    queue: BTreeMap<NodeId, Range<u64>>,
    has_sender: bool,
}

/// Permits a request to wait in a notification until it is dropped.
#[derive(Debug)]
pub(crate) struct Permit<'a>(&'a Deferred);

/// The thread that sends queued notifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    /// A thread that runs already.
    Runs,
    /// One that the caller is to start.
    IsNeeded,
}

impl Default for Deferred {
    fn default() -> Self {
        Self {
            state: Mutex::new(DeferredState {
                permits: PERMITS,
                queue: BTreeMap::new(),
                has_sender: false,
            }),
            freed: Condvar::new(),
        }
    }
}

impl Deferred {
    /// A permit, if one is available within `timeout`.
    pub fn permit(&self, timeout: Duration) -> Option<Permit<'_>> {
        let mut state = self.state();
        self.freed
            .wait_while_for(&mut state, |state| state.permits == 0, timeout);
        state.permits = state.permits.checked_sub(1)?;
        Some(Permit(self))
    }

    /// Queues a notification about a range of bytes.
    pub fn queue(&self, node: NodeId, range: Range<u64>) -> Sender {
        let mut state = self.state();
        state
            .queue
            .entry(node)
            .and_modify(|queued| {
                *queued = queued.start.min(range.start)..queued.end.max(range.end);
            })
            .or_insert(range);
        if std::mem::replace(&mut state.has_sender, true) {
            Sender::Runs
        } else {
            Sender::IsNeeded
        }
    }

    /// The next notification for the sender. `None` ends the sender.
    pub fn next(&self) -> Option<(NodeId, Range<u64>)> {
        let mut state = self.state();
        let next = state.queue.pop_first();
        state.has_sender = next.is_some();
        next
    }

    /// The sender could not be started: the next queued notification starts one.
    pub fn no_sender(&self) {
        self.state().has_sender = false;
    }

    fn state(&self) -> MutexGuard<'_, DeferredState> {
        self.state.lock()
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.0.state().permits += 1;
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_fewer_than_the_background_and_are_returned() {
        let deferred = Deferred::default();
        let permit = || deferred.permit(Duration::ZERO);
        let permits: Vec<_> = std::iter::from_fn(permit).collect();
        assert!(!permits.is_empty() && permits.len() < usize::from(BACKGROUND_MAX));
        assert!(deferred.permit(Duration::from_millis(5)).is_none());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| deferred.permit(Duration::from_secs(30)).is_some());
            drop(permits);
            assert!(waiting.join().unwrap());
        });
        let permits: Vec<_> = std::iter::from_fn(permit).collect();
        assert_eq!(permits.len(), PERMITS);
    }

    #[test]
    fn queued_ranges_of_a_file_are_merged_and_one_sender_is_needed() {
        let deferred = Deferred::default();
        let (first, second) = (NodeId(7), NodeId(9));
        assert_eq!(deferred.queue(second, 5..6), Sender::IsNeeded);
        assert_eq!(deferred.queue(first, 4096..8192), Sender::Runs);
        assert_eq!(deferred.queue(first, 0..10), Sender::Runs);
        assert_eq!(deferred.next(), Some((first, 0..8192)));
        assert_eq!(deferred.queue(first, 1..2), Sender::Runs);
        assert_eq!(deferred.next(), Some((first, 1..2)));
        assert_eq!(deferred.next(), Some((second, 5..6)));
        assert_eq!(deferred.next(), None);
        assert_eq!(deferred.queue(first, 1..2), Sender::IsNeeded);
        deferred.no_sender();
        assert_eq!(deferred.queue(first, 1..2), Sender::IsNeeded);
    }
}

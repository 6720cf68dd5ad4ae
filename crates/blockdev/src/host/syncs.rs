//! Success of concurrent syncs.
//!
//! The kernel reports a failed write-back once for each open file: of two syncs that overlap, one
//! gets the error and the other one succeeds, though the lost data may be the data that it covers.
//! The same holds for durable writes through the page cache. So a success counts if all overlapping
//! calls have ended and none failed, and after a failure no call succeeds any more.
//!
//! A thread waits for others only when its batch has no call in flight: all that it waits for is in
//! the kernel, and reaped by threads that do not wait.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// The syncs and durable writes of one open file.
#[derive(Default)]
pub(super) struct Syncs {
    /// The first failure.
    failed: OnceLock<i32>,
    calls: Mutex<Calls>,
    ended: Condvar,
}

#[derive(Default)]
struct Calls {
    /// The number of the next one.
    next: u64,
    in_flight: BTreeSet<u64>,
}

/// A call between its submission and the note of its result.
pub(super) struct InFlight<'s> {
    syncs: &'s Syncs,
    number: u64,
}

/// A success that counts when all calls with a smaller number have ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Success(u64);

impl Syncs {
    /// Takes note of a call that is about to be made.
    pub(super) fn begin(&self) -> InFlight<'_> {
        let mut calls = self.calls();
        let number = calls.next;
        calls.next += 1;
        calls.in_flight.insert(number);
        InFlight {
            syncs: self,
            number,
        }
    }

    /// Records a failure; the first one is returned to all. To be called before the call's
    /// [`InFlight`] ends.
    pub(super) fn fail(&self, errno: i32) {
        let _ = self.failed.set(errno);
    }

    /// A success, with the overlapping calls. To be called when the call's own [`InFlight`] has
    /// ended.
    pub(super) fn success(&self) -> Success {
        Success(self.calls().next)
    }

    /// Whether all that overlapped has ended.
    pub(super) fn is_settled(&self, success: Success) -> bool {
        self.calls().is_settled(success)
    }

    /// Waits for all that overlapped.
    ///
    /// # Errors
    /// The errno of the first failure.
    pub(super) fn settle(&self, success: Success) -> Result<(), i32> {
        let mut calls = self.calls();
        while !calls.is_settled(success) {
            self.ended.wait(&mut calls);
        }
        drop(calls);
        self.failed.get().map_or(Ok(()), |errno| Err(*errno))
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock()
    }
}

impl Calls {
    fn is_settled(&self, success: Success) -> bool {
        self.in_flight
            .first()
            .is_none_or(|first| *first >= success.0)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.syncs.calls().in_flight.remove(&self.number);
        self.syncs.ended.notify_all();
    }
}

//! Which request a signal is for.
//!
//! Model: every thread has a slot with the number of the request that it is at. The kernel tells of a signal by that
//! number, to any thread. A request that is in no slot has been answered, or was read by a thread that has not
//! noted it yet; the two cannot be told apart, so the kernel is asked to repeat (`AGAIN`), which it does only in the second case.
//!
//! A slot is locked by its own thread twice for each request, and by others only when there was a signal, and for a look
//! now and then. So a signal never meets the next request of the same thread.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use extant_space::CancelToken;
use rustix::io::Errno;
use zerocopy::FromBytes;

use super::{Outcome, Server};
use crate::protocol::Body;

/// What a thread is at.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slot(Arc<Mutex<Current>>);

#[derive(Debug, Default)]
struct Current {
    /// The request's number; 0 between two of them.
    unique: u64,
    cancel: CancelToken,
}

/// What all threads are at.
#[derive(Debug, Default)]
pub(crate) struct Slots(Mutex<Vec<Weak<Mutex<Current>>>>);

/// Of `INTERRUPT`.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
struct InterruptIn {
    unique: u64,
}

impl Slot {
    /// The thread turns to a request.
    pub fn begin(&self, unique: u64) -> CancelToken {
        let mut current = lock(&self.0);
        current.unique = unique;
        current.cancel.clone()
    }

    /// It is done with it.
    pub fn end(&self, cancel: CancelToken) {
        let mut current = lock(&self.0);
        current.unique = 0;
        if cancel.is_cancelled() {
            current.cancel = CancelToken::new();
        }
    }
}

impl Slots {
    /// One more thread; its place goes with the slot.
    pub fn add(&self) -> Slot {
        let slot = Slot::default();
        let mut slots = lock(&self.0);
        slots.retain(|slot| slot.strong_count() > 0);
        slots.push(Arc::downgrade(&slot.0));
        slot
    }

    /// The requests of all threads; 0 for one that waits.
    pub fn current(&self) -> Vec<u64> {
        let slots = lock(&self.0);
        let slots = slots.iter().filter_map(Weak::upgrade);
        slots.map(|slot| lock(&slot).unique).collect()
    }

    /// Cancels a request; false when no thread is at it.
    fn cancel(&self, unique: u64) -> bool {
        let slots = lock(&self.0);
        slots.iter().filter_map(Weak::upgrade).any(|slot| {
            let current = lock(&slot);
            let is_it = current.unique == unique;
            if is_it {
                current.cancel.cancel();
            }
            is_it
        })
    }
}

impl Server {
    /// A caller was sent a signal.
    pub(super) fn interrupt(&self, mut body: Body<'_>) -> Outcome {
        match body.take::<InterruptIn>() {
            Err(malformed) => Outcome::Answer(Err(malformed.into())),
            Ok(interrupt) if self.slots.cancel(interrupt.unique) => Outcome::Silence,
            Ok(_) => {
                // The thread that has read the request is about to note it.
                std::thread::yield_now();
                Outcome::Answer(Err(Errno::AGAIN))
            }
        }
    }
}

/// Nothing is left half done under these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_meets_its_request_and_not_the_next_one_of_the_thread() {
        let slots = Slots::default();
        let (mine, other) = (slots.add(), slots.add());
        let first = mine.begin(4);
        let beside = other.begin(6);
        assert!(slots.cancel(4));
        assert!(first.is_cancelled() && !beside.is_cancelled());
        mine.end(first);
        assert!(!slots.cancel(4));
        let second = mine.begin(8);
        assert!(!second.is_cancelled());
        assert!(!slots.cancel(4));
        assert!(!second.is_cancelled());
    }

    #[test]
    fn slot_of_a_thread_that_ended_is_given_up() {
        let slots = Slots::default();
        for _ in 0..3 {
            drop(slots.add());
        }
        let _last = slots.add();
        assert_eq!(lock(&slots.0).len(), 1);
    }
}

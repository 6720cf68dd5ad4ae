//! Matching signals to requests.
//!
//! Model: every worker has a slot with the id of its current request. The kernel reports a signal
//! by that id, to any worker. A request that is in no slot has been answered, or was received by a
//! worker that has not recorded it yet. The two cannot be distinguished, so the id is kept for a
//! while, and compared when a request is recorded. Ids are unique.
//!
//! A slot is locked by its own worker twice per request, and by others only for a signal, and for a
//! periodic check. So a signal never affects the next request of the same worker.
//!
//! Locks: `early`, then the list of slots, then a slot.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use extant_space::CancelToken;
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

/// How many signals are kept whose requests are not known. Most of them have been answered.
const EARLY_MAX: usize = 256;

/// What all threads are at.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    /// Each with its lane.
    slots: Mutex<Vec<(usize, Weak<Mutex<Current>>)>>,
    /// Signalled requests that no worker has recorded yet.
    early: Mutex<VecDeque<u64>>,
    /// How many these are, for a look without the lock.
    early_count: AtomicUsize,
}

/// Of `INTERRUPT`.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
struct InterruptIn {
    unique: u64,
}

impl Slot {
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
    /// One more thread of a lane; its place goes with the slot.
    pub fn add(&self, lane: usize) -> Slot {
        let slot = Slot::default();
        let mut slots = lock(&self.slots);
        slots.retain(|(_, slot)| slot.strong_count() > 0);
        slots.push((lane, Arc::downgrade(&slot.0)));
        slot
    }

    /// The requests of all threads of a lane; 0 for one that waits.
    pub fn current(&self, lane: usize) -> Vec<u64> {
        let slots = lock(&self.slots);
        let slots = slots.iter().filter(|(its_lane, _)| *its_lane == lane);
        let slots = slots.filter_map(|(_, slot)| slot.upgrade());
        slots.map(|slot| lock(&slot).unique).collect()
    }

    /// A thread turns to a request.
    pub fn begin(&self, slot: &Slot, unique: u64) -> CancelToken {
        let cancel = {
            let mut current = lock(&slot.0);
            current.unique = unique;
            current.cancel.clone()
        };
        // A signal that did not find the number in the slot was noted before: the slot's lock is
        // between the two.
        if self.early_count.load(Ordering::Relaxed) > 0 && self.take_early(unique) {
            cancel.cancel();
        }
        cancel
    }

    /// Cancels a request, also one that is only about to be noted.
    fn cancel(&self, unique: u64) {
        let mut early = lock(&self.early);
        if early.len() == EARLY_MAX {
            early.pop_front();
        }
        early.push_back(unique);
        self.early_count.store(early.len(), Ordering::Relaxed);
        let slots = lock(&self.slots);
        let mut slots = slots.iter().filter_map(|(_, slot)| slot.upgrade());
        let is_found = slots.any(|slot| {
            let current = lock(&slot);
            let is_it = current.unique == unique;
            if is_it {
                current.cancel.cancel();
            }
            is_it
        });
        if is_found {
            early.pop_back();
            self.early_count.store(early.len(), Ordering::Relaxed);
        }
    }

    fn take_early(&self, unique: u64) -> bool {
        let mut early = lock(&self.early);
        let place = early.iter().position(|&number| number == unique);
        if let Some(place) = place {
            early.remove(place);
            self.early_count.store(early.len(), Ordering::Relaxed);
        }
        place.is_some()
    }
}

impl Server {
    /// A caller was sent a signal.
    pub(super) fn interrupt(&self, mut body: Body<'_>) -> Outcome {
        match body.take::<InterruptIn>() {
            Err(malformed) => Outcome::Reply(Err(malformed.into())),
            Ok(interrupt) => {
                self.slots.cancel(interrupt.unique);
                Outcome::NoReply
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
        let (mine, other) = (slots.add(0), slots.add(1));
        let first = slots.begin(&mine, 4);
        let beside = slots.begin(&other, 6);
        slots.cancel(4);
        assert!(first.is_cancelled() && !beside.is_cancelled());
        mine.end(first);
        slots.cancel(4);
        let second = slots.begin(&mine, 8);
        assert!(!second.is_cancelled());
        slots.cancel(4);
        assert!(!second.is_cancelled());
        assert_eq!((slots.current(0), slots.current(1)), (vec![8], vec![6]));
    }

    #[test]
    fn signal_that_is_faster_than_its_request_meets_it_once() {
        let slots = Slots::default();
        let slot = slots.add(0);
        for late in 0..2 * EARLY_MAX as u64 {
            slots.cancel(1000 + 2 * late);
        }
        slots.cancel(4);
        let token = slots.begin(&slot, 4);
        assert!(token.is_cancelled());
        slot.end(token);
        assert!(!slots.begin(&slot, 4).is_cancelled());
        assert_eq!(lock(&slots.early).len(), EARLY_MAX - 1);
    }

    #[test]
    fn slot_of_a_thread_that_ended_is_given_up() {
        let slots = Slots::default();
        for _ in 0..3 {
            drop(slots.add(0));
        }
        let _last = slots.add(0);
        assert_eq!(lock(&slots.slots).len(), 1);
    }
}

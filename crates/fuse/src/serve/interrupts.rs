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
use std::sync::{Arc, Weak};

use extant_space::CancelToken;
use parking_lot::Mutex;
use zerocopy::FromBytes;

use super::{Outcome, Server};
use crate::protocol::Body;

/// The current request of a worker.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slot(Arc<Mutex<Current>>);

#[derive(Debug, Default)]
struct Current {
    /// The request's id; 0 between requests.
    unique: u64,
    cancel: CancelToken,
}

/// Maximum number of signals kept for requests in no slot. Most of those have been answered.
const EARLY_MAX: usize = 256;

/// The slots of all workers.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    /// Each with the index of its queue.
    slots: Mutex<Vec<(usize, Weak<Mutex<Current>>)>>,
    /// Signalled requests that no worker has recorded yet.
    early: Mutex<VecDeque<u64>>,
    /// Length of `early`, to be checked without its lock.
    early_count: AtomicUsize,
}

/// The body of `INTERRUPT`.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
struct InterruptIn {
    unique: u64,
}

impl Slot {
    /// Ends the request that [`Slots::begin`] returned `cancel` for.
    pub fn end(&self, cancel: CancelToken) {
        let mut current = self.0.lock();
        current.unique = 0;
        if cancel.is_cancelled() {
            current.cancel = CancelToken::new();
        }
    }
}

impl Slots {
    /// Adds a worker of a queue until its slot is dropped.
    pub fn add(&self, queue: usize) -> Slot {
        let slot = Slot::default();
        let mut slots = self.slots.lock();
        slots.retain(|(_, slot)| slot.strong_count() > 0);
        slots.push((queue, Arc::downgrade(&slot.0)));
        slot
    }

    /// The current requests of a queue's workers; 0 for an idle worker.
    pub fn current(&self, queue: usize) -> Vec<u64> {
        let slots = self.slots.lock();
        let slots = slots.iter().filter(|(index, _)| *index == queue);
        let slots = slots.filter_map(|(_, slot)| slot.upgrade());
        slots.map(|slot| slot.lock().unique).collect()
    }

    /// Records the current request of a worker.
    pub fn begin(&self, slot: &Slot, unique: u64) -> CancelToken {
        let cancel = {
            let mut current = slot.0.lock();
            current.unique = unique;
            current.cancel.clone()
        };
        // A signal that did not find the id in the slot is in `early` already: the slot's lock
        // orders the two.
        if self.early_count.load(Ordering::Relaxed) > 0 && self.take_early(unique) {
            cancel.cancel();
        }
        cancel
    }

    /// Cancels a request, also one that is recorded later.
    fn cancel(&self, unique: u64) {
        let mut early = self.early.lock();
        if early.len() == EARLY_MAX {
            early.pop_front();
        }
        early.push_back(unique);
        self.early_count.store(early.len(), Ordering::Relaxed);
        let slots = self.slots.lock();
        let mut slots = slots.iter().filter_map(|(_, slot)| slot.upgrade());
        let is_found = slots.any(|slot| {
            let current = slot.lock();
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
        let mut early = self.early.lock();
        let index = early.iter().position(|&number| number == unique);
        if let Some(index) = index {
            early.remove(index);
            self.early_count.store(early.len(), Ordering::Relaxed);
        }
        index.is_some()
    }
}

impl Server {
    /// The kernel reports that a caller got a signal.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_cancels_its_request_and_not_the_next_one_of_the_worker() {
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
    fn signal_before_its_request_is_recorded_cancels_it_once() {
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
        assert_eq!(slots.early.lock().len(), EARLY_MAX - 1);
    }

    #[test]
    fn slot_of_a_worker_that_ended_is_removed() {
        let slots = Slots::default();
        for _ in 0..3 {
            drop(slots.add(0));
        }
        let _last = slots.add(0);
        assert_eq!(slots.slots.lock().len(), 1);
    }
}

//! Handles: the changes of one operation, wholly in one transaction.

use std::cell::Cell;

use extant_space::{Error, ErrorKind};

use super::slots::{Slot, Slots, Taken};
use super::{Epoch, TransactionId};
use crate::sync::RwLockReadGuard;

/// Whether a handle got more credits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Extension {
    /// It did.
    Granted,
    /// The transaction has fewer credits left. Close the handle, if its changes are consistent by
    /// themselves, and start another.
    Refused,
}

/// The right to change metadata in the running transaction. The change is over when it is dropped.
///
/// It belongs to the thread that started it. The transaction cannot be committed while it is open,
/// so keep it short: wait for nothing that another handle could hold up. Dropped by a panic, it
/// stops the journal: nothing of the transaction is committed.
pub struct Handle<'t> {
    slots: &'t Slots,
    slot: &'t Slot,
    transaction: TransactionId,
    epoch: Epoch,
    credits: Cell<u32>,
    joined: Cell<u32>,
    /// Dropped last.
    _gate: RwLockReadGuard<'t, ()>,
}

impl<'t> Handle<'t> {
    pub(super) fn new(
        slots: &'t Slots,
        slot: &'t Slot,
        (transaction, epoch): (TransactionId, Epoch),
        credits: u32,
        gate: RwLockReadGuard<'t, ()>,
    ) -> Self {
        open_handles::add(slots);
        Self {
            slots,
            slot,
            transaction,
            epoch,
            credits: Cell::new(credits),
            joined: Cell::new(0),
            _gate: gate,
        }
    }

    /// The transaction that it belongs to.
    pub fn transaction(&self) -> TransactionId {
        self.transaction
    }

    /// Epoch with which the changes of the handle become durable.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Says that `blocks` more blocks became part of the transaction, changed or revoked, which
    /// were not before.
    ///
    /// # Panics
    /// When these are more than the handle has credits for.
    pub fn joined(&self, blocks: u32) {
        let joined = self.joined.get().saturating_add(blocks);
        let credits = self.credits.get();
        assert!(
            joined <= credits,
            "{joined} blocks joined the transaction in a handle with {credits} credits"
        );
        self.joined.set(joined);
    }

    /// Credits that are left.
    pub fn credits(&self) -> u32 {
        self.credits.get() - self.joined.get()
    }

    /// Asks for more credits. Does not wait.
    pub fn extend(&self, credits: u32) -> Extension {
        match self.slots.take(self.slot, credits) {
            Taken::Yes | Taken::HalfUsed => {
                self.credits.set(self.credits.get() + credits);
                Extension::Granted
            }
            Taken::No => Extension::Refused,
        }
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        // While the gate is still open: its partial changes must not be frozen.
        if std::thread::panicking() {
            let detail = "a thread panicked while it changed the file system";
            self.slots
                .failure
                .set(Error::new(ErrorKind::Io).detail(detail));
        }
        self.slot.give_back(self.credits());
        open_handles::remove(self.slots);
    }
}

/// Notices a thread that would wait for itself.
///
/// # Panics
/// In debug builds, when the thread has a handle of these transactions open.
pub(super) fn assert_no_handle(slots: &Slots, what: &str) {
    open_handles::assert_none(slots, what);
}

#[cfg(debug_assertions)]
mod open_handles {
    use std::cell::RefCell;

    use super::Slots;
    use crate::sync::thread_local;

    thread_local! {
        /// Addresses of the journals that the thread has a handle of: journals may be nested in
        /// files of others.
        static OPEN: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    }

    fn address(slots: &Slots) -> usize {
        std::ptr::from_ref(slots).addr()
    }

    pub(super) fn add(slots: &Slots) {
        OPEN.with(|open| open.borrow_mut().push(address(slots)));
    }

    pub(super) fn remove(slots: &Slots) {
        OPEN.with(|open| open.borrow_mut().retain(|other| *other != address(slots)));
    }

    pub(super) fn assert_none(slots: &Slots, what: &str) {
        let is_open = OPEN.with(|open| open.borrow().contains(&address(slots)));
        assert!(!is_open, "{what} while the thread has a handle open");
    }
}

#[cfg(not(debug_assertions))]
mod open_handles {
    use super::Slots;

    pub(super) fn add(_: &Slots) {}
    pub(super) fn remove(_: &Slots) {}
    pub(super) fn assert_none(_: &Slots, _: &str) {}
}

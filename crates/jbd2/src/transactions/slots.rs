//! Barriers and credits, distributed over slots so that threads seldom contend.
//!
//! Model: a transaction has a maximum number of blocks. Its *pool* has the unclaimed ones; a slot
//! has a *lease* of some of them, from which its handles take their credits and to which they
//! return the unused ones. A block that became part of the transaction is never returned. A slot
//! whose lease is too small takes from the pool; when that is empty, all leases are returned to it
//! first.
//!
//! Invariant: pool, leases, credits of open handles and blocks of the transaction add up to
//! `credits_max`. It is checked when the barriers are closed ([`Slots::shut`]), where no handle has
//! any.

use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::failure::Failure;
use crate::sync::{AtomicBool, AtomicU64, Ordering, RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::sync::{read_poisoned, thread_number, write_poisoned};

/// Spread over more slots, a commit would wait longer for all slots than the threads gain.
const SLOTS_MAX: usize = 64;
/// A lease is this part of a slot's equal share of the pool.
const LEASE_SHARE: u64 = 8;

/// Slot: counts the handles of some threads.
pub(super) struct Slot {
    /// Shared by open handles; a commit takes it alone.
    gate: RwLock<()>,
    lease: AtomicU64,
    handles: AtomicU64,
}

pub(super) struct Slots {
    slots: Box<[CachePadded<Slot>]>,
    pool: CachePadded<AtomicU64>,
    credits_max: u32,
    /// Credits that a lease gets beyond the request.
    lease: u64,
    /// The error that stopped the journal, checked by every handle.
    pub(super) failure: Arc<Failure>,
    /// No handle is started, though the journal works.
    refuses: AtomicBool,
}

/// The pool after a withdrawal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// More than half.
    Yes,
    /// Less than half: the transaction should be committed.
    HalfUsed,
    /// Not enough; nothing was taken.
    No,
}

impl Slots {
    pub(super) fn new(count: Option<usize>, credits_max: u32, failure: Arc<Failure>) -> Self {
        let count = count.unwrap_or_else(|| {
            let processors = std::thread::available_parallelism().map_or(1, usize::from);
            (2 * processors).next_power_of_two()
        });
        let count = count.clamp(1, SLOTS_MAX);
        let slot = || {
            CachePadded::new(Slot {
                gate: RwLock::new(()),
                lease: AtomicU64::new(0),
                handles: AtomicU64::new(0),
            })
        };
        Self {
            slots: (0..count).map(|_| slot()).collect(),
            pool: CachePadded::new(AtomicU64::new(credits_max.into())),
            credits_max,
            lease: u64::from(credits_max) / (count as u64 * LEASE_SHARE),
            failure,
            refuses: AtomicBool::new(false),
        }
    }

    /// No handle is started from the next barrier on.
    pub(super) fn refuse(&self) {
        self.refuses.store(true, Ordering::Relaxed);
    }

    /// Asked with the slot's gate held: the barrier orders it with [`refuse`](Self::refuse).
    pub(super) fn refuses(&self) -> bool {
        self.refuses.load(Ordering::Relaxed)
    }

    pub(super) fn credits_max(&self) -> u32 {
        self.credits_max
    }

    /// The slot of the calling thread.
    pub(super) fn own(&self) -> &Slot {
        &self.slots[thread_number() % self.slots.len()]
    }

    /// Takes credits for a handle of `slot`, whose gate is open.
    pub(super) fn take(&self, slot: &Slot, credits: u32) -> Taken {
        let credits = u64::from(credits);
        if withdraw(&slot.lease, credits, credits).is_some() {
            return Taken::Yes;
        }
        let had = slot.lease.swap(0, Ordering::Relaxed);
        let lacking = credits.saturating_sub(had);
        let taken = withdraw(&self.pool, lacking, lacking + self.lease);
        let had = match taken {
            Some(taken) => had + taken,
            None => {
                self.pool.fetch_add(had, Ordering::Relaxed);
                for slot in &self.slots {
                    let lease = slot.lease.swap(0, Ordering::Relaxed);
                    self.pool.fetch_add(lease, Ordering::Relaxed);
                }
                match withdraw(&self.pool, credits, credits + self.lease) {
                    Some(taken) => taken,
                    None => return Taken::No,
                }
            }
        };
        slot.lease.fetch_add(had - credits, Ordering::Relaxed);
        if self.pool.load(Ordering::Relaxed) < u64::from(self.credits_max) / 2 {
            Taken::HalfUsed
        } else {
            Taken::Yes
        }
    }

    /// Handles that were opened.
    pub(super) fn handles(&self) -> u64 {
        let slots = self.slots.iter();
        slots.map(|slot| slot.handles.load(Ordering::Relaxed)).sum()
    }

    /// Whether the transaction may have changes.
    pub(super) fn is_touched(&self) -> bool {
        self.pool.load(Ordering::Relaxed) != u64::from(self.credits_max)
    }

    /// Waits until no handle is open, and blocks new ones.
    pub(super) fn shut(&self) -> HandleBarrier<'_> {
        let barrier = self
            .slots
            .iter()
            .map(|slot| write_poisoned(&slot.gate))
            .collect();
        HandleBarrier {
            slots: self,
            barrier,
        }
    }
}

impl Slot {
    /// Waits while the barrier stands.
    pub(super) fn open(&self) -> RwLockReadGuard<'_, ()> {
        // A panicked commit thread has stopped the journal, which is checked next.
        read_poisoned(&self.gate)
    }

    /// Counts a handle.
    pub(super) fn count_handle(&self) {
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes back credits that were not needed.
    pub(super) fn give_back(&self, credits: u32) {
        // Other slots may have none left; they find these here.
        self.lease.fetch_add(credits.into(), Ordering::Relaxed);
    }
}

/// The lock of every slot: no handle opens while it exists.
pub(super) struct HandleBarrier<'s> {
    slots: &'s Slots,
    barrier: Vec<RwLockWriteGuard<'s, ()>>,
}

impl HandleBarrier<'_> {
    /// Gives the next transaction all credits; returns how many blocks became part of this one.
    pub(super) fn renew(&mut self) -> u64 {
        let leases = self.slots.slots.iter();
        let leased: u64 = leases
            .map(|slot| slot.lease.swap(0, Ordering::Relaxed))
            .sum();
        let all = u64::from(self.slots.credits_max);
        let left = leased + self.slots.pool.swap(all, Ordering::Relaxed);
        debug_assert_eq!(self.barrier.len(), self.slots.slots.len());
        assert!(left <= all, "{left} credits left of {all}");
        all - left
    }
}

/// Takes `wanted` from an account, or its whole balance, but not less than `least`.
fn withdraw(account: &AtomicU64, least: u64, wanted: u64) -> Option<u64> {
    let mut taken = 0;
    let withdrawn = account.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |balance| {
        taken = balance.min(wanted);
        (taken >= least).then(|| balance - taken)
    });
    withdrawn.is_ok().then_some(taken)
}

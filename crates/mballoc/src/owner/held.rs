//! The lock of an owner, and what is told of it without the lock.
//!
//! An owner may hold its lock while a bitmap is read, and its thread may be put to sleep with it: who asks for
//! counters or for free space must not wait for that. So whoever lets go of the lock shows the numbers first.

use std::ops::{Deref, DerefMut};

use super::OwnerState;
use crate::counters::OwnerCounts;
use crate::sync::{AtomicU64, MutexGuard, Ordering};

/// Numbers of an owner as they were when its lock was last let go.
#[derive(Default)]
pub(super) struct Shown {
    blocks: AtomicU64,
    window_hits: AtomicU64,
    freed_blocks: AtomicU64,
    reused_blocks: AtomicU64,
    window_blocks: AtomicU64,
}

impl Shown {
    /// What the owner has counted and not handed on.
    pub(super) fn counts(&self) -> OwnerCounts {
        let value = |shown: &AtomicU64| shown.load(Ordering::Relaxed);
        OwnerCounts {
            blocks: value(&self.blocks),
            window_hits: value(&self.window_hits),
            freed_blocks: value(&self.freed_blocks),
            reused_blocks: value(&self.reused_blocks),
        }
    }

    /// Blocks in its windows.
    pub(super) fn window_blocks(&self) -> u64 {
        self.window_blocks.load(Ordering::Relaxed)
    }

    fn show(&self, state: &OwnerState) {
        let counts = &state.counts;
        self.blocks.store(counts.blocks, Ordering::Relaxed);
        self.window_hits
            .store(counts.window_hits, Ordering::Relaxed);
        self.freed_blocks
            .store(counts.freed_blocks, Ordering::Relaxed);
        self.reused_blocks
            .store(counts.reused_blocks, Ordering::Relaxed);
        let windows = state.windows.blocks();
        self.window_blocks.store(windows, Ordering::Relaxed);
    }
}

/// An owner's state, locked.
pub(super) struct Held<'a> {
    state: MutexGuard<'a, OwnerState>,
    shown: &'a Shown,
}

impl<'a> Held<'a> {
    pub(super) fn new(state: MutexGuard<'a, OwnerState>, shown: &'a Shown) -> Self {
        Self { state, shown }
    }
}

impl Deref for Held<'_> {
    type Target = OwnerState;

    fn deref(&self) -> &OwnerState {
        &self.state
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut OwnerState {
        &mut self.state
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.shown.show(&self.state);
    }
}

//! Modes of fallocate that a file has refused.

use std::sync::atomic::{AtomicU32, Ordering};

use extant_space::FallocateMode;

/// The modes that were answered with `Unsupported`, a bit each.
#[derive(Default)]
pub(super) struct Modes(AtomicU32);

impl Modes {
    pub(super) fn is_refused(&self, mode: FallocateMode) -> bool {
        self.0.load(Ordering::Relaxed) & bit(mode) != 0
    }

    pub(super) fn refuse(&self, mode: FallocateMode) {
        self.0.fetch_or(bit(mode), Ordering::Relaxed);
    }
}

fn bit(mode: FallocateMode) -> u32 {
    let place = FallocateMode::ALL.iter().position(|known| *known == mode);
    1 << place.expect("a mode of the list of all")
}

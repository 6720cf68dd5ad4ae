//! Which of the clusters that were kept for data got any: those that turned out to be zeros need none.

use std::sync::atomic::{AtomicU64, Ordering};

/// A bit for each cluster of a run of the file, set by several threads.
pub(crate) struct Occupied {
    start: u64,
    bits: Vec<AtomicU64>,
}

impl Occupied {
    /// None yet, of `count` clusters from `start` on.
    pub(crate) fn new(start: u64, count: u64) -> Self {
        let words = count.div_ceil(64);
        Self {
            start,
            bits: (0..words).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Something was written to `cluster`.
    pub(crate) fn set(&self, cluster: u64) {
        let index = cluster - self.start;
        // The threads that set bits are joined before anybody looks.
        self.bits[(index / 64) as usize].fetch_or(1 << (index % 64), Ordering::Relaxed);
    }

    pub(crate) fn holds(&self, cluster: u64) -> bool {
        let index = cluster - self.start;
        self.bits[(index / 64) as usize].load(Ordering::Relaxed) >> (index % 64) & 1 == 1
    }
}

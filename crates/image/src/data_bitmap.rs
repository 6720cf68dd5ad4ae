//! Data bitmap: which of the clusters allocated for data received any. Clusters of zeros need none;
//! over a backing file they need a zero entry.

use std::sync::atomic::{AtomicU64, Ordering};

/// Two bits for each cluster of a run of the file, set by several threads.
pub(crate) struct DataBitmap {
    start: u64,
    data: Vec<AtomicU64>,
    zeros: Vec<AtomicU64>,
}

impl DataBitmap {
    /// None yet, of `count` clusters from `start` on.
    pub(crate) fn new(start: u64, count: u64) -> Self {
        let words = count.div_ceil(64);
        let clear = || (0..words).map(|_| AtomicU64::new(0)).collect();
        Self {
            start,
            data: clear(),
            zeros: clear(),
        }
    }

    /// The guest's data is in `cluster`.
    pub(crate) fn set(&self, cluster: u64) {
        self.set_in(&self.data, cluster);
    }

    /// `cluster` is all zeros, and hides data below it.
    pub(crate) fn set_zero(&self, cluster: u64) {
        self.set_in(&self.zeros, cluster);
    }

    pub(crate) fn holds(&self, cluster: u64) -> bool {
        self.is_in(&self.data, cluster)
    }

    /// One past the last cluster with data, or the first of all.
    pub(crate) fn end(&self) -> u64 {
        let words = self.data.iter().enumerate();
        let last = words.rev().find_map(|(index, word)| {
            let last_bit = word.load(Ordering::Relaxed).checked_ilog2()?;
            Some(index as u64 * 64 + u64::from(last_bit))
        });
        self.start + last.map_or(0, |last| last + 1)
    }

    pub(crate) fn hides(&self, cluster: u64) -> bool {
        self.is_in(&self.zeros, cluster)
    }

    fn set_in(&self, bits: &[AtomicU64], cluster: u64) {
        let index = cluster - self.start;
        // The threads that set bits are joined before the bits are read.
        bits[(index / 64) as usize].fetch_or(1 << (index % 64), Ordering::Relaxed);
    }

    fn is_in(&self, bits: &[AtomicU64], cluster: u64) -> bool {
        let index = cluster - self.start;
        bits[(index / 64) as usize].load(Ordering::Relaxed) >> (index % 64) & 1 == 1
    }
}

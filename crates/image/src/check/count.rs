//! A count for each cluster of a file; memory is allocated only for counted regions.

use std::ops::Range;

/// Most clusters that are counted: at 2 bytes each, half of the memory that a check may use.
const CLUSTERS_MAX: u64 = 256 << 20;

/// Counts that end at 65,535.
pub(super) struct Counts(Vec<u16>);

impl Counts {
    /// For this number of clusters; `None` if it is too large.
    pub(super) fn new(clusters: u64) -> Option<Self> {
        // Zeroed memory is the kernel's until it is touched.
        (clusters <= CLUSTERS_MAX).then(|| Self(vec![0; clusters as usize]))
    }

    pub(super) fn len(&self) -> u64 {
        self.0.len() as u64
    }

    pub(super) fn get(&self, cluster: u64) -> u64 {
        self.0[cluster as usize].into()
    }

    pub(super) fn add(&mut self, cluster: u64, times: u16) {
        let count = &mut self.0[cluster as usize];
        *count = count.saturating_add(times);
    }

    /// The first cluster from `from` on that was counted, and how often.
    pub(super) fn next_nonzero(&self, from: u64) -> Option<(u64, u16)> {
        let rest = self.0.get(from as usize..)?;
        let found = rest.iter().position(|&count| count != 0)?;
        Some((from + found as u64, rest[found]))
    }

    /// One of these clusters was counted.
    pub(super) fn has_any(&self, clusters: Range<u64>) -> bool {
        let end = clusters.end.min(self.len());
        let counts = self.0.get(clusters.start as usize..end as usize);
        counts.is_some_and(|counts| counts.iter().any(|&count| count != 0))
    }

    /// Number of counted clusters.
    pub(super) fn nonzero(&self) -> u64 {
        self.0.iter().filter(|&&count| count != 0).count() as u64
    }
}

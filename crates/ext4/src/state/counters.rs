//! Counters of the engine since it was opened, and the allocator's policy.

use extant_mballoc::{self as mballoc, Policy, Windows};

use super::FsState;
use crate::cache::CacheStatistics;
use crate::options::{AllocatorPolicy, GroupScan, Reservation};

/// Counters of a file system since it was opened. Reading them costs more than counting: the
/// engine's threads count on cache lines of their own.
#[derive(Clone, Debug)]
pub struct Counters {
    /// The policy in force.
    pub policy: AllocatorPolicy,
    /// The allocator.
    pub allocator: mballoc::Statistics,
    /// Groups of the file system.
    pub groups: u32,
    /// The transactions; `None` when nothing is written.
    pub journal: Option<extant_jbd2::Statistics>,
    /// The cache of metadata blocks.
    pub cache: CacheStatistics,
}

impl FsState {
    pub(crate) fn counters(&self, journal: Option<extant_jbd2::Statistics>) -> Counters {
        Counters {
            policy: self.allocator_policy(),
            allocator: self.allocator.statistics(),
            groups: self.layout.groups(),
            journal,
            cache: self.cache.statistics(),
        }
    }

    pub(crate) fn allocator_policy(&self) -> AllocatorPolicy {
        AllocatorPolicy {
            scan: match self.allocator.policy() {
                Policy::Linear => GroupScan::Linear,
                _ => GroupScan::Optimised,
            },
            reservation: match self.allocator.windows() {
                Windows::Open => Reservation::Windows,
                Windows::Closed => Reservation::None,
            },
        }
    }

    pub(crate) fn set_allocator_policy(&self, policy: AllocatorPolicy) {
        self.allocator.set_policy(match policy.scan {
            GroupScan::Linear => Policy::Linear,
            GroupScan::Optimised => Policy::Optimised,
        });
        self.allocator.set_windows(match policy.reservation {
            Reservation::Windows => Windows::Open,
            Reservation::None => Windows::Closed,
        });
    }
}

//! `STATISTICS` and `ALLOCATOR`: the engine's counters since the mount, and its policy of searching
//! for blocks.
//!
//! Every user who has a file of the mount open may read, as in `/proc/fs/ext4`. Changes are for
//! root, and for the user who serves the mount.

use std::time::Duration;

use extant_ext4::{AllocatorPolicy, GroupScan, Reservation};
use rustix::io::Errno;
use rustix::process::geteuid;
use zerocopy::FromZeros;

use super::Volume;
use super::caller::is_privileged;
use crate::ioctl::{
    Allocator, AllocatorCounters, CacheCounters, JournalCounters, Statistics, statistics_flags,
};
use crate::options::AllocatorOptions;
use extant_fuse::operations::{Caller, Result};

impl Volume {
    pub(super) fn statistics_call(&self) -> Statistics {
        let counters = self.filesystem.counters();
        let all = &counters.allocator;
        let flag = |is_set: bool, flag: u64| if is_set { flag } else { 0 };
        let flags = flag(
            counters.policy.scan == GroupScan::Optimised,
            statistics_flags::OPTIMIZE_SCAN,
        ) | flag(
            counters.policy.reservation == Reservation::Windows,
            statistics_flags::RESERVATION,
        ) | flag(counters.journal.is_some(), statistics_flags::TRANSACTIONS);
        let (hits, scanned, passed) = (
            all.hits.to_array(),
            all.groups_scanned.to_array(),
            all.groups_passed.to_array(),
        );
        Statistics {
            flags,
            allocator: AllocatorCounters {
                reqs: all.requests,
                success: all.requests.saturating_sub(all.failures),
                allocated: all.blocks,
                hits,
                groups_considered: std::array::from_fn(|at| scanned[at] + passed[at]),
                groups_scanned: all.groups_scanned.total(),
                goal_hits: all.goal_hits,
                stream_goal_hits: all.stream_goal_hits,
                buddies_generated: all.groups_loaded,
                groups: counters.groups.into(),
                preallocated: all.window_blocks_added,
                discarded: all.window_blocks_released,
                preallocated_hits: all.window_hits,
                groups_busy: all.groups_busy,
                lock_waits: all.lock_waits,
                lock_wait_ns: all.lock_wait_nanos,
                freed: all.freed_blocks,
                reused: all.reused_blocks,
            },
            journal: match counters.journal {
                Some(journal) => JournalCounters {
                    transactions: journal.transactions,
                    requested: journal.requested,
                    blocks_max: journal.blocks_max.into(),
                    handles: journal.handles,
                    blocks: journal.blocks,
                    blocks_logged: journal.blocks_logged,
                    locked_ns: nanoseconds(journal.locked),
                    flushing_ns: nanoseconds(journal.flushing),
                    logging_ns: nanoseconds(journal.logging),
                    fc_commits: journal.fast_commits,
                    fc_ineligible: journal.fast_commits_ineligible,
                    fc_numblks: journal.fast_commit_blocks,
                    log_blocks: journal.log_blocks.into(),
                    log_used: journal.log_used.into(),
                },
                None => JournalCounters::new_zeroed(),
            },
            cache: CacheCounters {
                blocks: counters.cache.blocks,
                capacity: counters.cache.capacity_blocks,
                hits: counters.cache.hits,
                misses: counters.cache.misses,
            },
            reserved: [0; 11],
        }
    }

    /// Changes what the call names; returns the policy in force.
    pub(super) fn allocator_call(&self, caller: Caller, call: &Allocator) -> Result<Allocator> {
        let change = AllocatorOptions::from_call(call).ok_or(Errno::INVAL)?;
        if !change.is_empty() {
            if !is_privileged(caller) && caller.uid != geteuid().as_raw() {
                return Err(Errno::PERM);
            }
            let now = self.filesystem.allocator_policy();
            self.filesystem.set_allocator_policy(AllocatorPolicy {
                scan: change.scan.unwrap_or(now.scan),
                reservation: change.reservation.unwrap_or(now.reservation),
            });
        }
        let policy = self.filesystem.allocator_policy();
        Ok(AllocatorOptions::call_of(policy))
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

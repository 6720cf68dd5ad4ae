//! The counters of a mount, in the layout of `/proc/fs/ext4/*/mb_stats` and `/proc/fs/jbd2/*/info`.

use std::fmt::{Display, Write};
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use extant_space::{Error, ErrorKind, Result};
use extant_sys::mounted::{self, CRITERIA, statistics_flags};
use serde::Serialize;

/// Fields of the criteria, in the order that they are tried.
const CRITERION_NAMES: [&str; CRITERIA] = [
    "cr_p2_aligned_stats",
    "cr_goal_fast_stats",
    "cr_best_avail_stats",
    "cr_goal_slow_stats",
    "cr_any_free_stats",
];

#[derive(Debug, Serialize)]
pub(super) struct Counters {
    mountpoint: String,
    mb_optimize_scan: u8,
    reservation: bool,
    mballoc: Allocator,
    jbd2: Option<Journal>,
    cache: Cache,
}

#[derive(Debug, Serialize)]
struct Allocator {
    reqs: u64,
    success: u64,
    groups_scanned: u64,
    cr_p2_aligned_stats: Criterion,
    cr_goal_fast_stats: Criterion,
    cr_best_avail_stats: Criterion,
    cr_goal_slow_stats: Criterion,
    cr_any_free_stats: Criterion,
    goal_hits: u64,
    stream_goal_hits: u64,
    buddies_generated: u64,
    groups: u64,
    preallocated: u64,
    discarded: u64,
    preallocated_hits: u64,
    allocated: u64,
    freed: u64,
    reused: u64,
    groups_busy: u64,
    lock_waits: u64,
    lock_wait_seconds: f64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Criterion {
    hits: u64,
    groups_considered: u64,
}

#[derive(Debug, Serialize)]
struct Journal {
    transactions: u64,
    requested: u64,
    blocks_max: u64,
    handles: u64,
    blocks: u64,
    blocks_logged: u64,
    locked_seconds: f64,
    flushing_seconds: f64,
    logging_seconds: f64,
    fc_commits: u64,
    fc_ineligible: u64,
    fc_numblks: u64,
    log_blocks: u64,
    log_used_blocks: u64,
}

#[derive(Debug, Serialize)]
struct Cache {
    blocks: u64,
    capacity_blocks: u64,
    hits: u64,
    misses: u64,
}

impl Counters {
    /// Asks the mount that a directory is on.
    pub(super) fn of(directory: &Path) -> Result<Self> {
        let read = || {
            let file = File::open(directory)?;
            match mounted::probe(&file)? {
                Some(probe) if probe.version >= 2 => mounted::statistics(&file).map(Ok),
                Some(_) => Ok(Err("the server of this mount is older than this program")),
                None => Ok(Err("not on a mount of extant mount")),
            }
        };
        let at_place = |error: std::io::Error| Error::from(error).at(directory);
        match read().map_err(at_place)? {
            Ok(statistics) => Ok(Self::from_call(directory, &statistics)),
            Err(detail) => Err(Error::new(ErrorKind::Unsupported)
                .at(directory)
                .detail(detail)),
        }
    }

    fn from_call(directory: &Path, from: &mounted::Statistics) -> Self {
        let (all, journal, cache) = (&from.allocator, &from.journal, &from.cache);
        let has = |flag: u64| from.flags & flag != 0;
        let [p2_aligned, goal_fast, best_avail, goal_slow, any_free] =
            std::array::from_fn(|at| Criterion {
                hits: all.hits[at],
                groups_considered: all.groups_considered[at],
            });
        Self {
            mountpoint: directory.to_string_lossy().into_owned(),
            mb_optimize_scan: u8::from(has(statistics_flags::OPTIMIZE_SCAN)),
            reservation: has(statistics_flags::RESERVATION),
            mballoc: Allocator {
                reqs: all.reqs,
                success: all.success,
                groups_scanned: all.groups_scanned,
                cr_p2_aligned_stats: p2_aligned,
                cr_goal_fast_stats: goal_fast,
                cr_best_avail_stats: best_avail,
                cr_goal_slow_stats: goal_slow,
                cr_any_free_stats: any_free,
                goal_hits: all.goal_hits,
                stream_goal_hits: all.stream_goal_hits,
                buddies_generated: all.buddies_generated,
                groups: all.groups,
                preallocated: all.preallocated,
                discarded: all.discarded,
                preallocated_hits: all.preallocated_hits,
                allocated: all.allocated,
                freed: all.freed,
                reused: all.reused,
                groups_busy: all.groups_busy,
                lock_waits: all.lock_waits,
                lock_wait_seconds: seconds(all.lock_wait_ns),
            },
            jbd2: has(statistics_flags::TRANSACTIONS).then(|| Journal {
                transactions: journal.transactions,
                requested: journal.requested,
                blocks_max: journal.blocks_max,
                handles: journal.handles,
                blocks: journal.blocks,
                blocks_logged: journal.blocks_logged,
                locked_seconds: seconds(journal.locked_ns),
                flushing_seconds: seconds(journal.flushing_ns),
                logging_seconds: seconds(journal.logging_ns),
                fc_commits: journal.fc_commits,
                fc_ineligible: journal.fc_ineligible,
                fc_numblks: journal.fc_numblks,
                log_blocks: journal.log_blocks,
                log_used_blocks: journal.log_used,
            }),
            cache: Cache {
                blocks: cache.blocks,
                capacity_blocks: cache.capacity,
                hits: cache.hits,
                misses: cache.misses,
            },
        }
    }

    pub(super) fn describe(&self) -> String {
        let mut out = format!(
            "options: mb_optimize_scan={},{}\n",
            self.mb_optimize_scan,
            if self.reservation {
                "reservation"
            } else {
                "noreservation"
            }
        );
        self.mballoc.describe(&mut out);
        if let Some(journal) = &self.jbd2 {
            journal.describe(&mut out);
        }
        let Cache {
            blocks,
            capacity_blocks,
            hits,
            misses,
        } = self.cache;
        let _ = write!(
            out,
            "cache:\n\tblocks: {blocks}/{capacity_blocks}\n\thits: {hits}\n\tmisses: {misses}"
        );
        out
    }
}

impl Allocator {
    fn describe(&self, out: &mut String) {
        let _ = write!(
            out,
            "mballoc:\n\treqs: {}\n\tsuccess: {}\n\tgroups_scanned: {}\n",
            self.reqs, self.success, self.groups_scanned
        );
        let criteria = [
            self.cr_p2_aligned_stats,
            self.cr_goal_fast_stats,
            self.cr_best_avail_stats,
            self.cr_goal_slow_stats,
            self.cr_any_free_stats,
        ];
        for (name, criterion) in CRITERION_NAMES.into_iter().zip(criteria) {
            let Criterion {
                hits,
                groups_considered,
            } = criterion;
            let _ = writeln!(
                out,
                "\t{name}:\n\t\thits: {hits}\n\t\tgroups_considered: {groups_considered}"
            );
        }
        let buddies = format!("{}/{}", self.buddies_generated, self.groups);
        let mut field = |name: &str, value: &dyn Display| {
            let _ = writeln!(out, "\t{name}: {value}");
        };
        field("goal_hits", &self.goal_hits);
        field("stream_goal_hits", &self.stream_goal_hits);
        field("2^n_hits", &self.cr_p2_aligned_stats.hits);
        field("buddies_generated", &buddies);
        field("preallocated", &self.preallocated);
        field("discarded", &self.discarded);
        field("preallocated_hits", &self.preallocated_hits);
        field("allocated", &self.allocated);
        field("freed", &self.freed);
        field("reused", &self.reused);
        field("groups_busy", &self.groups_busy);
        field("lock_waits", &self.lock_waits);
        field("lock_wait_seconds", &self.lock_wait_seconds);
    }
}

impl Journal {
    fn describe(&self, out: &mut String) {
        let count = self.transactions.max(1);
        let average = |total: u64| total / count;
        let milliseconds = |total: f64| (total * 1e3 / count as f64) as u64;
        let whole = self.locked_seconds + self.flushing_seconds + self.logging_seconds;
        let _ = write!(
            out,
            "jbd2:\n\
             {} transactions ({} requested), each up to {} blocks\n\
             average:\n  \
             {}ms transaction was being locked\n  \
             {}ms flushing data (in ordered mode)\n  \
             {}ms logging transaction\n  \
             {}us average transaction commit time\n  \
             {} handles per transaction\n  \
             {} blocks per transaction\n  \
             {} logged blocks per transaction\n\
             log: {} of {} blocks used\n\
             fc stats:\n\
             {} commits\n\
             {} ineligible\n\
             {} numblks\n",
            self.transactions,
            self.requested,
            self.blocks_max,
            milliseconds(self.locked_seconds),
            milliseconds(self.flushing_seconds),
            milliseconds(self.logging_seconds),
            (whole * 1e6 / count as f64) as u64,
            average(self.handles),
            average(self.blocks),
            average(self.blocks_logged),
            self.log_used_blocks,
            self.log_blocks,
            self.fc_commits,
            self.fc_ineligible,
            self.fc_numblks,
        );
    }
}

fn seconds(nanoseconds: u64) -> f64 {
    Duration::from_nanos(nanoseconds).as_secs_f64()
}

//! The structures of `STATISTICS` and `ALLOCATOR`.
//!
//! Counters begin at 0 with the mount. Their names are those of `/proc/fs/ext4/*/mb_stats` and
//! `/proc/fs/jbd2/*/info` where the kernel has the counter. A later version uses `reserved`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The output of [`STATISTICS`](super::STATISTICS).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Statistics {
    /// Bits of [`statistics_flags`].
    pub flags: u64,
    /// The block allocator.
    pub allocator: AllocatorCounters,
    /// The transactions; zeros of a read-only mount.
    pub journal: JournalCounters,
    /// The cache of metadata blocks.
    pub cache: CacheCounters,
    /// Zeros.
    pub reserved: [u64; 11],
}

/// Bits of [`Statistics::flags`].
pub mod statistics_flags {
    /// The allocator finds groups by its index (`mb_optimize_scan=1`).
    pub const OPTIMIZE_SCAN: u64 = 1 << 0;
    /// Space is reserved behind files that grow (`reservation`).
    pub const RESERVATION: u64 = 1 << 1;
    /// The mount is writable, and has counters of transactions.
    pub const TRANSACTIONS: u64 = 1 << 2;
}

/// Criteria of the allocator's search, in order: `cr_p2_aligned`, `cr_goal_fast`, `cr_best_avail`,
/// `cr_goal_slow`, `cr_any_free`.
pub const CRITERIA: usize = 5;

/// Counters of the block allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AllocatorCounters {
    /// Requests.
    pub reqs: u64,
    /// Those that got blocks.
    pub success: u64,
    /// Blocks that they got.
    pub allocated: u64,
    /// Requests served by each criterion.
    pub hits: [u64; CRITERIA],
    /// Groups that each criterion scanned, and with the linear scan those that it passed over.
    pub groups_considered: [u64; CRITERIA],
    /// Groups that were scanned.
    pub groups_scanned: u64,
    /// Requests served at their goal.
    pub goal_hits: u64,
    /// Requests served in the group of their stream goal.
    pub stream_goal_hits: u64,
    /// Groups whose bitmap was read and indexed.
    pub buddies_generated: u64,
    /// Groups of the file system.
    pub groups: u64,
    /// Blocks that were reserved behind files that grow.
    pub preallocated: u64,
    /// Reserved blocks that were freed without having been used.
    pub discarded: u64,
    /// Requests served from reserved blocks, without access to a group.
    pub preallocated_hits: u64,
    /// Groups skipped because another thread held their lock.
    pub groups_busy: u64,
    /// Contended lock acquisitions.
    pub lock_waits: u64,
    /// Nanoseconds spent waiting for them.
    pub lock_wait_ns: u64,
    /// Blocks freed.
    pub freed: u64,
    /// Of these, blocks that the transaction that allocated them freed.
    pub reused: u64,
}

/// Counters of the transactions since the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct JournalCounters {
    /// Committed transactions.
    pub transactions: u64,
    /// Of these, those whose commit was requested before their interval was over.
    pub requested: u64,
    /// Maximum number of blocks of a transaction.
    pub blocks_max: u64,
    /// Handles.
    pub handles: u64,
    /// Blocks of all transactions.
    pub blocks: u64,
    /// Blocks of the log that they took.
    pub blocks_logged: u64,
    /// Nanoseconds in which the transactions were being locked.
    pub locked_ns: u64,
    /// Nanoseconds of flushing data.
    pub flushing_ns: u64,
    /// Nanoseconds of logging.
    pub logging_ns: u64,
    /// Fast commits.
    pub fc_commits: u64,
    /// Syncs that needed a full commit where fast commits are on.
    pub fc_ineligible: u64,
    /// Blocks of fast commits.
    pub fc_numblks: u64,
    /// Blocks of the log.
    pub log_blocks: u64,
    /// Of these, blocks of transactions that are not checkpointed.
    pub log_used: u64,
}

/// Counters of the cache of metadata blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CacheCounters {
    /// Blocks in the cache.
    pub blocks: u64,
    /// Blocks that it keeps at most, apart from those in use.
    pub capacity: u64,
    /// Accesses to a block that was in the cache.
    pub hits: u64,
    /// Accesses to a block that was read.
    pub misses: u64,
}

/// [`ALLOCATOR`](super::ALLOCATOR).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Allocator {
    /// In: bits of [`allocator_bits`] for the fields that are set; 0 only reads.
    pub set: u32,
    /// In and out: 0 or 1.
    pub mb_optimize_scan: u32,
    /// In and out: 0 or 1.
    pub reservation: u32,
    /// Zero.
    pub reserved: u32,
}

/// Bits of [`Allocator::set`].
pub mod allocator_bits {
    /// `mb_optimize_scan`.
    pub const OPTIMIZE_SCAN: u32 = 1 << 0;
    /// `reservation`.
    pub const RESERVATION: u32 = 1 << 1;
}

const _: () = {
    assert!(size_of::<Statistics>() == 448);
    assert!(size_of::<Allocator>() == 16);
};

//! Counters of the transactions, with the names of `/proc/fs/jbd2/*/info` and of
//! `/proc/fs/ext4/*/fc_info`.
//!
//! The commit thread counts, once for each commit, and each slot counts the handles of its threads:
//! no cache line is written by every thread.

use std::time::Duration;

/// Counters since the journal was opened. Transactions that changed nothing are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Committed transactions.
    pub transactions: u64,
    /// Of these, those whose commit was requested: by a sync, or for lack of credits. The others
    /// were committed because the interval was over.
    pub requested: u64,
    /// Maximum number of blocks of a transaction.
    pub blocks_max: u32,
    /// Handles.
    pub handles: u64,
    /// Metadata blocks of all transactions.
    pub blocks: u64,
    /// Blocks of the log that they were written to, with descriptors, revokes and commit blocks.
    /// 0 without a journal.
    pub blocks_logged: u64,
    /// Time from the decision to commit until all handles were closed and the blocks collected.
    pub locked: Duration,
    /// Time of flushing the data of ordered files.
    pub flushing: Duration,
    /// Time of writing the transactions to the log.
    pub logging: Duration,
    /// Fast commits.
    pub fast_commits: u64,
    /// Their blocks.
    pub fast_commit_blocks: u64,
    /// Syncs that committed the transaction because a fast commit could not describe the changes.
    pub fast_commits_ineligible: u64,
    /// Blocks of the log. 0 without a journal.
    pub log_blocks: u32,
    /// Of these, blocks of transactions that are not checkpointed.
    pub log_used: u32,
}

impl Statistics {
    /// Adds a committed transaction.
    pub(super) fn add(&mut self, commit: &CommitTimes, requested: bool) {
        self.transactions += 1;
        self.requested += u64::from(requested);
        self.blocks += commit.blocks;
        self.locked += commit.locked;
        self.flushing += commit.flushing;
        self.logging += commit.logging;
    }
}

/// One commit.
pub(super) struct CommitTimes {
    pub(super) blocks: u64,
    pub(super) locked: Duration,
    pub(super) flushing: Duration,
    pub(super) logging: Duration,
}

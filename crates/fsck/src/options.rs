//! The options of a check.

/// Options of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckOptions {
    /// Findings that are kept with their text; more are counted only.
    pub findings_max: usize,
    /// Whether copies of the superblock are compared. e2fsck does not.
    pub backups: Backups,
    /// Whether the totals in the superblock are compared.
    pub totals: Totals,
    /// State of the device with respect to the journal.
    pub journal: JournalState,
}

/// Treatment of the copies of the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backups {
    /// They must be whole and describe this file system.
    Compare,
    /// They are not read.
    Ignore,
}

/// Treatment of the free blocks and inodes that the superblock counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Totals {
    /// They must be right, as after a clean unmount.
    Compare,
    /// They may be old: Linux writes them at unmount only.
    Ignore,
}

/// Whether the device shows the state after recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalState {
    /// Transactions that are not checkpointed are not seen.
    NotReplayed,
    /// The caller has replayed the journal, on the device or in memory.
    Replayed,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self {
            findings_max: 1000,
            backups: Backups::Compare,
            totals: Totals::Compare,
            journal: JournalState::NotReplayed,
        }
    }
}

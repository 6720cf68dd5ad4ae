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

impl Default for CheckOptions {
    fn default() -> Self {
        Self {
            findings_max: 1000,
            backups: Backups::Compare,
            totals: Totals::Compare,
        }
    }
}

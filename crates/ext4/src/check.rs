//! The consistency check: read-only verification of a file system.
//!
//! It checks what `e2fsck -fn` checks, in the same order: superblock and descriptors, then all
//! inodes with their blocks, directories, connections, link counts, and finally the bitmaps. Blocks
//! that the journal has not checkpointed are not seen: the caller passes the device as it is after
//! recovery.
//!
//! Memory: one bit for each block of a group in use, 16 bytes for each inode in use, about 130 for
//! each directory and for each group, 16 for each entry of one directory at a time. The run time
//! depends on what is in use: tables and bitmaps that were never written are not read.
//!
//! A defect is a [`Finding`], never an error. Errors are read errors, unknown features, and a
//! cancel. Orphans are no findings: the next mount processes them (e2fsck reports them as errors if
//! it may not clear them).
//!
//! Format: docs/formats/ext4.md.

mod attributes;
mod bitmaps;
mod claims;
mod connections;
mod directories;
mod file_blocks;
mod findings;
mod hash_tree;
mod inodes;
mod journal;
mod mapping;
mod names;
mod orphans;
mod report;
mod resize;
mod states;
mod superblock;
mod types;
mod volume;

use std::collections::{BTreeMap, BTreeSet};

use extant_blockdev::Device;
use extant_ondisk::ext4::{GroupNumber, InodeNumber, Superblock};
use extant_space::{Control, Phase, Result};

pub use findings::{Finding, FindingKind, Place};
pub use report::{Counts, Coverage, Report};

use attributes::Shared;
use claims::Claims;
use directories::Directory;
use findings::Findings;
use states::States;
use volume::Volume;

/// What a check is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckOptions {
    /// Findings that are kept with their words; more are counted only.
    pub findings_max: usize,
    /// Whether copies of the superblock are compared. e2fsck does not.
    pub backups: Backups,
    /// Whether the totals in the superblock are compared.
    pub totals: Totals,
}

/// What to do with the copies of the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backups {
    /// They must be whole and describe this file system.
    Compare,
    /// They are not read.
    Ignore,
}

/// What to do with the free blocks and inodes that the superblock counts.
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

/// Checks the file system on `device`. Progress counts bytes of the file system once for
/// each of the three passes over it.
///
/// # Errors
/// `Unsupported` with the names of features that are not known, `Cancelled`, and what reading
/// the device says.
pub fn check(device: &dyn Device, options: &CheckOptions, control: Control<'_>) -> Result<Report> {
    let mut findings = Findings::new(options.findings_max);
    let Some(superblock) = superblock::open(device, &mut findings)? else {
        let (findings, findings_by_kind) = findings.into_parts();
        return Ok(Report {
            findings,
            findings_by_kind,
            coverage: Coverage::Superblock,
            needs_recovery: false,
            orphans: 0,
            counts: Counts::default(),
        });
    };
    let mut check = Check::new(device, superblock, findings, control);
    check.refuse_foreign_journal()?;
    check.check_journal_names();
    check.read_groups()?;
    check.check_superblock(options.backups)?;
    check.read_orphans()?;
    check.scan_inodes()?;
    check.check_orphans();
    check.check_journal_is_there();
    check.check_resize_inode_is_there();
    check.check_directories()?;
    check.check_connections();
    check.check_links();
    check.check_attribute_references();
    check.check_bitmaps(options.totals)?;
    Ok(check.into_report())
}

/// A check on its way.
struct Check<'a> {
    volume: Volume<'a>,
    findings: Findings,
    claims: Claims,
    states: States,
    shared: Shared,
    orphans: BTreeSet<InodeNumber>,
    directories: Vec<Directory>,
    /// What directories without blocks hold (`inline_data`).
    inline_directories: BTreeMap<InodeNumber, Vec<u8>>,
    counts: Counts,
    /// Blocks of directories that may still be read a second time because they have two owners.
    reread_left: u64,
    control: Control<'a>,
}

/// The passes over the whole file system.
#[derive(Clone, Copy)]
enum Step {
    Inodes,
    Directories,
    Bitmaps,
}

impl<'a> Check<'a> {
    fn new(
        device: &'a dyn Device,
        superblock: Superblock,
        findings: Findings,
        control: Control<'a>,
    ) -> Self {
        Self {
            findings,
            claims: Claims::new(superblock.layout()),
            states: States::new(superblock.layout()),
            shared: Shared::default(),
            orphans: BTreeSet::new(),
            directories: Vec::new(),
            inline_directories: BTreeMap::new(),
            counts: Counts::default(),
            reread_left: superblock.layout().blocks(),
            volume: Volume::new(device, superblock, control.cancel),
            control,
        }
    }

    /// Reports that a pass has reached `group`, and returns an error after a cancel.
    fn advance(&self, step: Step, group: GroupNumber) -> Result<()> {
        self.control.cancel.check()?;
        let layout = self.volume.layout();
        let whole = layout.blocks() << layout.block_bits();
        let done = layout.first_block(group).0 << layout.block_bits();
        let before = whole * step as u64;
        self.control.report(Phase::Verify, before + done, whole * 3);
        Ok(())
    }

    fn into_report(self) -> Report {
        let needs_recovery = self.needs_recovery();
        let (findings, findings_by_kind) = self.findings.into_parts();
        Report {
            findings,
            findings_by_kind,
            coverage: Coverage::Whole,
            needs_recovery,
            orphans: self.orphans.len() as u64,
            counts: self.counts,
        }
    }
}

//! The consistency check of ext4: read-only verification of a file system.
#![doc = include_str!("../README.md")]
//!
//! It makes the checks of `e2fsck -fn`, in the same order: superblock and descriptors, then all
//! inodes with their blocks, directories, connections, link counts, and finally the bitmaps. Blocks
//! that the journal has not checkpointed are not seen: the caller passes the device in its state
//! after recovery.
//!
//! Memory: one bit for each block of a group in use, 16 bytes for each inode in use, about 130 for
//! each directory and for each group, 16 for each entry of one directory at a time. The run time
//! depends on the space in use: tables and bitmaps that were never written are not read.
//!
//! A defect is a [`Finding`], never an error. Errors are read errors, unknown features, and a
//! cancel. Orphans are no findings: the next mount processes them (e2fsck reports them as errors if
//! it may not clear them).
//!
//! Format: docs/formats/ext4.md.
//!
//! Module layers, lowest first:
//!
//! 1. `findings`, `options`, `shared_attributes`, `states`, `volume`: values; the device
//! 2. `claims`, `mapping`, `report`: owners of blocks, block maps, the result
//! 3. `directory`, `file_blocks`: the scan's record of a file
//! 4. `checker`: the state that the passes share
//! 5. `attributes`, `block_count`, `hash_tree`, `journal`, `names`, `types`: parts of an inode
//! 6. `directories`, `orphans`, `resize`: whole files
//! 7. `bitmaps`, `connections`, `inodes`, `superblock`: passes over the file system

#![forbid(unsafe_code)]

mod attributes;
mod bitmaps;
mod block_count;
mod checker;
mod claims;
mod connections;
mod directories;
mod directory;
mod file_blocks;
mod findings;
mod hash_tree;
mod inodes;
mod journal;
mod mapping;
mod names;
mod options;
mod orphans;
mod report;
mod resize;
mod shared_attributes;
mod states;
mod superblock;
mod types;
mod volume;

use extant_blockdev::Device;
use extant_space::{Control, Result};

pub use findings::{Finding, FindingKind, Location};
pub use options::{Backups, CheckOptions, JournalState, Totals};
pub use report::{Counts, Coverage, Report};

use checker::Check;
use findings::Findings;

/// Checks the file system on `device`. Progress counts bytes of the file system once for
/// each of the three passes over it.
///
/// # Errors
/// `Unsupported` with the names of unknown features, `Cancelled`, and errors of reading the device.
pub fn check(device: &dyn Device, options: &CheckOptions, control: Control<'_>) -> Result<Report> {
    let mut findings = Findings::new(options.findings_max);
    let Some(superblock) = superblock::open(device, &mut findings)? else {
        let (findings, findings_by_kind) = findings.into_parts();
        return Ok(Report {
            findings,
            findings_by_kind,
            coverage: Coverage::Superblock,
            needs_recovery: false,
            journal_replayed: options.journal == JournalState::Replayed,
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
    Ok(check.into_report(options.journal))
}

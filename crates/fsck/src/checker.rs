//! The state that the passes of a check share.
//!
//! The scan of the inodes fills `states` and `directories` in the order of inode numbers; the later
//! passes read them and add their findings.

use std::collections::{BTreeMap, BTreeSet};

use extant_blockdev::Device;
use extant_ondisk::ext4::{GroupNumber, InodeNumber, Superblock};
use extant_space::{Control, Phase, Result};

use crate::claims::Claims;
use crate::directory::Directory;
use crate::findings::Findings;
use crate::options::JournalState;
use crate::report::{Counts, Coverage, Report};
use crate::shared_attributes::Shared;
use crate::states::InodeStates;
use crate::volume::Volume;

/// A running check.
pub(crate) struct Check<'a> {
    pub(crate) volume: Volume<'a>,
    pub(crate) findings: Findings,
    pub(crate) claims: Claims,
    pub(crate) states: InodeStates,
    pub(crate) shared: Shared,
    pub(crate) orphans: BTreeSet<InodeNumber>,
    pub(crate) directories: Vec<Directory>,
    /// Contents of directories without blocks (`inline_data`).
    pub(crate) inline_directories: BTreeMap<InodeNumber, Vec<u8>>,
    pub(crate) counts: Counts,
    /// Blocks of directories that may still be read a second time because they have two owners.
    pub(crate) reread_left: u64,
    pub(crate) control: Control<'a>,
}

/// The passes over the whole file system.
#[derive(Clone, Copy)]
pub(crate) enum Step {
    Inodes,
    Directories,
    Bitmaps,
}

impl<'a> Check<'a> {
    pub(crate) fn new(
        device: &'a dyn Device,
        superblock: Superblock,
        findings: Findings,
        control: Control<'a>,
    ) -> Self {
        Self {
            findings,
            claims: Claims::new(superblock.layout()),
            states: InodeStates::new(superblock.layout()),
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
    pub(crate) fn advance(&self, step: Step, group: GroupNumber) -> Result<()> {
        self.control.cancel.check()?;
        let layout = self.volume.layout();
        let whole = layout.blocks() << layout.block_bits();
        let done = layout.first_block(group).0 << layout.block_bits();
        let before = whole * step as u64;
        self.control.report(Phase::Verify, before + done, whole * 3);
        Ok(())
    }

    pub(crate) fn into_report(self, journal: JournalState) -> Report {
        let needs_recovery = self.volume.needs_recovery();
        let (findings, findings_by_kind) = self.findings.into_parts();
        Report {
            findings,
            findings_by_kind,
            coverage: Coverage::Whole,
            needs_recovery,
            journal_replayed: journal == JournalState::Replayed,
            orphans: self.orphans.len() as u64,
            counts: self.counts,
        }
    }

    /// The place of a directory among [`Check::directories`], which the scan left sorted.
    pub(crate) fn directory_index(&self, number: InodeNumber) -> Option<usize> {
        self.directories
            .binary_search_by_key(&number, |directory| directory.number)
            .ok()
    }
}

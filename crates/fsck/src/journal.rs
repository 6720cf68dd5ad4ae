//! The journal as a file: complete, and of the length in its superblock. Its content is left to
//! recovery.

use extant_ondisk::ext4::superblock::JournalPlace;
use extant_ondisk::ext4::{Incompat, InodeNumber};
use extant_ondisk::jbd2::JournalSuperblock;
use extant_space::{Error, ErrorKind, Result};

use crate::checker::Check;
use crate::findings::{FindingKind, Location};
use crate::mapping::Run;
use crate::states::InodeUse;

impl Check<'_> {
    /// The journal's inode, where the journal is in the file system.
    pub(crate) fn journal_inode(&self) -> Option<InodeNumber> {
        match self.volume.superblock().journal()? {
            JournalPlace::Inode(number) => Some(number),
            JournalPlace::Device { .. } => None,
        }
    }

    /// Refuses a journal that cannot be checked.
    pub(crate) fn refuse_foreign_journal(&self) -> Result<()> {
        match self.volume.superblock().journal() {
            Some(JournalPlace::Device { .. }) => Err(Error::new(ErrorKind::Unsupported)
                .detail("superblock: the journal is on another device")
                .advice("check it with e2fsck")),
            _ => Ok(()),
        }
    }

    /// Searches for references to a journal where there must be none.
    pub(crate) fn check_journal_names(&mut self) {
        let superblock = self.volume.superblock();
        let raw = superblock.raw();
        let has_inode = superblock.journal().is_some();
        for (is_wrong, field) in [
            (
                raw.s_journal_inum.get() != 0 && !has_inode,
                "s_journal_inum",
            ),
            (raw.s_journal_dev.get() != 0, "s_journal_dev"),
            (raw.s_journal_uuid != [0; 16], "s_journal_uuid"),
        ] {
            if is_wrong {
                let words = format_args!("{field} names a journal that is not there");
                self.findings
                    .add(FindingKind::Journal, Location::default(), words);
            }
        }
    }

    /// Validates the journal in `runs`.
    pub(crate) fn check_journal(&mut self, number: InodeNumber, runs: &[Run]) -> Result<()> {
        let place = Location::inode(number);
        let Some(first) = runs.first().filter(|run| run.logical == 0) else {
            let words = "a journal without a first block";
            self.findings.add(FindingKind::Journal, place, words);
            return Ok(());
        };
        let place = place.in_block(first.physical);
        let bytes = self.volume.block(first.physical)?;
        let journal = match JournalSuperblock::parse(&bytes) {
            Ok(journal) => journal,
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                self.findings.add(FindingKind::Journal, place, error);
                return Ok(());
            }
            Err(error) => return Err(error.advice("check it with e2fsck")),
        };
        let mut add = |words: String| {
            self.findings
                .add(FindingKind::Journal, place.clone(), words);
        };
        let (block, expected) = (
            journal.format().block_bytes,
            self.volume.layout().block_bytes(),
        );
        if block != expected {
            add(format!(
                "s_blocksize of the journal is {block}, not {expected}"
            ));
        }
        let mut end = 0;
        for run in runs {
            if run.logical > end {
                break;
            }
            end = run.logical + run.blocks;
        }
        let blocks = journal.blocks();
        if end < blocks.into() {
            add(format!(
                "s_maxlen of the journal is {blocks}, and block {end} is not there"
            ));
        }
        let users = journal.raw().s_nr_users.get();
        if users > 1 {
            add(format!(
                "s_nr_users is {users}, of which one can be in here"
            ));
        }
        let features = self.volume.superblock().features();
        if journal.start().is_some() && !features.incompat.contains(Incompat::RECOVER) {
            add("the journal holds transactions without needs_recovery".into());
        }
        Ok(())
    }

    /// After the scan: the journal must be there.
    pub(crate) fn check_journal_is_there(&mut self) {
        if let Some(number) = self.journal_inode()
            && self.states.usage(number) != InodeUse::Own
        {
            let words = "the inode of the journal is not in use";
            self.findings
                .add(FindingKind::Journal, Location::inode(number), words);
        }
    }
}

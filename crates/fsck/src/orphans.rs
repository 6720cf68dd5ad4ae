//! Orphans: files that are cleared or cut at the next mount, because they had no name or were
//! being cut when the machine stopped.
//!
//! They are read before the inodes, as the rules for them are others. They are no findings:
//! the next mount handles them.

use extant_ondisk::ext4::orphan::{self, FILE_BLOCKS_MAX};
use extant_ondisk::ext4::{Compat, InodeNumber, PhysicalBlock};
use extant_space::{Error, Result};

use crate::checker::Check;
use crate::findings::{FindingKind, Location};
use crate::mapping::{NodeAction, Run, Visitor, walk};
use crate::states::InodeUse;

impl Check<'_> {
    /// Reads list and file.
    pub(crate) fn read_orphans(&mut self) -> Result<()> {
        self.read_orphan_list()?;
        let superblock = self.volume.superblock();
        if !superblock.features().compat.contains(Compat::ORPHAN_FILE) {
            if superblock.raw().s_orphan_file_inum.get() != 0 {
                let words = "s_orphan_file_inum is not 0 without orphan_file";
                self.orphan_finding(Location::default(), words);
            }
            return Ok(());
        }
        match superblock.orphan_file() {
            Some(number) => self.read_orphan_file(number),
            None => {
                self.orphan_finding(Location::default(), "s_orphan_file_inum is 0");
                Ok(())
            }
        }
    }

    fn read_orphan_list(&mut self) -> Result<()> {
        let mut next = self.volume.superblock().last_orphan();
        while let Some(number) = next {
            if !self.orphans.insert(number) {
                self.orphan_finding(Location::inode(number), "twice in the list of orphans");
                break;
            }
            let Some(inode) = self.volume.inode(number)? else {
                break;
            };
            next = InodeNumber::new(inode.deletion_word());
        }
        Ok(())
    }

    fn read_orphan_file(&mut self, number: InodeNumber) -> Result<()> {
        let Some(inode) = self.volume.inode(number)? else {
            // The scan says that it is missing.
            return Ok(());
        };
        let mut file = OrphanFile::default();
        walk(&self.volume, number, &inode, &mut file)?;
        let layout = *self.volume.layout();
        let seed = self.volume.seed().map(|seed| inode.seed(seed, number));
        let size = inode.size_bytes(&layout);
        let place = Location::inode(number);
        if file.blocks << layout.block_bits() != size || file.blocks > FILE_BLOCKS_MAX {
            let words = format_args!("{} blocks for an orphan file of {size} bytes", file.blocks);
            self.findings.add(FindingKind::Orphan, place, words);
            return Ok(());
        }
        for block in file
            .runs
            .iter()
            .flat_map(|run| run.physical.0..run.physical.0 + run.blocks)
        {
            let block = PhysicalBlock(block);
            let bytes = self.volume.block(block)?;
            let place = place.clone().in_block(block);
            if let Err(error) = orphan::verify(&bytes, block, seed) {
                self.findings.add(FindingKind::Orphan, place, error);
                continue;
            }
            for orphan in orphan::orphans(&bytes, &layout) {
                match orphan {
                    Ok((_, orphan)) => self.add_orphan_of_file(orphan, &place),
                    Err(error) => self.findings.add(FindingKind::Orphan, place.clone(), error),
                }
            }
        }
        Ok(())
    }

    fn add_orphan_of_file(&mut self, orphan: InodeNumber, place: &Location) {
        if !self.volume.superblock().has_orphans_in_file() {
            let words = format_args!("names inode {orphan} without orphan_present");
            self.findings.add(FindingKind::Orphan, place.clone(), words);
        }
        if !self.orphans.insert(orphan) {
            let words = format_args!("names inode {orphan} a second time");
            self.findings.add(FindingKind::Orphan, place.clone(), words);
        }
    }

    /// After the scan: an orphan must be a file, and the file for them must be there.
    pub(crate) fn check_orphans(&mut self) {
        let lost: Vec<_> = self
            .orphans
            .iter()
            .copied()
            .filter(|&number| self.states.usage(number) != InodeUse::Orphan)
            .collect();
        for number in lost {
            self.orphan_finding(Location::inode(number), "an orphan that is no file");
        }
        if let Some(number) = self.volume.superblock().orphan_file()
            && self.states.usage(number) != InodeUse::Own
        {
            self.orphan_finding(Location::inode(number), "the orphan file is not in use");
        }
    }

    fn orphan_finding(&mut self, place: Location, words: &str) {
        self.findings.add(FindingKind::Orphan, place, words);
    }
}

/// The blocks of the orphan file, before anything is claimed.
#[derive(Default)]
struct OrphanFile {
    runs: Vec<Run>,
    blocks: u64,
    nodes: u64,
}

impl Visitor for OrphanFile {
    fn node(&mut self, _: PhysicalBlock) -> NodeAction {
        // A tree of nodes that name each other would not end.
        self.nodes += 1;
        if self.nodes <= FILE_BLOCKS_MAX && self.blocks <= FILE_BLOCKS_MAX {
            NodeAction::Enter
        } else {
            NodeAction::Skip
        }
    }

    fn run(&mut self, run: Run) {
        self.blocks += run.blocks;
        if self.blocks <= FILE_BLOCKS_MAX {
            self.runs.push(run);
        }
    }

    /// The scan finds it again, and reports it.
    fn fault(&mut self, _: Option<PhysicalBlock>, _: Error) {}
}

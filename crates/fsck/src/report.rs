//! The report of a check: findings and totals.
//!
//! Counts follow `e2fsck -v`, so that the two can be compared.

use std::collections::BTreeMap;
use std::fmt;

use extant_ondisk::ext4::inode::FileType;
use serde::Serialize;

use crate::findings::{Finding, FindingKind};
use crate::options::CheckOptions;

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The first findings, as many as the options keep.
    pub findings: Vec<Finding>,
    /// All findings, by kind.
    pub findings_by_kind: BTreeMap<FindingKind, u64>,
    /// How much of the file system was checked.
    pub coverage: Coverage,
    /// The journal holds transactions that are not checkpointed yet. Unless they were replayed,
    /// they may repair the findings: check the file system in its state after recovery.
    pub needs_recovery: bool,
    /// The device was checked in its state after recovery:
    /// [`Replayed`](crate::JournalState::Replayed).
    pub journal_replayed: bool,
    /// Inodes that are cleared or cut at the next mount. They are not findings.
    pub orphans: u64,
    /// Counts of files, blocks and extents.
    pub counts: Counts,
}

/// How much of a file system was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Coverage {
    /// All of it.
    Whole,
    /// The superblock, which is wrong.
    Superblock,
}

/// Contents of a file system. Files of the file system itself (journal, orphan file) are not among
/// the files, but their blocks, inodes and extents are counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Blocks in use, also those for metadata, of `blocks_total`.
    pub blocks_used: u64,
    /// Blocks of the file system.
    pub blocks_total: u64,
    /// Inodes in use, also reserved ones, of `inodes_total`.
    pub inodes_used: u64,
    /// Inodes of the file system.
    pub inodes_total: u64,
    /// Regular files.
    pub regular_files: u64,
    /// Directories.
    pub directories: u64,
    /// Character devices.
    pub character_devices: u64,
    /// Block devices.
    pub block_devices: u64,
    /// Named pipes.
    pub fifos: u64,
    /// Sockets.
    pub sockets: u64,
    /// Symbolic links.
    pub symbolic_links: u64,
    /// Symbolic links whose target is kept in the inode.
    pub fast_symbolic_links: u64,
    /// Names of files that have more than one.
    pub links: u64,
    /// Extents, or runs of consecutive blocks, of all files.
    pub extents: u64,
    /// Files and directories with fewer blocks than a group whose blocks are not consecutive.
    pub non_contiguous_files: u64,
    /// Directories among them.
    pub non_contiguous_directories: u64,
    /// Inodes with an extent tree of each depth.
    pub trees_by_depth: [u64; 6],
    /// Inodes with a single, double, triple indirect block.
    pub indirect_blocks: [u64; 3],
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.findings_by_kind.is_empty()
    }

    /// Number of findings.
    pub fn findings_total(&self) -> u64 {
        self.findings_by_kind.values().sum()
    }

    /// Adds a finding of the caller, before the others. Its text is kept if the limit of `options`
    /// leaves room.
    pub fn add_first(&mut self, finding: Finding, options: &CheckOptions) {
        *self.findings_by_kind.entry(finding.kind).or_default() += 1;
        self.findings.insert(0, finding);
        self.findings.truncate(options.findings_max);
    }
}

impl Counts {
    pub(crate) fn add_file(&mut self, kind: FileType) {
        *match kind {
            FileType::Regular => &mut self.regular_files,
            FileType::Directory => &mut self.directories,
            FileType::CharacterDevice => &mut self.character_devices,
            FileType::BlockDevice => &mut self.block_devices,
            FileType::Fifo => &mut self.fifos,
            FileType::Socket => &mut self.sockets,
            FileType::SymbolicLink => &mut self.symbolic_links,
        } += 1;
    }
}

impl fmt::Display for Report {
    /// A line for each kept finding, then a summary.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            writeln!(f, "{finding}")?;
        }
        let total = self.findings_total();
        let left_out = total - self.findings.len() as u64;
        if left_out > 0 {
            writeln!(f, "and {left_out} more")?;
        }
        match (self.needs_recovery, self.journal_replayed) {
            (false, _) => {}
            (true, false) => writeln!(f, "the journal was not replayed")?,
            (true, true) => writeln!(f, "the journal was replayed in memory")?,
        }
        match (total, self.coverage) {
            (_, Coverage::Superblock) => return write!(f, "the check ended with the superblock"),
            (0, _) => write!(f, "clean")?,
            (1, _) => write!(f, "1 finding")?,
            _ => write!(f, "{total} findings")?,
        }
        let counts = &self.counts;
        write!(
            f,
            ": {} of {} inodes, {} of {} blocks",
            counts.inodes_used, counts.inodes_total, counts.blocks_used, counts.blocks_total
        )
    }
}

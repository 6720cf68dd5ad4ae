//! Walk over the block map of one file: claims, counts, the end of the file.

use extant_ondisk::ext4::extent::ExtentKind;
use extant_ondisk::ext4::inode::InodeFlags;
use extant_ondisk::ext4::layout::Mapping;
use extant_ondisk::ext4::{Inode, InodeNumber, PhysicalBlock};
use extant_space::Error;

use crate::claims::Claims;
use crate::findings::{FindingKind, Findings, Location};
use crate::mapping::{NodeAction, Run, Visitor};

/// Whether runs are needed after the walk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// All of them, joined where they can be.
    Runs,
    /// None.
    Nothing,
}

/// Claims the blocks of a file.
pub(crate) struct FileBlocks<'c> {
    place: Location,
    mapping: Mapping,
    claims: &'c mut Claims,
    findings: &'c mut Findings,
    reread_left: &'c mut u64,
    pub(crate) keep: Keep,
    /// Files may have data blocks in common (`shared_blocks`).
    pub(crate) shares_data: bool,
    /// The last run, to see whether the next one continues it.
    last: Option<Run>,
    /// The last block on the device, also of the map itself where that is block by block.
    before: Option<PhysicalBlock>,
    summary: Summary,
}

/// Results of the walk.
#[derive(Default)]
pub(crate) struct Summary {
    /// Blocks of data and of the map.
    pub(crate) blocks: u64,
    /// Extents of a tree; else runs of consecutive blocks.
    pub(crate) extents: u64,
    /// Whether a block does not follow the one before it.
    pub(crate) is_scattered: bool,
    /// The last block in the file that there is.
    pub(crate) last: Option<u64>,
    /// The last one that holds data.
    pub(crate) last_written: Option<u64>,
    /// The runs, if they are kept.
    pub(crate) runs: Vec<Run>,
}

impl<'c> FileBlocks<'c> {
    pub(crate) fn new(
        number: InodeNumber,
        inode: &Inode,
        claims: &'c mut Claims,
        findings: &'c mut Findings,
        reread_left: &'c mut u64,
    ) -> Self {
        Self {
            place: Location::inode(number),
            mapping: if inode.flags().contains(InodeFlags::EXTENTS) {
                Mapping::Extents
            } else {
                Mapping::Blocks
            },
            claims,
            findings,
            reread_left,
            keep: Keep::Nothing,
            shares_data: false,
            last: None,
            before: None,
            summary: Summary::default(),
        }
    }

    pub(crate) fn into_summary(self) -> Summary {
        self.summary
    }

    fn follow(&mut self, first: PhysicalBlock, blocks: u64) {
        if self.before.is_some_and(|before| before.0 + 1 != first.0) {
            self.summary.is_scattered = true;
        }
        self.before = Some(PhysicalBlock(first.0 + blocks - 1));
    }
}

impl Visitor for FileBlocks<'_> {
    fn node(&mut self, block: PhysicalBlock) -> NodeAction {
        self.summary.blocks += 1;
        if self.mapping == Mapping::Blocks {
            self.follow(block, 1);
        }
        let place = self.place.clone();
        if self
            .claims
            .claim_for("a block of its map", block, 1, place, self.findings)
        {
            NodeAction::Enter
        } else {
            // Entered before, or about to be read as something that it is not.
            NodeAction::Skip
        }
    }

    fn run(&mut self, run: Run) {
        let place = self.place.clone();
        let is_free = if self.shares_data {
            self.claims.claim(run.physical, run.blocks).is_none()
        } else {
            self.claims
                .claim_for("its data", run.physical, run.blocks, place, self.findings)
        };
        // Blocks of two owners are read for both, but not for any number of them.
        let left = if is_free {
            Some(*self.reread_left)
        } else {
            self.reread_left.checked_sub(run.blocks)
        };
        *self.reread_left = left.unwrap_or(0);
        self.follow(run.physical, run.blocks);
        let summary = &mut self.summary;
        summary.blocks += run.blocks;
        let last = run.logical + run.blocks - 1;
        summary.last = summary.last.max(Some(last));
        if run.kind == ExtentKind::Written {
            summary.last_written = summary.last_written.max(Some(last));
        }
        let continues = self.last.is_some_and(|before| {
            before.logical + before.blocks == run.logical
                && before.physical.0 + before.blocks == run.physical.0
                && before.kind == run.kind
        });
        self.last = Some(run);
        summary.extents += u64::from(!continues || self.mapping == Mapping::Extents);
        match (self.keep, summary.runs.last_mut()) {
            (Keep::Nothing, _) => {}
            (Keep::Runs, _) if left.is_none() => {}
            (Keep::Runs, Some(before)) if continues => before.blocks += run.blocks,
            (Keep::Runs, _) => summary.runs.push(run),
        }
    }

    fn fault(&mut self, block: Option<PhysicalBlock>, error: Error) {
        let place = self.place.clone().in_block(block);
        self.findings.add(FindingKind::Mapping, place, error);
    }
}

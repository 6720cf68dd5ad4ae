//! `i_blocks`, compared with the blocks that the inode maps.

use extant_ondisk::ext4::{Inode, InodeNumber};

use crate::checker::Check;
use crate::findings::{FindingKind, Location};

impl Check<'_> {
    /// Compares `i_blocks` with `blocks`, the number of blocks found.
    pub(crate) fn check_block_count(&mut self, number: InodeNumber, inode: &Inode, blocks: u64) {
        let layout = self.volume.layout();
        let expected = blocks << (layout.block_bits() - 9);
        let stored = inode.sectors(layout);
        if stored != expected {
            let words = format_args!("i_blocks is {stored}, not {expected}");
            self.findings
                .add(FindingKind::BlockCount, Location::inode(number), words);
        }
    }
}

//! The inode that reserves blocks for a longer descriptor table (`resize_inode`).
//!
//! Model: its double indirect block names, at the position of a descriptor block, each reserved
//! block after the table; that block itself names its copies in the groups with a superblock. So
//! all of them but the double indirect block are among the fixed blocks of groups.

use extant_ondisk::ext4::{
    Compat, GroupNumber, Incompat, Inode, InodeNumber, PhysicalBlock, block_map,
};
use extant_space::Result;

use crate::checker::Check;
use crate::findings::{FindingKind, Location};
use crate::states::InodeUse;

/// The double indirect block's place in `i_block`.
const DOUBLE: u32 = 13;
const NUMBERS: u32 = 15;

/// Kind of an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Right,
    Wrong,
}

impl Check<'_> {
    /// Whether there is one. With `meta_bg`, there are no reserved descriptor blocks.
    pub(crate) fn has_resize_inode(&self) -> bool {
        let features = self.volume.superblock().features();
        features.compat.contains(Compat::RESIZE_INODE)
            && !features.incompat.contains(Incompat::META_BG)
    }

    /// After the scan: the inode must be there.
    pub(crate) fn check_resize_inode_is_there(&mut self) {
        if self.has_resize_inode() && self.states.usage(InodeNumber::RESIZE) != InodeUse::Own {
            let place = Location::inode(InodeNumber::RESIZE);
            let words = "the inode is not in use";
            self.findings.add(FindingKind::ResizeInode, place, words);
        }
    }

    /// Validates the inode.
    pub(crate) fn check_resize_inode(&mut self, inode: &Inode) -> Result<()> {
        let layout = *self.volume.layout();
        let place = Location::inode(InodeNumber::RESIZE);
        let numbers = inode.block_area();
        let is_alone = (0..NUMBERS)
            .filter(|&index| index != DOUBLE)
            .all(|index| matches!(block_map::entry(numbers, index, &layout), Ok(None)));
        let double = match block_map::entry(numbers, DOUBLE, &layout) {
            Ok(Some(block)) if is_alone => block,
            _ => {
                let words = "names other blocks than a double indirect one";
                self.findings.add(FindingKind::ResizeInode, place, words);
                return Ok(());
            }
        };
        let owner = "its double indirect block";
        self.claims
            .claim_for(owner, double, 1, place.clone(), &mut self.findings);
        let mut blocks = 1;
        let reserved = u32::from(layout.reserved_descriptor_blocks());
        let table = self.volume.block(double)?;
        let per_block = layout.block_bytes() / 4;
        let first = layout.descriptor_block(0).0 + u64::from(layout.descriptor_blocks());
        let groups: Vec<_> = layout.superblock_backups().collect();
        for at in 0..per_block {
            let index = (at + per_block - layout.descriptor_blocks() % per_block) % per_block;
            let expected = (index < reserved).then(|| PhysicalBlock(first + u64::from(index)));
            let found = block_map::entry(&table, at, &layout);
            let _ = self.check_reserved(double, at, found, expected);
            if let Some(expected) = expected {
                blocks += 1 + self.check_copies(expected, &groups)?;
            }
        }
        self.check_block_count(InodeNumber::RESIZE, inode, blocks);
        Ok(())
    }

    /// The copies of a reserved block, which it names one after the other: one in each of
    /// `groups`. Only the first that is wrong is a finding. Gives their number.
    fn check_copies(&mut self, reserved: PhysicalBlock, groups: &[GroupNumber]) -> Result<u64> {
        let layout = *self.volume.layout();
        let copies = self.volume.block(reserved)?;
        let per_block = layout.block_bytes() / 4;
        for at in 0..per_block {
            let expected = groups.get(at as usize).map(|group| {
                let offset = u64::from(group.0) * u64::from(layout.blocks_per_group());
                PhysicalBlock(reserved.0 + offset)
            });
            let found = block_map::entry(&copies, at, &layout);
            if self.check_reserved(reserved, at, found, expected) == Verdict::Wrong {
                break;
            }
        }
        Ok(groups.len().min(per_block as usize) as u64)
    }

    /// Compares entry `at` of a block with the expected block.
    fn check_reserved(
        &mut self,
        block: PhysicalBlock,
        at: u32,
        found: Result<Option<PhysicalBlock>>,
        expected: Option<PhysicalBlock>,
    ) -> Verdict {
        if found.is_ok_and(|found| found == expected) {
            return Verdict::Right;
        }
        let place = Location::inode(InodeNumber::RESIZE).in_block(block);
        let words = match expected {
            Some(expected) => format!("entry {at} does not name block {expected}"),
            None => format!("entry {at} names a block that is not reserved"),
        };
        self.findings.add(FindingKind::ResizeInode, place, words);
        Verdict::Wrong
    }
}

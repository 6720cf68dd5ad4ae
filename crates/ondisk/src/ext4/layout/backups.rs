//! Groups with copies of the superblock and of the descriptor table, and their places.

use super::{DescriptorPlace, Layout};
use crate::ext4::{Compat, GroupNumber, Incompat, PhysicalBlock, RoCompat};
use crate::narrow::low32;

impl Layout {
    /// Whether `group` begins with a superblock.
    ///
    /// # Panics
    /// When there is no such group.
    pub fn has_superblock(&self, group: GroupNumber) -> bool {
        self.assert_group(group);
        let number = group.0;
        if number == 0 {
            return true;
        }
        if self.features.compat.contains(Compat::SPARSE_SUPER2) {
            return self.backup_groups.contains(&number);
        }
        if !self.features.ro_compat.contains(RoCompat::SPARSE_SUPER) {
            return true;
        }
        [3, 5, 7].into_iter().any(|base| is_power(number, base))
    }

    /// The block with the superblock of `group`; in block 0 it begins at byte 1024, in
    /// others at byte 0.
    ///
    /// # Panics
    /// When there is no such group.
    pub fn superblock_block(&self, group: GroupNumber) -> Option<PhysicalBlock> {
        self.has_superblock(group).then(|| self.table_base(group))
    }

    /// Blocks at the start of `group` that hold a superblock, descriptors and blocks
    /// reserved for them.
    ///
    /// # Panics
    /// When there is no such group.
    pub fn fixed_blocks(&self, group: GroupNumber) -> u32 {
        let superblock = u32::from(self.has_superblock(group));
        if superblock == 0 && !self.features.incompat.contains(Incompat::META_BG) {
            return 0;
        }
        let end = self.table_base(group).0 - self.first_block(group).0;
        if !self.is_in_meta_group(group) {
            let table = self.table_blocks() + u32::from(self.reserved_descriptor_blocks);
            return superblock * (low32(end) + 1 + table);
        }
        let index = group.0 / self.descriptors_per_block();
        let table = u32::from(self.descriptor_block_groups(index).any(|at| at == group));
        match superblock + table {
            0 => 0,
            some => low32(end) + some,
        }
    }

    /// The block of the descriptor table that is block `index` of it, as it is used.
    ///
    /// # Panics
    /// When the table is not that long.
    pub fn descriptor_block(&self, index: u32) -> PhysicalBlock {
        assert!(index < self.descriptor_blocks());
        self.descriptor_block_in(index, self.descriptor_block_group(index))
    }

    /// Location of the descriptor of `group` in use.
    ///
    /// # Panics
    /// When there is no such group.
    pub fn descriptor_place(&self, group: GroupNumber) -> DescriptorPlace {
        self.assert_group(group);
        let per_block = self.descriptors_per_block();
        DescriptorPlace {
            block: self.descriptor_block(group.0 / per_block),
            byte: group.0 % per_block * u32::from(self.descriptor_bytes),
        }
    }

    /// The copies of block `index` of the descriptor table, without the one in use.
    ///
    /// # Panics
    /// When the table is not that long.
    pub fn descriptor_block_backups(&self, index: u32) -> impl Iterator<Item = PhysicalBlock> {
        assert!(index < self.descriptor_blocks());
        self.descriptor_block_groups(index)
            .skip(1)
            .map(move |group| self.descriptor_block_in(index, group))
    }

    /// Groups with a copy of the superblock, without group 0.
    pub fn superblock_backups(&self) -> impl Iterator<Item = GroupNumber> {
        (1..self.groups())
            .map(GroupNumber)
            .filter(|&group| self.has_superblock(group))
    }

    /// Whether block `index` of the table is kept with the groups it describes.
    fn is_meta_block(&self, index: u32) -> bool {
        self.features.incompat.contains(Incompat::META_BG) && index >= self.first_meta_bg
    }

    fn is_in_meta_group(&self, group: GroupNumber) -> bool {
        self.is_meta_block(group.0 / self.descriptors_per_block())
    }

    /// Contiguous blocks of the table after each superblock.
    fn table_blocks(&self) -> u32 {
        if self.features.incompat.contains(Incompat::META_BG) {
            self.first_meta_bg.min(self.descriptor_blocks())
        } else {
            self.descriptor_blocks()
        }
    }

    fn descriptor_block_group(&self, index: u32) -> GroupNumber {
        if self.is_meta_block(index) {
            GroupNumber(index * self.descriptors_per_block())
        } else {
            GroupNumber(0)
        }
    }

    /// The groups with block `index` of the table, the one in use first.
    fn descriptor_block_groups(&self, index: u32) -> impl Iterator<Item = GroupNumber> {
        let (of_meta, of_table) = if self.is_meta_block(index) {
            (Some(self.meta_groups(index)), None)
        } else {
            let first = std::iter::once(GroupNumber(0));
            (None, Some(first.chain(self.superblock_backups())))
        };
        let of_meta = of_meta.into_iter().flatten();
        of_meta.chain(of_table.into_iter().flatten())
    }

    /// The first, the second and the last of the groups that block `index` can describe; those
    /// that do not exist hold no copy, and the last that does is none instead.
    fn meta_groups(&self, index: u32) -> impl Iterator<Item = GroupNumber> {
        let (groups, per_block) = (self.groups(), self.descriptors_per_block());
        let first = self.descriptor_block_group(index).0;
        let places = [Some(0), Some(1), (per_block > 2).then(|| per_block - 1)];
        let places = places.into_iter().flatten();
        places
            .filter(move |&place| place < per_block && place < groups - first)
            .map(move |place| GroupNumber(first + place))
    }

    fn descriptor_block_in(&self, index: u32, group: GroupNumber) -> PhysicalBlock {
        let base = self.table_base(group).0;
        if self.is_meta_block(index) {
            PhysicalBlock(base + u64::from(self.has_superblock(group)))
        } else {
            PhysicalBlock(base + 1 + u64::from(index))
        }
    }

    /// Location of the superblock of `group`, existing or not. Group 0 begins a block earlier where
    /// the superblock is in block 1 and blocks count from 0 (`bigalloc` with 1 KiB blocks).
    fn table_base(&self, group: GroupNumber) -> PhysicalBlock {
        let first = self.first_block(group);
        match group.0 {
            0 => PhysicalBlock(first.0.max(1024 >> self.block_bits)),
            _ => first,
        }
    }
}

fn is_power(mut number: u32, base: u32) -> bool {
    while number > 1 && number.is_multiple_of(base) {
        number /= base;
    }
    number == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ext4::superblock::fixture;

    fn layout(change: impl FnOnce(&mut Layout)) -> Layout {
        let mut layout = *fixture().layout();
        layout.blocks = 400 * u64::from(layout.blocks_per_group);
        layout.inodes = 400 * layout.inodes_per_group;
        change(&mut layout);
        layout
    }

    fn numbers(groups: impl Iterator<Item = GroupNumber>) -> Vec<u32> {
        groups.map(|group| group.0).collect()
    }

    #[test]
    fn sparse_super_keeps_copies_in_powers_of_3_5_and_7() {
        let sparse = layout(|_| {});
        assert_eq!(
            numbers(sparse.superblock_backups()),
            [1, 3, 5, 7, 9, 25, 27, 49, 81, 125, 243, 343]
        );
        let dense = layout(|layout| layout.features.ro_compat.remove(RoCompat::SPARSE_SUPER));
        assert_eq!(dense.superblock_backups().count(), 399);
    }

    #[test]
    fn sparse_super2_keeps_copies_where_the_superblock_says() {
        let sparse = layout(|layout| {
            layout.features.compat.insert(Compat::SPARSE_SUPER2);
            layout.backup_groups = [1, 399];
        });
        assert_eq!(numbers(sparse.superblock_backups()), [1, 399]);
    }

    #[test]
    fn meta_bg_keeps_each_table_block_in_three_groups_of_its_own() {
        let meta = layout(|layout| {
            layout.features.incompat.insert(Incompat::META_BG);
            layout.features.compat.remove(Compat::RESIZE_INODE);
            layout.reserved_descriptor_blocks = 0;
        });
        assert_eq!(meta.descriptors_per_block(), 64);
        assert_eq!(numbers(meta.descriptor_block_groups(1)), [64, 65, 127]);
        // 400 groups: the last block describes 16, and group 447 does not exist.
        assert_eq!(numbers(meta.descriptor_block_groups(6)), [384, 385]);
        assert_eq!(meta.descriptor_block(1), meta.first_block(GroupNumber(64)));
        // Group 127 has no superblock, group 1 has one before the descriptors.
        assert_eq!(meta.fixed_blocks(GroupNumber(127)), 1);
        assert_eq!(meta.fixed_blocks(GroupNumber(126)), 0);
        assert_eq!(meta.fixed_blocks(GroupNumber(1)), 2);
        assert_eq!(meta.fixed_blocks(GroupNumber(3)), 1);
    }

    #[test]
    fn last_meta_group_of_one_group_holds_one_copy() {
        let meta = layout(|layout| {
            layout.features.incompat.insert(Incompat::META_BG);
            layout.blocks = 65 * u64::from(layout.blocks_per_group);
        });
        assert_eq!(numbers(meta.descriptor_block_groups(1)), [64]);
    }
}

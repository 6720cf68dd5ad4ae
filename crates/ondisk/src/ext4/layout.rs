//! Locations of structures: arithmetic on the superblock's values, without reading.
//!
//! Model: blocks from `s_first_data_block` on are divided into groups of `s_blocks_per_group`, of
//! which the last may be short. A group with a copy of the superblock begins with it, the
//! descriptor table and its reserved blocks. With `meta_bg` the table is split: each of its blocks
//! from `s_first_meta_bg` on is in the first group of those that it describes, with copies in the
//! second and, if it is full, the last. The descriptor gives the location of bitmaps and inode
//! table.
//!
//! Invariants (checked by `superblock/check.rs`, on which every calculation here relies): the block
//! size is 1 KiB to 64 KiB; the number of groups fits 32 bits; a byte address of any block fits 64
//! bits; inodes are groups times inodes per group and fit 32 bits.

mod backups;
mod file_size;

use extant_space::{ByteRange, Result};

pub use file_size::Mapping;

use super::superblock::RawSuperblock;
use super::{Features, GroupNumber, Incompat, InodeNumber, PhysicalBlock, RoCompat};
use crate::fault::corrupt;
use crate::narrow::low32;

/// The geometry of a file system. It changes only when the file system is resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub(super) features: Features,
    pub(super) block_bits: u32,
    pub(super) cluster_bits: u32,
    pub(super) blocks: u64,
    pub(super) first_data_block: u32,
    pub(super) blocks_per_group: u32,
    pub(super) clusters_per_group: u32,
    pub(super) inodes_per_group: u32,
    pub(super) inodes: u32,
    pub(super) first_inode: u32,
    pub(super) inode_bytes: u16,
    pub(super) descriptor_bytes: u16,
    pub(super) reserved_descriptor_blocks: u16,
    pub(super) first_meta_bg: u32,
    pub(super) backup_groups: [u32; 2],
    pub(super) log_groups_per_flex: u8,
    pub(super) has_linux_inodes: bool,
}

/// Location of an inode, relative to its group's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodePlace {
    /// The group; its descriptor says where the inode table begins.
    pub group: GroupNumber,
    /// Place in the group, which is its bit in the inode bitmap.
    pub index: u32,
    /// Block of the inode table, counted from the table's first.
    pub table_block: u32,
    /// First byte in that block.
    pub byte: u32,
}

/// Location of a group's descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorPlace {
    /// The block of the descriptor table.
    pub block: PhysicalBlock,
    /// First byte in that block.
    pub byte: u32,
}

impl Layout {
    /// Bytes of a block, a power of two from 1024 to 65536.
    #[inline]
    pub fn block_bytes(&self) -> u32 {
        1 << self.block_bits
    }

    /// The logarithm of [`block_bytes`](Self::block_bytes): 10 to 16.
    #[inline]
    pub fn block_bits(&self) -> u32 {
        self.block_bits
    }

    /// Blocks in a unit of allocation: 1 without `bigalloc`.
    pub fn blocks_per_cluster(&self) -> u32 {
        1 << (self.cluster_bits - self.block_bits)
    }

    /// Blocks of the file system, counted from block 0.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// First block of group 0: 1 with blocks of 1 KiB, else 0.
    pub fn first_data_block(&self) -> PhysicalBlock {
        PhysicalBlock(self.first_data_block.into())
    }

    /// Blocks of every group but the last.
    pub fn blocks_per_group(&self) -> u32 {
        self.blocks_per_group
    }

    /// Units of allocation of every group, which are the bits of its block bitmap.
    pub fn clusters_per_group(&self) -> u32 {
        self.clusters_per_group
    }

    /// Number of groups, at least 1.
    pub fn groups(&self) -> u32 {
        let blocks = self.blocks - u64::from(self.first_data_block);
        low32(blocks.div_ceil(self.blocks_per_group.into()))
    }

    /// All inodes, used or not.
    pub fn inodes(&self) -> u32 {
        self.inodes
    }

    /// Inodes of every group.
    pub fn inodes_per_group(&self) -> u32 {
        self.inodes_per_group
    }

    /// First inode that is not reserved.
    pub fn first_inode(&self) -> InodeNumber {
        InodeNumber(self.first_inode)
    }

    /// Bytes of an inode in the table, a power of two from 128 to the block size.
    pub fn inode_bytes(&self) -> u16 {
        self.inode_bytes
    }

    /// Blocks of the inode table of every group.
    pub fn inode_table_blocks(&self) -> u32 {
        self.inodes_per_group.div_ceil(self.inodes_per_block())
    }

    /// Inodes in a block of the table.
    pub fn inodes_per_block(&self) -> u32 {
        self.block_bytes() / u32::from(self.inode_bytes)
    }

    /// Bytes of a group descriptor: 32, or from 64 up with `64bit`.
    pub fn descriptor_bytes(&self) -> u16 {
        self.descriptor_bytes
    }

    /// Descriptors in a block of the table.
    pub fn descriptors_per_block(&self) -> u32 {
        self.block_bytes() / u32::from(self.descriptor_bytes)
    }

    /// Blocks of the descriptor table, without reserved ones.
    pub fn descriptor_blocks(&self) -> u32 {
        self.groups().div_ceil(self.descriptors_per_block())
    }

    /// Blocks kept after every copy of the table for its growth (`s_reserved_gdt_blocks`).
    pub fn reserved_descriptor_blocks(&self) -> u16 {
        self.reserved_descriptor_blocks
    }

    /// Groups whose bitmaps and inode tables are kept together: 1 without `flex_bg`.
    pub fn groups_per_flex(&self) -> u32 {
        if self.features.incompat.contains(Incompat::FLEX_BG) {
            1 << self.log_groups_per_flex
        } else {
            1
        }
    }

    /// Whether inodes have Linux's use of the fields that each system may define (`osd1`, `osd2` of
    /// another `s_creator_os`): the version, the high half of the attribute block's number, and a
    /// checksum.
    pub fn has_linux_inodes(&self) -> bool {
        self.has_linux_inodes
    }

    /// Features that the layout was made with.
    pub fn features(&self) -> &Features {
        &self.features
    }

    /// First block of `group`.
    ///
    /// # Panics
    /// When there is no such group.
    #[inline]
    pub fn first_block(&self, group: GroupNumber) -> PhysicalBlock {
        self.assert_group(group);
        let offset = u64::from(group.0) * u64::from(self.blocks_per_group);
        PhysicalBlock(u64::from(self.first_data_block) + offset)
    }

    /// Blocks of `group`; only the last may have fewer than the others.
    ///
    /// # Panics
    /// When there is no such group.
    #[inline]
    pub fn blocks_in(&self, group: GroupNumber) -> u32 {
        let rest = self.blocks - self.first_block(group).0;
        low32(rest.min(self.blocks_per_group.into()))
    }

    /// Units of allocation of `group`, which are the used bits of its block bitmap; the last may be
    /// a part of one.
    ///
    /// # Panics
    /// When there is no such group.
    pub fn clusters_in(&self, group: GroupNumber) -> u32 {
        self.blocks_in(group).div_ceil(self.blocks_per_cluster())
    }

    /// The group of `block` and the block's place in it; `None` outside the groups.
    #[inline]
    pub fn locate(&self, block: PhysicalBlock) -> Option<(GroupNumber, u32)> {
        if block.0 >= self.blocks {
            return None;
        }
        let offset = block.0.checked_sub(self.first_data_block.into())?;
        let per_group = self.blocks_per_group;
        // Nearly always; a division takes as long as all else here.
        if per_group.is_power_of_two() {
            let group = offset >> per_group.trailing_zeros();
            return Some((GroupNumber(low32(group)), low32(offset) & (per_group - 1)));
        }
        let per_group = u64::from(per_group);
        Some((
            GroupNumber(low32(offset / per_group)),
            low32(offset % per_group),
        ))
    }

    /// Whether `blocks` blocks from `start` are all in groups.
    #[inline]
    pub fn holds(&self, start: PhysicalBlock, blocks: u64) -> bool {
        let end = start.0.checked_add(blocks);
        start.0 >= self.first_data_block.into() && end.is_some_and(|end| end <= self.blocks)
    }

    /// The bytes of `block` on the device.
    ///
    /// # Panics
    /// When the block is not in the file system.
    pub fn bytes_of(&self, block: PhysicalBlock) -> ByteRange {
        assert!(block.0 < self.blocks, "block {block} of {}", self.blocks);
        ByteRange::new(block.0 << self.block_bits, (block.0 + 1) << self.block_bits)
    }

    /// Location of the inode `number`.
    ///
    /// # Errors
    /// `Corrupt` if there is no such inode: numbers come from the disk.
    pub fn locate_inode(&self, number: InodeNumber) -> Result<InodePlace> {
        if number.0 == 0 || number.0 > self.inodes {
            return Err(corrupt(
                format_args!("inode {number}"),
                format_args!("no such inode among {}", self.inodes),
            ));
        }
        let index = (number.0 - 1) % self.inodes_per_group;
        let per_block = self.inodes_per_block();
        Ok(InodePlace {
            group: GroupNumber((number.0 - 1) / self.inodes_per_group),
            index,
            table_block: index / per_block,
            byte: index % per_block * u32::from(self.inode_bytes),
        })
    }

    /// The inode at place `index` of `group`; the reverse of [`locate_inode`](Self::locate_inode).
    ///
    /// # Panics
    /// When there is no such place.
    pub fn inode_at(&self, group: GroupNumber, index: u32) -> InodeNumber {
        self.assert_group(group);
        assert!(index < self.inodes_per_group);
        InodeNumber(group.0 * self.inodes_per_group + index + 1)
    }

    /// Whether inodes may use `i_blocks` past 32 bits (`huge_file`).
    pub fn has_huge_files(&self) -> bool {
        self.features.ro_compat.contains(RoCompat::HUGE_FILE)
    }

    pub(super) fn assert_group(&self, group: GroupNumber) {
        assert!(
            group.0 < self.groups(),
            "group {group} of {}",
            self.groups()
        );
    }

    /// Takes the values unvalidated; [`check`](super::superblock) validates them.
    pub(super) fn from_raw(raw: &RawSuperblock, features: Features) -> Self {
        let block_bits = 10 + raw.s_log_block_size.get();
        let is_64bit = features.incompat.contains(Incompat::BIT64);
        let is_bigalloc = features.ro_compat.contains(RoCompat::BIGALLOC);
        let is_dynamic = raw.s_rev_level.get() > 0;
        let high = if is_64bit {
            raw.s_blocks_count_hi.get()
        } else {
            0
        };
        Self {
            features,
            block_bits,
            cluster_bits: if is_bigalloc {
                10 + raw.s_log_cluster_size.get()
            } else {
                block_bits
            },
            blocks: u64::from(high) << 32 | u64::from(raw.s_blocks_count_lo.get()),
            first_data_block: raw.s_first_data_block.get(),
            blocks_per_group: raw.s_blocks_per_group.get(),
            clusters_per_group: if is_bigalloc {
                raw.s_clusters_per_group.get()
            } else {
                raw.s_blocks_per_group.get()
            },
            inodes_per_group: raw.s_inodes_per_group.get(),
            inodes: raw.s_inodes_count.get(),
            first_inode: if is_dynamic {
                raw.s_first_ino.get()
            } else {
                11
            },
            inode_bytes: if is_dynamic {
                raw.s_inode_size.get()
            } else {
                128
            },
            descriptor_bytes: if is_64bit { raw.s_desc_size.get() } else { 32 },
            reserved_descriptor_blocks: raw.s_reserved_gdt_blocks.get(),
            first_meta_bg: raw.s_first_meta_bg.get(),
            backup_groups: raw.s_backup_bgs.map(|group| group.get()),
            log_groups_per_flex: raw.s_log_groups_per_flex,
            has_linux_inodes: raw.s_creator_os.get() == 0,
        }
    }
}

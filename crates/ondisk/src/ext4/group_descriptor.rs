//! Group descriptors: the place of a group's bitmaps and inode table, and its free counts.
//!
//! Model: an entry of the descriptor table has 32 bytes, or with `64bit` as many as the
//! superblock says, from 64 up; the second 32 hold the high halves. [`GroupDescriptor`] is a copy
//! of the known fields. [`GroupDescriptor::write`] writes it back into the existing bytes, so that
//! those past 64 survive, and seals them.
//!
//! Invariant: a sealed descriptor has the sum that the features ask for: the low half of a
//! crc32c with `metadata_csum`, a crc16 with `uninit_bg`, none otherwise.
//!
//! Format: docs/formats/ext4.md, "Group descriptor".

use core::mem::offset_of;

use bitflags::bitflags;
use extant_space::Result;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromZeros, IntoBytes};

use super::{GroupNumber, Layout, PhysicalBlock, RoCompat, Superblock};
use crate::checksum;
use crate::fault::{check_range, check_sum, corrupt};
use crate::narrow::low16;
use crate::structure::on_disk;

on_disk! {
    /// `struct ext4_group_desc`; without `64bit` only the first 32 bytes are on the disk.
    pub struct RawGroupDescriptor: 64 {
        0x00 bg_block_bitmap_lo: U32,
        0x04 bg_inode_bitmap_lo: U32,
        0x08 bg_inode_table_lo: U32,
        0x0C bg_free_blocks_count_lo: U16,
        0x0E bg_free_inodes_count_lo: U16,
        0x10 bg_used_dirs_count_lo: U16,
        0x12 bg_flags: U16,
        0x14 bg_exclude_bitmap_lo: U32,
        0x18 bg_block_bitmap_csum_lo: U16,
        0x1A bg_inode_bitmap_csum_lo: U16,
        0x1C bg_itable_unused_lo: U16,
        0x1E bg_checksum: U16,
        0x20 bg_block_bitmap_hi: U32,
        0x24 bg_inode_bitmap_hi: U32,
        0x28 bg_inode_table_hi: U32,
        0x2C bg_free_blocks_count_hi: U16,
        0x2E bg_free_inodes_count_hi: U16,
        0x30 bg_used_dirs_count_hi: U16,
        0x32 bg_itable_unused_hi: U16,
        0x34 bg_exclude_bitmap_hi: U32,
        0x38 bg_block_bitmap_csum_hi: U16,
        0x3A bg_inode_bitmap_csum_hi: U16,
        0x3C bg_reserved: U32,
    }
}

const SHORT_BYTES: usize = 32;
const CHECKSUM: usize = offset_of!(RawGroupDescriptor, bg_checksum);

bitflags! {
    /// `bg_flags`: meaningful only where descriptors carry a checksum.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct GroupFlags: u16 {
        /// No inode was ever used; the inode bitmap on the disk is not initialised.
        const INODE_UNINIT = 1;
        /// The block bitmap on the disk is not initialised: only fixed blocks are used.
        const BLOCK_UNINIT = 2;
        /// The inode table is zeroed on the disk.
        const INODE_ZEROED = 4;
        const _ = !0;
    }
}

/// A copy of one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupDescriptor {
    raw: RawGroupDescriptor,
}

impl GroupDescriptor {
    /// A descriptor of nothing, for a new group.
    pub fn zeroed() -> Self {
        Self {
            raw: RawGroupDescriptor::new_zeroed(),
        }
    }

    /// Reads the descriptor at the start of `bytes`, without judging it.
    ///
    /// # Panics
    /// When `bytes` are fewer than a descriptor.
    pub fn read(bytes: &[u8], layout: &Layout) -> Self {
        let kept = understood_bytes(layout);
        let mut raw = RawGroupDescriptor::new_zeroed();
        raw.as_mut_bytes()[..kept].copy_from_slice(&bytes[..kept]);
        Self { raw }
    }

    /// Reads and validates the descriptor of `group`: its checksum, its counts, and that its block
    /// numbers are in the file system.
    ///
    /// # Errors
    /// `Corrupt` with group, field and value.
    ///
    /// # Panics
    /// If `bytes` are fewer than a descriptor.
    pub fn parse(bytes: &[u8], group: GroupNumber, superblock: &Superblock) -> Result<Self> {
        let layout = superblock.layout();
        let descriptor = Self::read(bytes, layout);
        let name = format!("descriptor of group {group}");
        if let Some(sum) = computed_checksum(bytes, group, superblock) {
            check_sum(&name, descriptor.raw.bg_checksum.get().into(), sum.into())?;
        }
        let table = u64::from(layout.inode_table_blocks());
        for (field, block, blocks) in [
            ("bg_block_bitmap", descriptor.block_bitmap(), 1),
            ("bg_inode_bitmap", descriptor.inode_bitmap(), 1),
            ("bg_inode_table", descriptor.inode_table(), table),
        ] {
            if !layout.holds(block, blocks) {
                let problem = format_args!("{field} is {block}, outside the file system");
                return Err(corrupt(&name, problem));
            }
        }
        let clusters = layout
            .blocks_in(group)
            .div_ceil(layout.blocks_per_cluster());
        let inodes = layout.inodes_per_group();
        // Without checksums it has no meaning, and may hold anything.
        let unused = if layout.features().has_group_checksums() {
            descriptor.unused_inodes()
        } else {
            0
        };
        for (field, count, most) in [
            ("bg_free_blocks_count", descriptor.free_blocks(), clusters),
            ("bg_free_inodes_count", descriptor.free_inodes(), inodes),
            ("bg_used_dirs_count", descriptor.used_directories(), inodes),
            ("bg_itable_unused", unused, inodes),
        ] {
            check_range(&name, field, count.into(), 0..=most.into())?;
        }
        Ok(descriptor)
    }

    /// Puts the fields into `bytes`, where the descriptor of `group` is, and seals it.
    ///
    /// # Panics
    /// When `bytes` are fewer than a descriptor, and when a high half is set where the
    /// layout has none.
    pub fn write(&self, bytes: &mut [u8], group: GroupNumber, superblock: &Superblock) {
        let layout = superblock.layout();
        let kept = understood_bytes(layout);
        let (low, high) = self.raw.as_bytes().split_at(kept);
        assert!(
            high.iter().all(|&byte| byte == 0),
            "descriptor of group {group} does not fit {kept} bytes"
        );
        let stored_sum: [u8; 2] = bytes[CHECKSUM..CHECKSUM + 2].try_into().expect("2 bytes");
        bytes[..kept].copy_from_slice(low);
        // A checksum that the features do not use is not changed.
        let sum = computed_checksum(bytes, group, superblock).map(u16::to_le_bytes);
        bytes[CHECKSUM..CHECKSUM + 2].copy_from_slice(&sum.unwrap_or(stored_sum));
    }

    /// The fields as they are.
    pub fn raw(&self) -> &RawGroupDescriptor {
        &self.raw
    }

    /// The block of the block bitmap.
    pub fn block_bitmap(&self) -> PhysicalBlock {
        address(self.raw.bg_block_bitmap_lo, self.raw.bg_block_bitmap_hi)
    }

    /// The block of the inode bitmap.
    pub fn inode_bitmap(&self) -> PhysicalBlock {
        address(self.raw.bg_inode_bitmap_lo, self.raw.bg_inode_bitmap_hi)
    }

    /// First block of the inode table.
    pub fn inode_table(&self) -> PhysicalBlock {
        address(self.raw.bg_inode_table_lo, self.raw.bg_inode_table_hi)
    }

    /// Sets the places of the bitmaps and of the inode table.
    #[cfg(test)]
    fn set_places(
        &mut self,
        block_bitmap: PhysicalBlock,
        inode_bitmap: PhysicalBlock,
        inode_table: PhysicalBlock,
    ) {
        use crate::narrow::low32;
        let raw = &mut self.raw;
        raw.bg_block_bitmap_lo.set(low32(block_bitmap.0));
        raw.bg_block_bitmap_hi.set((block_bitmap.0 >> 32) as u32);
        raw.bg_inode_bitmap_lo.set(low32(inode_bitmap.0));
        raw.bg_inode_bitmap_hi.set((inode_bitmap.0 >> 32) as u32);
        raw.bg_inode_table_lo.set(low32(inode_table.0));
        raw.bg_inode_table_hi.set((inode_table.0 >> 32) as u32);
    }

    /// Free units of allocation: blocks, or clusters with `bigalloc`.
    pub fn free_blocks(&self) -> u32 {
        count(
            self.raw.bg_free_blocks_count_lo,
            self.raw.bg_free_blocks_count_hi,
        )
    }

    /// Sets [`free_blocks`](Self::free_blocks).
    pub fn set_free_blocks(&mut self, blocks: u32) {
        self.raw.bg_free_blocks_count_lo.set(low16(blocks));
        self.raw.bg_free_blocks_count_hi.set((blocks >> 16) as u16);
    }

    /// Free inodes.
    pub fn free_inodes(&self) -> u32 {
        count(
            self.raw.bg_free_inodes_count_lo,
            self.raw.bg_free_inodes_count_hi,
        )
    }

    /// Sets [`free_inodes`](Self::free_inodes).
    pub fn set_free_inodes(&mut self, inodes: u32) {
        self.raw.bg_free_inodes_count_lo.set(low16(inodes));
        self.raw.bg_free_inodes_count_hi.set((inodes >> 16) as u16);
    }

    /// Inodes that are directories.
    pub fn used_directories(&self) -> u32 {
        count(
            self.raw.bg_used_dirs_count_lo,
            self.raw.bg_used_dirs_count_hi,
        )
    }

    /// Sets [`used_directories`](Self::used_directories).
    pub fn set_used_directories(&mut self, directories: u32) {
        self.raw.bg_used_dirs_count_lo.set(low16(directories));
        self.raw
            .bg_used_dirs_count_hi
            .set((directories >> 16) as u16);
    }

    /// Inodes at the end of the table that were never used (`bg_itable_unused`).
    pub fn unused_inodes(&self) -> u32 {
        count(self.raw.bg_itable_unused_lo, self.raw.bg_itable_unused_hi)
    }

    /// Sets [`unused_inodes`](Self::unused_inodes).
    pub fn set_unused_inodes(&mut self, inodes: u32) {
        self.raw.bg_itable_unused_lo.set(low16(inodes));
        self.raw.bg_itable_unused_hi.set((inodes >> 16) as u16);
    }

    /// Initialised parts of the group; all parts if descriptors have no checksum.
    pub fn flags(&self, layout: &Layout) -> GroupFlags {
        if layout.features().has_group_checksums() {
            GroupFlags::from_bits_retain(self.raw.bg_flags.get())
        } else {
            GroupFlags::INODE_ZEROED
        }
    }

    /// Sets `bg_flags`.
    pub fn set_flags(&mut self, flags: GroupFlags) {
        self.raw.bg_flags.set(flags.bits());
    }

    /// The stored sum of the block bitmap, as wide as this layout keeps it.
    pub fn block_bitmap_checksum(&self) -> u32 {
        count(
            self.raw.bg_block_bitmap_csum_lo,
            self.raw.bg_block_bitmap_csum_hi,
        )
    }

    /// The stored sum of the inode bitmap, as wide as this layout keeps it.
    pub fn inode_bitmap_checksum(&self) -> u32 {
        count(
            self.raw.bg_inode_bitmap_csum_lo,
            self.raw.bg_inode_bitmap_csum_hi,
        )
    }

    pub(super) fn set_block_bitmap_checksum(&mut self, sum: u32, layout: &Layout) {
        let sum = sum & stored_bits(layout);
        self.raw.bg_block_bitmap_csum_lo.set(low16(sum));
        self.raw.bg_block_bitmap_csum_hi.set((sum >> 16) as u16);
    }

    pub(super) fn set_inode_bitmap_checksum(&mut self, sum: u32, layout: &Layout) {
        let sum = sum & stored_bits(layout);
        self.raw.bg_inode_bitmap_csum_lo.set(low16(sum));
        self.raw.bg_inode_bitmap_csum_hi.set((sum >> 16) as u16);
    }
}

/// The bits of a bitmap's sum that a descriptor has room for.
pub(super) fn stored_bits(layout: &Layout) -> u32 {
    if understood_bytes(layout) > SHORT_BYTES {
        u32::MAX
    } else {
        u16::MAX.into()
    }
}

fn understood_bytes(layout: &Layout) -> usize {
    usize::from(layout.descriptor_bytes()).min(size_of::<RawGroupDescriptor>())
}

fn address(low: U32, high: U32) -> PhysicalBlock {
    PhysicalBlock(u64::from(high.get()) << 32 | u64::from(low.get()))
}

fn count(low: U16, high: U16) -> u32 {
    u32::from(high.get()) << 16 | u32::from(low.get())
}

/// The sum that the descriptor of `group` at the start of `bytes` should have.
fn computed_checksum(bytes: &[u8], group: GroupNumber, superblock: &Superblock) -> Option<u16> {
    let layout = superblock.layout();
    let features = superblock.features();
    let bytes = &bytes[..usize::from(layout.descriptor_bytes())];
    let (before, rest) = bytes.split_at(CHECKSUM);
    let after = &rest[2..];
    let number = group.0.to_le_bytes();
    if let Some(seed) = superblock.seed() {
        let sum = seed.sum(&number).and(before).and(&[0; 2]).and(after);
        return Some(low16(sum.value()));
    }
    if !features.ro_compat.contains(RoCompat::GDT_CSUM) {
        return None;
    }
    let sum = checksum::crc16(!0, superblock.uuid());
    let sum = checksum::crc16(checksum::crc16(sum, &number), before);
    // This older sum leaves its own bytes out.
    Some(checksum::crc16(sum, after))
}

#[cfg(test)]
mod tests {
    use extant_space::Corruption;

    use super::*;
    use crate::ext4::RoCompat;
    use crate::ext4::superblock::fixture;

    fn plausible() -> (Superblock, GroupDescriptor, [u8; 64]) {
        let superblock = fixture();
        let mut descriptor = GroupDescriptor::zeroed();
        descriptor.set_places(PhysicalBlock(65), PhysicalBlock(81), PhysicalBlock(97));
        descriptor.set_free_blocks(100);
        descriptor.set_free_inodes(8192);
        descriptor.set_unused_inodes(8192);
        let mut bytes = [0; 64];
        descriptor.write(&mut bytes, GroupNumber(1), &superblock);
        (superblock, descriptor, bytes)
    }

    #[test]
    fn written_descriptor_reads_back() {
        let (superblock, descriptor, bytes) = plausible();
        let back = GroupDescriptor::parse(&bytes, GroupNumber(1), &superblock).unwrap();
        assert_eq!(back.inode_table(), descriptor.inode_table());
        assert_eq!(back.free_inodes(), 8192);
    }

    #[test]
    fn descriptor_of_another_group_is_found_by_the_checksum() {
        let (superblock, _, bytes) = plausible();
        let error = GroupDescriptor::parse(&bytes, GroupNumber(2), &superblock).unwrap_err();
        assert_eq!(
            error.corruption(),
            Some(&Corruption::checksum("descriptor of group 2"))
        );
    }

    #[test]
    fn places_and_counts_outside_are_refused_by_name() {
        let (superblock, good, mut bytes) = plausible();
        type Change = fn(&mut GroupDescriptor);
        let cases: [(&str, Change); 5] = [
            ("bg_block_bitmap is 131072, outside the file system", |d| {
                d.set_places(PhysicalBlock(131_072), PhysicalBlock(1), PhysicalBlock(1));
            }),
            ("bg_inode_table is 130561, outside the file system", |d| {
                d.set_places(PhysicalBlock(1), PhysicalBlock(1), PhysicalBlock(130_561));
            }),
            ("bg_free_blocks_count is 32769, outside 0 to 32768", |d| {
                d.set_free_blocks(32769)
            }),
            ("bg_free_inodes_count is 65536, outside 0 to 8192", |d| {
                d.set_free_inodes(65536)
            }),
            ("bg_itable_unused is 8193, outside 0 to 8192", |d| {
                d.set_unused_inodes(8193)
            }),
        ];
        for (line, change) in cases {
            let mut descriptor = good;
            change(&mut descriptor);
            descriptor.write(&mut bytes, GroupNumber(1), &superblock);
            let error = GroupDescriptor::parse(&bytes, GroupNumber(1), &superblock).unwrap_err();
            assert_eq!(error.to_string(), format!("descriptor of group 1: {line}"));
        }
    }

    #[test]
    fn unused_inodes_mean_nothing_without_sums() {
        let (mut superblock, mut descriptor, mut bytes) = plausible();
        let sums = RoCompat::METADATA_CSUM | RoCompat::GDT_CSUM;
        superblock
            .edit(|raw| {
                raw.s_feature_ro_compat
                    .set(raw.s_feature_ro_compat.get() & !sums.bits());
            })
            .unwrap();
        descriptor.set_unused_inodes(60_000);
        descriptor.write(&mut bytes, GroupNumber(1), &superblock);
        GroupDescriptor::parse(&bytes, GroupNumber(1), &superblock).unwrap();
    }

    #[test]
    #[should_panic(expected = "does not fit 32 bytes")]
    fn high_half_is_not_lost_in_a_short_descriptor() {
        let (mut superblock, mut descriptor, mut bytes) = plausible();
        superblock
            .edit(|raw| {
                raw.s_feature_incompat
                    .set(raw.s_feature_incompat.get() & !0x80)
            })
            .unwrap();
        descriptor.set_places(PhysicalBlock(1 << 32), PhysicalBlock(1), PhysicalBlock(1));
        descriptor.write(&mut bytes, GroupNumber(1), &superblock);
    }
}

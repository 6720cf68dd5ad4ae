//! Checksums of the block and inode bitmaps, stored in the group's descriptor.
//!
//! A checksum covers the bits of the group, not the rest of the block. It is a crc32c, truncated to
//! 16 bits if descriptors have 32 bytes. Bitmaps that a descriptor marks as uninitialised have
//! none.

use extant_space::Result;

use super::{GroupDescriptor, GroupNumber, Superblock, group_descriptor};
use crate::fault::check_sum;

/// Kind of a group's bitmap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bitmap {
    /// One bit for each block (cluster), set when it is used.
    Blocks,
    /// One bit for each inode, set when it is used.
    Inodes,
}

impl Bitmap {
    /// Compares the sum of `block`, which is the whole block of the bitmap, with the one in
    /// `descriptor`. Passes without `metadata_csum`.
    ///
    /// # Errors
    /// `Corrupt` when they differ.
    pub fn verify(
        self,
        block: &[u8],
        group: GroupNumber,
        descriptor: &GroupDescriptor,
        superblock: &Superblock,
    ) -> Result<()> {
        let Some(sum) = self.computed(block, superblock) else {
            return Ok(());
        };
        let (name, stored) = match self {
            Self::Blocks => ("block bitmap", descriptor.block_bitmap_checksum()),
            Self::Inodes => ("inode bitmap", descriptor.inode_bitmap_checksum()),
        };
        let kept = group_descriptor::stored_bits(superblock.layout());
        check_sum(format_args!("{name} of group {group}"), stored, sum & kept)
    }

    /// Notes the sum of `block` in `descriptor`. Does nothing without `metadata_csum`.
    pub fn seal(self, block: &[u8], descriptor: &mut GroupDescriptor, superblock: &Superblock) {
        let Some(sum) = self.computed(block, superblock) else {
            return;
        };
        let layout = superblock.layout();
        match self {
            Self::Blocks => descriptor.set_block_bitmap_checksum(sum, layout),
            Self::Inodes => descriptor.set_inode_bitmap_checksum(sum, layout),
        }
    }

    fn computed(self, block: &[u8], superblock: &Superblock) -> Option<u32> {
        let layout = superblock.layout();
        let bits = match self {
            Self::Blocks => layout.clusters_per_group(),
            Self::Inodes => layout.inodes_per_group(),
        };
        let covered = &block[..bits as usize / 8];
        superblock.seed().map(|seed| seed.sum(covered).value())
    }
}

#[cfg(test)]
mod tests {
    use extant_space::Corruption;

    use super::*;
    use crate::ext4::superblock::fixture;

    #[test]
    fn inode_bitmap_is_summed_without_the_padding_of_its_block() {
        let superblock = fixture();
        let mut descriptor = GroupDescriptor::zeroed();
        let mut block = vec![0xFF; 4096];
        Bitmap::Inodes.seal(&block, &mut descriptor, &superblock);
        let verify =
            |block: &[u8]| Bitmap::Inodes.verify(block, GroupNumber(3), &descriptor, &superblock);
        block[1024] = 0;
        verify(&block).unwrap();
        block[1023] = 0;
        let error = verify(&block).unwrap_err();
        assert_eq!(
            error.corruption(),
            Some(&Corruption::checksum("inode bitmap of group 3"))
        );
    }
}

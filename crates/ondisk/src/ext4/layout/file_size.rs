//! How large a file can be.

use super::Layout;
use crate::ext4::block_map;

/// How a file's blocks are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// An extent tree.
    Extents,
    /// Direct and indirect blocks, as in ext2.
    Blocks,
}

/// Linux counts bytes of a file with 63 bits.
const BYTES_MAX: u64 = i64::MAX as u64;
/// Logical blocks are numbered with 32 bits, and one number is left for "none".
const EXTENT_BLOCKS_MAX: u64 = u32::MAX as u64;

impl Layout {
    /// The largest size of a file, in bytes.
    ///
    /// Besides the mapping, `i_blocks` sets a limit: 32 bits of sectors, or 48 bits of
    /// blocks with `huge_file`. A file mapped by blocks counts its indirect blocks there.
    pub fn file_bytes_max(&self, mapping: Mapping) -> u64 {
        let countable = if self.has_huge_files() {
            (1 << 48) - 1
        } else {
            u64::from(u32::MAX) >> (self.block_bits - 9)
        };
        let blocks = match mapping {
            Mapping::Extents => EXTENT_BLOCKS_MAX.min(countable),
            Mapping::Blocks => self.mapped_blocks_max(countable),
        };
        (blocks << self.block_bits).min(BYTES_MAX)
    }

    /// The size in bytes past which the mapping has no number for a block. Up to here a file is
    /// read, also if it is larger than [`file_bytes_max`](Self::file_bytes_max), as after
    /// `huge_file` was cleared.
    pub fn mapped_bytes_max(&self, mapping: Mapping) -> u64 {
        let blocks = match mapping {
            Mapping::Extents => EXTENT_BLOCKS_MAX,
            Mapping::Blocks => block_map::reach(self).min(EXTENT_BLOCKS_MAX),
        };
        (blocks << self.block_bits).min(BYTES_MAX)
    }

    /// The most blocks that direct to triple indirect blocks reach, when together with
    /// the indirect blocks they may be `countable`. As in the kernel, which subtracts the indirect
    /// blocks of a file of `countable` blocks: a few more than are needed.
    fn mapped_blocks_max(&self, countable: u64) -> u64 {
        let per_block = u64::from(self.block_bytes() / 4);
        let reach = block_map::reach(self);
        let blocks = if reach + indirect_blocks(reach, per_block) <= countable {
            reach
        } else {
            countable - indirect_blocks(countable, per_block)
        };
        blocks.min(EXTENT_BLOCKS_MAX)
    }
}

/// Indirect blocks that a file of `blocks` blocks without holes needs.
fn indirect_blocks(blocks: u64, per_block: u64) -> u64 {
    let Some(single) = blocks.checked_sub(12).filter(|&rest| rest > 0) else {
        return 0;
    };
    let Some(double) = single.checked_sub(per_block).filter(|&rest| rest > 0) else {
        return 1;
    };
    let leaves = double.min(per_block.pow(2)).div_ceil(per_block);
    let Some(triple) = double
        .checked_sub(per_block.pow(2))
        .filter(|&rest| rest > 0)
    else {
        return 1 + 1 + leaves;
    };
    let low = triple.div_ceil(per_block);
    1 + (1 + leaves) + (1 + low.div_ceil(per_block) + low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ext4::RoCompat;
    use crate::ext4::superblock::fixture;

    fn layout(block_bits: u32, huge: bool) -> Layout {
        let mut layout = *fixture().layout();
        layout.block_bits = block_bits;
        layout.features.ro_compat.set(RoCompat::HUGE_FILE, huge);
        layout
    }

    #[test]
    fn extents_reach_2_to_the_32_blocks_less_one() {
        let bytes = layout(12, true).file_bytes_max(Mapping::Extents);
        assert_eq!(bytes, (u64::from(u32::MAX)) << 12);
        let bytes = layout(16, true).file_bytes_max(Mapping::Extents);
        assert_eq!(bytes, (u64::from(u32::MAX)) << 16);
    }

    #[test]
    fn without_huge_file_sectors_end_a_file_at_2_tib() {
        let bytes = layout(12, false).file_bytes_max(Mapping::Extents);
        assert_eq!(bytes, (1 << 41) - 4096);
    }

    #[test]
    fn block_mapped_file_of_1k_blocks_ends_with_its_triple_indirect_block() {
        let reach = 12 + 256 + 256 * 256 + 256u64.pow(3);
        let bytes = layout(10, true).file_bytes_max(Mapping::Blocks);
        assert_eq!(bytes, reach << 10);
    }

    #[test]
    fn block_mapped_file_without_huge_file_counts_its_indirect_blocks() {
        let countable = u64::from(u32::MAX) >> 3;
        let bytes = layout(12, false).file_bytes_max(Mapping::Blocks);
        let triple = countable - 12 - 1024 - (1 << 20);
        let low = triple.div_ceil(1024);
        let indirect = 1 + (1 + 1024) + (1 + low.div_ceil(1024) + low);
        assert_eq!(bytes, (countable - indirect) << 12);
    }

    #[test]
    fn indirect_blocks_begin_after_each_level_is_full() {
        let counts = [(12, 0), (13, 1), (268, 1), (269, 3), (524, 3), (525, 4)];
        for (blocks, expected) in counts {
            assert_eq!(indirect_blocks(blocks, 256), expected, "{blocks} blocks");
        }
        let double = 12 + 256 + 256 * 256;
        assert_eq!(indirect_blocks(double, 256), 1 + 1 + 256);
        assert_eq!(indirect_blocks(double + 1, 256), 1 + 1 + 256 + 3);
    }
}

//! Block bitmaps of disks after mkfs.ext4.
//!
//! Groups of 32,768 blocks of 4 KiB. With flex_bg every sixteenth group holds the bitmaps and inode
//! tables of sixteen groups, and with sparse_super some hold a backup of the superblock and the
//! descriptors: the free space of an empty disk is not one run.

use extant_mballoc::{BitmapSource, Block, Geometry, GroupNumber};
use extant_space::Result;

/// Blocks in a GiB.
const GIB: u64 = 1 << 18;
/// Blocks of a group.
pub(super) const GROUP: u32 = 32_768;

/// Groups per flex group.
const FLEX: u32 = 16;
/// Two bitmaps and an inode table of 512 blocks for each of them.
const FLEX_BLOCKS: u32 = FLEX * (1 + 1 + 512);
/// Superblock, descriptors, and descriptors reserved for growth.
const COPY_BLOCKS: u32 = 200;

/// `gibibytes` of blocks from block 0 on.
pub(super) fn geometry(gibibytes: u64) -> Geometry {
    Geometry {
        first: Block(0),
        end: Block(gibibytes * GIB),
        blocks_per_group: GROUP,
    }
}

/// A disk with nothing on it but its own metadata.
pub(super) struct Fresh(pub(super) Geometry);

impl BitmapSource for Fresh {
    fn free_blocks(&self, group: GroupNumber) -> u32 {
        self.0.length_of(group) - metadata_of(group)
    }

    fn load(&self, group: GroupNumber, used: &mut [u64]) -> Result<()> {
        let past = self.0.length_of(group)..used.len() as u32 * 64;
        for block in (0..metadata_of(group)).chain(past) {
            used[block as usize / 64] |= 1 << (block % 64);
        }
        Ok(())
    }
}

fn metadata_of(group: GroupNumber) -> u32 {
    let tables = if group.0.is_multiple_of(FLEX) {
        FLEX_BLOCKS
    } else {
        0
    };
    let copy = if holds_copy(group.0) { COPY_BLOCKS } else { 0 };
    tables + copy
}

/// sparse_super: groups 0 and 1 and the powers of 3, 5 and 7.
fn holds_copy(group: u32) -> bool {
    let is_power_of = |base: u32| {
        let mut power = 1;
        while power < group {
            power *= base;
        }
        power == group
    };
    group == 0 || [3, 5, 7].into_iter().any(is_power_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_lie_where_sparse_super_puts_them() {
        let groups: Vec<_> = (0..100).filter(|&group| holds_copy(group)).collect();
        assert_eq!(groups, [0, 1, 3, 5, 7, 9, 25, 27, 49, 81]);
    }

    #[test]
    fn bitmap_has_as_many_free_blocks_as_promised() {
        let fresh = Fresh(geometry(4));
        for group in (0..fresh.0.groups()).map(GroupNumber) {
            let mut used = vec![0; GROUP as usize / 64];
            fresh.load(group, &mut used).unwrap();
            let free: u32 = used.iter().map(|word| word.count_zeros()).sum();
            assert_eq!(free, fresh.free_blocks(group), "{group}");
        }
    }
}

//! Direct and indirect blocks: how ext2 and ext3 find a file's blocks.
//!
//! Model: `i_block` holds 15 numbers: 12 of data blocks, then one each of a block full of numbers,
//! of a block full of those, and of a block full of those again. A number 0 is a hole, of a
//! single block or of everything below.
//!
//! Format: docs/formats/ext4.md, "Block map".

use std::ops::Range;

use extant_space::Result;

use super::{Layout, LogicalBlock, PhysicalBlock};
use crate::fault::corrupt;
use crate::narrow::low32;

const DIRECT: u64 = 12;

/// The way from `i_block` to the number of a data block: one place in `i_block`, then one in
/// each block on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPath {
    logical: u64,
    steps: [u32; 4],
    length: usize,
}

impl BlockPath {
    /// The way to block `logical`; `None` beyond three levels.
    pub fn to(logical: LogicalBlock, layout: &Layout) -> Option<Self> {
        let per_block = u64::from(layout.block_bytes() / 4);
        let logical = u64::from(logical.0);
        let mut rest = logical;
        if rest < DIRECT {
            return Some(Self {
                logical,
                steps: [low32(rest), 0, 0, 0],
                length: 1,
            });
        }
        rest -= DIRECT;
        for level in 1..=3u32 {
            let reach = per_block.pow(level);
            if rest >= reach {
                rest -= reach;
                continue;
            }
            let mut steps = [low32(DIRECT) + level - 1, 0, 0, 0];
            for step in (1..=level as usize).rev() {
                steps[step] = low32(rest % per_block);
                rest /= per_block;
            }
            return Some(Self {
                logical,
                steps,
                length: level as usize + 1,
            });
        }
        None
    }

    /// The places: in `i_block` first.
    pub fn steps(&self) -> &[u32] {
        &self.steps[..self.length]
    }

    /// The logical blocks below the number that step `depth` leads to: the blocks of a hole there.
    pub fn span(&self, depth: usize, layout: &Layout) -> Range<u64> {
        assert!(depth < self.length);
        let per_block = u64::from(layout.block_bytes() / 4);
        let (mut blocks, mut before) = (1, 0);
        for &step in self.steps[depth + 1..self.length].iter().rev() {
            before += u64::from(step) * blocks;
            blocks *= per_block;
        }
        let start = self.logical - before;
        start..start + blocks
    }

    /// The logical blocks that are mapped by the same indirect block, or directly by `i_block`. The
    /// entry of the first of them is the first there.
    pub fn leaf(&self, layout: &Layout) -> Range<u64> {
        match self.length {
            1 => 0..DIRECT,
            length => self.span(length - 2, layout),
        }
    }
}

/// Data blocks that a map reaches.
pub fn reach(layout: &Layout) -> u64 {
    let per_block = u64::from(layout.block_bytes() / 4);
    DIRECT + per_block + per_block.pow(2) + per_block.pow(3)
}

/// The entry at `index` of `i_block` or of an indirect block; `None` is a hole.
///
/// # Errors
/// `Corrupt` if the block is outside the file system.
///
/// # Panics
/// If `bytes` has no such entry.
pub fn entry(bytes: &[u8], index: u32, layout: &Layout) -> Result<Option<PhysicalBlock>> {
    let at = index as usize * 4;
    let number = u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    let block = PhysicalBlock(number.into());
    if number == 0 {
        return Ok(None);
    }
    if !layout.holds(block, 1) {
        return Err(corrupt(
            "block map",
            format_args!("entry {index} names block {block}, outside the file system"),
        ));
    }
    Ok(Some(block))
}

/// Sets the number at `index`.
///
/// # Panics
/// When `bytes` has no such place, or the number more than 32 bits.
pub fn set_entry(bytes: &mut [u8], index: u32, block: Option<PhysicalBlock>) {
    let number = block.map_or(0, |block| block.0);
    let number = u32::try_from(number).expect("a block map reaches 2^32 blocks");
    let at = index as usize * 4;
    bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ext4::superblock::fixture;

    #[test]
    fn paths_at_the_edges_of_each_level() {
        let layout = *fixture().layout();
        let path = |logical| BlockPath::to(LogicalBlock(logical), &layout);
        let single = 12 + 1024;
        let double = single + 1024 * 1024;
        for (logical, steps) in [
            (0, &[0][..]),
            (11, &[11]),
            (12, &[12, 0]),
            (single - 1, &[12, 1023]),
            (single, &[13, 0, 0]),
            (double - 1, &[13, 1023, 1023]),
            (double, &[14, 0, 0, 0]),
        ] {
            assert_eq!(path(logical).unwrap().steps(), steps, "{logical}");
        }
        let end = double + 1024 * 1024 * 1024;
        assert_eq!(path(end - 1).unwrap().steps(), &[14, 1023, 1023, 1023]);
        assert_eq!(path(end), None);
        assert_eq!(u64::from(end), reach(&layout));
    }

    #[test]
    fn spans_and_leaves_begin_where_their_numbers_do() {
        let layout = *fixture().layout();
        let path = |logical| BlockPath::to(LogicalBlock(logical), &layout).unwrap();
        let single = 12 + 1024;
        let double = single + 1024 * 1024;
        assert_eq!(path(7).span(0, &layout), 7..8);
        assert_eq!(path(7).leaf(&layout), 0..12);
        assert_eq!(path(20).leaf(&layout), 12..single);
        let second = single + 1024;
        let found = path((second + 5) as u32);
        assert_eq!(found.leaf(&layout), second..second + 1024);
        assert_eq!(found.span(0, &layout), single..double);
        assert_eq!(found.span(2, &layout), second + 5..second + 6);
        let found = path((double + (1 << 20) + 1025) as u32);
        let next = double + (1 << 20);
        assert_eq!(found.span(1, &layout), next..next + (1 << 20));
        assert_eq!(found.leaf(&layout), next + 1024..next + 2048);
    }

    #[test]
    fn block_outside_is_refused() {
        let layout = *fixture().layout();
        let mut bytes = [0; 60];
        set_entry(&mut bytes, 3, Some(PhysicalBlock(131_072)));
        let error = entry(&bytes, 3, &layout).unwrap_err();
        assert_eq!(
            error.to_string(),
            "block map: entry 3 names block 131072, outside the file system"
        );
        set_entry(&mut bytes, 3, Some(PhysicalBlock(131_071)));
        assert_eq!(
            entry(&bytes, 3, &layout).unwrap(),
            Some(PhysicalBlock(131_071))
        );
        assert_eq!(entry(&bytes, 4, &layout).unwrap(), None);
    }
}

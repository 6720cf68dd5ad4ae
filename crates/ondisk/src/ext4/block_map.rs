//! Direct and indirect blocks: how ext2 and ext3 find a file's blocks.
//!
//! Model: `i_block` holds 15 numbers: 12 of data blocks, then one each of a block full of numbers,
//! of a block full of those, and of a block full of those again. A number 0 is a hole, of a
//! single block or of everything below.
//!
//! Format: docs/formats/ext4.md, "Block map".

use extant_space::Result;

use super::{Layout, LogicalBlock, PhysicalBlock};
use crate::fault::corrupt;

const DIRECT: u64 = 12;

/// The way from `i_block` to the number of a data block: one place in `i_block`, then one in
/// each block on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPath {
    steps: [u32; 4],
    length: usize,
}

impl BlockPath {
    /// The way to block `logical`; `None` past what three levels reach.
    pub fn to(logical: LogicalBlock, layout: &Layout) -> Option<Self> {
        let per_block = u64::from(layout.block_bytes() / 4);
        let mut rest = u64::from(logical.0);
        if rest < DIRECT {
            return Some(Self {
                steps: [rest as u32, 0, 0, 0],
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
            let mut steps = [DIRECT as u32 + level - 1, 0, 0, 0];
            for step in (1..=level as usize).rev() {
                steps[step] = (rest % per_block) as u32;
                rest /= per_block;
            }
            return Some(Self {
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

    /// Data blocks from `depth` steps on that lie below one number: what a hole there spans.
    pub fn blocks_below(&self, depth: usize, layout: &Layout) -> u64 {
        assert!(depth < self.length);
        let per_block = u64::from(layout.block_bytes() / 4);
        per_block.pow((self.length - 1 - depth) as u32)
    }
}

/// The number at `index` of `i_block` or of an indirect block; `None` is a hole.
///
/// # Errors
/// `Corrupt` when the block lies outside the file system.
///
/// # Panics
/// When `bytes` has no such place.
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
        assert_eq!(path(double).unwrap().blocks_below(1, &layout), 1 << 20);
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

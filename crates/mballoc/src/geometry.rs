//! Boundaries of groups.

use extant_space::{Error, ErrorKind, Result};

use crate::{Block, BlockRange, GroupNumber};

/// Groups are numbered below this, which the index's levels reach.
pub(crate) const GROUPS_MAX: u64 = 1 << 30;
/// A group's bitmap is at most one block of 64 KiB.
const BLOCKS_PER_GROUP_MAX: u32 = 64 * 1024 * 8;

/// The blocks that are divided into groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// First block of group 0 (`s_first_data_block`).
    pub first: Block,
    /// One past the last block (`s_blocks_count`).
    pub end: Block,
    /// Blocks of every group but the last, which may be shorter.
    pub blocks_per_group: u32,
}

impl Geometry {
    /// Refuses numbers that no file system has.
    pub(crate) fn validate(&self) -> Result<()> {
        let error = |detail: String| Err(Error::new(ErrorKind::InvalidArgument).detail(detail));
        if !(8..=BLOCKS_PER_GROUP_MAX).contains(&self.blocks_per_group) {
            return error(format!(
                "{} blocks per group, outside 8 to {BLOCKS_PER_GROUP_MAX}",
                self.blocks_per_group
            ));
        }
        if self.end <= self.first {
            return error(format!("no blocks between {} and {}", self.first, self.end));
        }
        if self.blocks().div_ceil(self.blocks_per_group.into()) > GROUPS_MAX {
            return error(format!("more than {GROUPS_MAX} groups"));
        }
        Ok(())
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        self.end.0 - self.first.0
    }

    /// Number of groups.
    pub fn groups(&self) -> u32 {
        self.blocks().div_ceil(self.blocks_per_group.into()) as u32
    }

    /// The group that holds `block`, and the block's place in it; `None` outside the file system.
    pub fn locate(&self, block: Block) -> Option<(GroupNumber, u32)> {
        if block < self.first || block >= self.end {
            return None;
        }
        let at = block.0 - self.first.0;
        let per_group = u64::from(self.blocks_per_group);
        Some((
            GroupNumber((at / per_group) as u32),
            (at % per_group) as u32,
        ))
    }

    /// First block of `group`.
    pub fn start_of(&self, group: GroupNumber) -> Block {
        Block(self.first.0 + u64::from(group.0) * u64::from(self.blocks_per_group))
    }

    /// Number of blocks in `group`, 0 past the last group.
    pub fn length_of(&self, group: GroupNumber) -> u32 {
        let rest = self.end.0.saturating_sub(self.start_of(group).0);
        rest.min(self.blocks_per_group.into()) as u32
    }

    /// Whether both are blocks of one group.
    pub(crate) fn is_one_group(&self, a: Block, b: Block) -> bool {
        match (self.locate(a), self.locate(b)) {
            (Some((a, _)), Some((b, _))) => a == b,
            _ => false,
        }
    }

    /// `count` blocks of `group` from its block `start` on.
    pub(crate) fn range_in(&self, group: GroupNumber, start: u32, count: u32) -> BlockRange {
        BlockRange::new(Block(self.start_of(group).0 + u64::from(start)), count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Geometry = Geometry {
        first: Block(1),
        end: Block(20_001),
        blocks_per_group: 8192,
    };

    #[test]
    fn last_group_is_short() {
        assert_eq!(SMALL.groups(), 3);
        assert_eq!(SMALL.length_of(GroupNumber(1)), 8192);
        assert_eq!(SMALL.length_of(GroupNumber(2)), 3616);
        assert_eq!(SMALL.length_of(GroupNumber(3)), 0);
    }

    #[test]
    fn block_outside_is_in_no_group() {
        assert_eq!(SMALL.locate(Block(0)), None);
        assert_eq!(SMALL.locate(Block(1)), Some((GroupNumber(0), 0)));
        assert_eq!(SMALL.locate(Block(20_000)), Some((GroupNumber(2), 3615)));
        assert_eq!(SMALL.locate(Block(20_001)), None);
    }

    #[test]
    fn impossible_geometry_is_refused_with_its_numbers() {
        let wrong = Geometry {
            blocks_per_group: 7,
            ..SMALL
        };
        let error = wrong.validate().unwrap_err();
        assert_eq!(error.to_string(), "7 blocks per group, outside 8 to 524288");
        let empty = Geometry {
            end: Block(1),
            ..SMALL
        };
        assert!(empty.validate().is_err());
    }
}

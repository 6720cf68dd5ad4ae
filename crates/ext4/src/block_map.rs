//! The block map of one file of ext2 or ext3, for reading: direct and indirect blocks.
//!
//! Model: a way of one to four numbers leads from the inode's `i_block` to every block of the file
//! (`extant_ondisk::ext4::block_map`). The last number of the way lies among others in its block, and those
//! behind it that continue it belong to the same answer; what is found is never longer than what one block says.
//!
//! Indirect blocks have neither a checksum nor a form: every number is checked when it is used.
//!
//! Format: docs/formats/ext4.md, "Block map".

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use extant_ondisk::ext4::block_map::{self, BlockPath};
use extant_ondisk::ext4::extent::{ExtentKind, LOGICAL_END, LeafEntry, WRITTEN_BLOCKS_MAX};
use extant_ondisk::ext4::{Layout, LogicalBlock, PhysicalBlock};
use extant_space::{Error, ErrorKind, Result};

use crate::system_zone::OffLimits;
use crate::tree::{Mapping, Nodes, TreeFormat};

/// Numbers of data blocks in `i_block`; those of indirect blocks follow.
const DIRECT: u32 = 12;

/// A block map to be read. Everything that has blocks is written.
pub(crate) struct BlockMap<'a, N> {
    i_block: &'a [u8; 60],
    nodes: &'a N,
    layout: &'a Layout,
    off_limits: Option<OffLimits<'a>>,
}

impl<'a, N: Nodes> BlockMap<'a, N> {
    /// The map that begins in `i_block`.
    pub(crate) fn new(i_block: &'a [u8; 60], nodes: &'a N, format: TreeFormat<'a>) -> Self {
        Self {
            i_block,
            nodes,
            layout: format.layout,
            off_limits: format.off_limits,
        }
    }

    /// What is at block `logical` and, as far as one block says it, behind: the answer begins there and may
    /// continue past its end. Block 2^32 - 1, which no file has, is a hole of its own.
    ///
    /// # Errors
    /// `Corrupt` for a number outside the file system, or what the store says.
    pub(crate) fn find(&self, logical: LogicalBlock) -> Result<Mapping> {
        let start = u64::from(logical.0);
        if start >= LOGICAL_END {
            return Ok(Mapping::Hole(LOGICAL_END..LOGICAL_END + 1));
        }
        let Some(path) = BlockPath::to(logical, self.layout) else {
            return Ok(Mapping::Hole(start..LOGICAL_END));
        };
        let (last, above) = path.steps().split_last().expect("at least one step");
        let mut block: Option<(PhysicalBlock, Arc<[u8]>)> = None;
        for (depth, &step) in above.iter().enumerate() {
            match self.number(block.as_ref(), step)? {
                Some(next) => {
                    self.check(next, 1)?;
                    block = Some((next, self.nodes.read(next, &|_| Ok(()))?));
                }
                None => {
                    let span = path.blocks_below(depth, self.layout);
                    let before: u64 = (depth + 1..path.steps().len())
                        .map(|below| {
                            u64::from(path.steps()[below]) * path.blocks_below(below, self.layout)
                        })
                        .sum();
                    return Ok(Mapping::Hole(
                        start..(start + span - before).min(LOGICAL_END),
                    ));
                }
            }
        }
        let count = match block {
            Some(_) => self.layout.block_bytes() / 4,
            None => DIRECT,
        };
        self.run(block.as_ref(), *last..count, start)
    }

    /// Visits what is in `range`, cut to it, in order, until `visit` breaks. Neighbours may belong together.
    ///
    /// # Errors
    /// As [`find`](Self::find); what lies before the error has been visited.
    pub(crate) fn walk<B>(
        &self,
        range: Range<u64>,
        mut visit: impl FnMut(Mapping) -> ControlFlow<B>,
    ) -> Result<ControlFlow<B>> {
        let mut at = range.start;
        let end = range.end.min(LOGICAL_END);
        while at < end {
            let found = match self.find(LogicalBlock(at as u32))? {
                Mapping::Hole(hole) => Mapping::Hole(at..hole.end.min(end)),
                Mapping::Extent(extent) => Mapping::Extent(LeafEntry {
                    blocks: u64::from(extent.blocks).min(end - at) as u16,
                    ..extent
                }),
            };
            at = found.logical().end;
            if let ControlFlow::Break(value) = visit(found) {
                return Ok(ControlFlow::Break(value));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// What the numbers of `indexes` say from the first on.
    fn run(
        &self,
        block: Option<&(PhysicalBlock, Arc<[u8]>)>,
        indexes: Range<u32>,
        start: u64,
    ) -> Result<Mapping> {
        let first = self.number(block, indexes.start)?;
        let most = u64::from(WRITTEN_BLOCKS_MAX).min(LOGICAL_END - start);
        let mut blocks = 1;
        for index in indexes.skip(1).take(most as usize - 1) {
            // A bad number ends the answer; it is refused when it is asked for.
            let expected = first.map(|first| PhysicalBlock(first.0 + blocks));
            match self.number(block, index) {
                Ok(number) if number == expected => blocks += 1,
                _ => break,
            }
        }
        if let Some(first) = first {
            self.check(first, blocks)?;
        }
        Ok(match first {
            None => Mapping::Hole(start..start + blocks),
            Some(physical) => Mapping::Extent(LeafEntry {
                logical: LogicalBlock(start as u32),
                physical,
                blocks: blocks as u16,
                kind: ExtentKind::Written,
            }),
        })
    }

    fn check(&self, start: PhysicalBlock, blocks: u64) -> Result<()> {
        match self.off_limits {
            Some(off_limits) => off_limits.check(start, blocks),
            None => Ok(()),
        }
    }

    fn number(
        &self,
        block: Option<&(PhysicalBlock, Arc<[u8]>)>,
        index: u32,
    ) -> Result<Option<PhysicalBlock>> {
        match block {
            None => block_map::entry(self.i_block, index, self.layout),
            Some((number, bytes)) => block_map::entry(bytes, index, self.layout).map_err(|error| {
                Error::new(ErrorKind::Corrupt).detail(format!("indirect block {number}: {error}"))
            }),
        }
    }
}

#[cfg(test)]
mod tests;

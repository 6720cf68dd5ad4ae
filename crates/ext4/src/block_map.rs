//! The block map of one file of ext2 or ext3: direct and indirect blocks.
//!
//! Model: a path of one to four numbers leads from the inode's `i_block` to every block of the file
//! (`extant_ondisk::ext4::block_map`). The block that holds the last number of a path is a *leaf*,
//! as is the direct part of `i_block`. A lookup result is never longer than one leaf, unless a
//! whole indirect block is missing. A change (`edit`) concerns one leaf and the indirect blocks
//! above it.
//!
//! Indirect blocks have neither a checksum nor a header: every number is checked when it is used.
//!
//! Nothing locks here: the caller holds the inode's lock, shared for [`BlockMap`] and exclusive for
//! [`BlockMapMut`]. Format: docs/formats/ext4.md, "Block map".

mod edit;
#[cfg(test)]
mod tests;

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use extant_ondisk::ext4::block_map::{self, BlockPath};
use extant_ondisk::ext4::extent::{ExtentKind, LOGICAL_END, LeafEntry};
use extant_ondisk::ext4::{Layout, LogicalBlock, PhysicalBlock};
use extant_space::{Error, ErrorKind, Result};

use crate::system_zone::OffLimits;
use crate::tree::{Mapping, Nodes, TreeFormat};

pub(crate) use edit::{BlockMapMut, DEPTH, PHYSICAL_END};

/// A block map to be read. Everything that has blocks is written.
pub(crate) struct BlockMap<'a, N> {
    i_block: &'a [u8; 60],
    nodes: &'a N,
    format: TreeFormat<'a>,
}

/// An indirect block.
type Indirect = (PhysicalBlock, Arc<[u8]>);

/// The logical blocks that one change can concern, `logical` among them.
pub(crate) fn leaf(logical: LogicalBlock, layout: &Layout) -> Range<u64> {
    match BlockPath::to(logical, layout) {
        Some(path) => path.leaf(layout),
        None => end(layout)..LOGICAL_END,
    }
}

/// Logical blocks that a map reaches.
fn end(layout: &Layout) -> u64 {
    block_map::reach(layout).min(LOGICAL_END)
}

impl<'a, N: Nodes> BlockMap<'a, N> {
    /// The map that begins in `i_block`.
    pub(crate) fn new(i_block: &'a [u8; 60], nodes: &'a N, format: TreeFormat<'a>) -> Self {
        Self {
            i_block,
            nodes,
            format,
        }
    }

    /// Maps block `logical`: the extent or the hole around it, limited to its leaf or to the
    /// missing indirect block. Block 2^32 - 1, which no file has, is a hole of its own.
    ///
    /// # Errors
    /// `Corrupt` for a block number outside the file system; errors of the store.
    pub(crate) fn find(&self, logical: LogicalBlock) -> Result<Mapping> {
        let layout = self.format.layout;
        if u64::from(logical.0) >= LOGICAL_END {
            return Ok(Mapping::Hole(LOGICAL_END..LOGICAL_END + 1));
        }
        let Some(path) = BlockPath::to(logical, layout) else {
            return Ok(Mapping::Hole(end(layout)..LOGICAL_END));
        };
        let (last, above) = path.steps().split_last().expect("at least one step");
        let mut block: Option<Indirect> = None;
        for (depth, &step) in above.iter().enumerate() {
            match number(self.i_block, block.as_ref(), step, layout)? {
                Some(next) => {
                    check(self.format.off_limits, next, 1)?;
                    block = Some((next, self.nodes.read(next, &|_| Ok(()))?));
                }
                None => {
                    let span = path.span(depth, layout);
                    return Ok(Mapping::Hole(span.start..span.end.min(LOGICAL_END)));
                }
            }
        }
        let leaf = path.leaf(layout);
        self.run(block.as_ref(), leaf.start..leaf.end.min(LOGICAL_END), *last)
    }

    /// Visits the mappings in `range`, clipped to it, in order, until `visit` breaks. Neighbours
    /// may be contiguous.
    ///
    /// # Errors
    /// As [`find`](Self::find); mappings before the error have been visited.
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
                Mapping::Extent(extent) => {
                    let skipped = at - u64::from(extent.logical.0);
                    Mapping::Extent(LeafEntry {
                        logical: LogicalBlock(at as u32),
                        physical: PhysicalBlock(extent.physical.0 + skipped),
                        blocks: (extent.logical_end().min(end) - at) as u16,
                        ..extent
                    })
                }
            };
            at = found.logical().end;
            if let ControlFlow::Break(value) = visit(found) {
                return Ok(ControlFlow::Break(value));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// The run of numbers of a leaf that the one at `index` belongs to.
    fn run(&self, block: Option<&Indirect>, leaf: Range<u64>, index: u32) -> Result<Mapping> {
        let layout = self.format.layout;
        let found = number(self.i_block, block, index, layout)?;
        let continues = |&other: &u32| {
            // A bad number ends the run; it is refused when it is asked for.
            let expected = found.map(|found| {
                let place = found.0 + u64::from(other);
                PhysicalBlock(place.wrapping_sub(index.into()))
            });
            matches!(number(self.i_block, block, other, layout), Ok(number) if number == expected)
        };
        let count = (leaf.end - leaf.start) as u32;
        let before = (0..index).rev().take_while(continues).count() as u32;
        let behind = (index + 1..count).take_while(continues).count() as u32;
        let start = leaf.start + u64::from(index - before);
        let blocks = before + 1 + behind;
        let Some(found) = found else {
            return Ok(Mapping::Hole(start..start + u64::from(blocks)));
        };
        let physical = PhysicalBlock(found.0 - u64::from(before));
        check(self.format.off_limits, physical, blocks.into())?;
        Ok(Mapping::Extent(LeafEntry {
            logical: LogicalBlock(start as u32),
            physical,
            blocks: blocks as u16,
            kind: ExtentKind::Written,
        }))
    }
}

fn check(off_limits: Option<OffLimits<'_>>, start: PhysicalBlock, blocks: u64) -> Result<()> {
    match off_limits {
        Some(off_limits) => off_limits.check(start, blocks),
        None => Ok(()),
    }
}

/// The number at `index` of an indirect block, or of `i_block`.
fn number(
    i_block: &[u8; 60],
    block: Option<&Indirect>,
    index: u32,
    layout: &Layout,
) -> Result<Option<PhysicalBlock>> {
    match block {
        None => block_map::entry(i_block, index, layout),
        Some((number, bytes)) => block_map::entry(bytes, index, layout).map_err(|error| {
            Error::new(ErrorKind::Corrupt).detail(format!("indirect block {number}: {error}"))
        }),
    }
}

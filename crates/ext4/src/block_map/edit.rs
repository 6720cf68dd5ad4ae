//! Changing a block map: filling and making holes.
//!
//! A step changes the entries of one leaf, and creates or removes the indirect blocks above it. It
//! reads and creates all it needs before its first change: it fails without effect, or completes.
//!
//! Invariant: no step leaves an empty indirect block. An empty one of another implementation is a
//! hole, and is freed with the blocks around it.

use std::ops::Range;

use extant_ondisk::ext4::block_map::{self, BlockPath};
use extant_ondisk::ext4::extent::{ExtentKind, LeafEntry};
use extant_ondisk::ext4::{LogicalBlock, PhysicalBlock};
use extant_space::{Corruption, Error, ErrorKind, Result};
use smallvec::SmallVec;

use super::{Indirect, check, end, number};
use crate::tree::{NodesMut, TreeFormat};

/// A step changes, creates or removes no more blocks than one of an extent tree of this depth: at
/// most three.
pub(crate) const DEPTH: u16 = 1;

/// Numbers of blocks have 32 bits.
pub(crate) const PHYSICAL_END: PhysicalBlock = PhysicalBlock(1 << 32);

/// A block map to be changed. `i_block` changes in place; the inode is the caller's to write.
pub(crate) struct BlockMapMut<'a, N> {
    i_block: &'a mut [u8; 60],
    nodes: &'a mut N,
    format: TreeFormat<'a>,
}

/// The existing indirect blocks on the path to a leaf: that of `i_block` first.
type IndirectPath = SmallVec<[Indirect; 3]>;

impl<'a, N: NodesMut> BlockMapMut<'a, N> {
    /// The map that begins in `i_block`.
    pub(crate) fn new(i_block: &'a mut [u8; 60], nodes: &'a mut N, format: TreeFormat<'a>) -> Self {
        Self {
            i_block,
            nodes,
            format,
        }
    }

    /// Puts an extent into a hole of one leaf. One step.
    ///
    /// # Errors
    /// `Corrupt` when the blocks are not a hole; `TooLarge` beyond the reach of a map; `NoSpace`
    /// when an indirect block is needed and cannot be had. Nothing has changed then.
    ///
    /// # Panics
    /// When the extent cannot be stored: unwritten, longer than the leaf, or past [`PHYSICAL_END`].
    pub(crate) fn insert(&mut self, extent: LeafEntry) -> Result<()> {
        let layout = self.format.layout;
        let path = BlockPath::to(extent.logical, layout);
        let path = path.ok_or_else(|| Error::new(ErrorKind::TooLarge))?;
        let physical_end = extent.physical.0 + u64::from(extent.blocks);
        assert!(
            extent.kind == ExtentKind::Written
                && extent.logical_end() <= path.leaf(layout).end
                && physical_end <= PHYSICAL_END.0,
            "{extent:?} cannot be stored"
        );
        let (&first, steps) = path.steps().split_last().expect("at least one step");
        let indexes = first..first + u32::from(extent.blocks);
        let way = self.descend(&path)?;
        let found = way.len();
        if found == steps.len() {
            for index in indexes.clone() {
                if number(self.i_block, way.last(), index, layout)?.is_some() {
                    return Err(corrupt(format!(
                        "block map: blocks {} to {} are taken already",
                        extent.logical,
                        extent.logical_end()
                    )));
                }
            }
        }
        let mut blocks: SmallVec<[PhysicalBlock; 3]> =
            way.iter().map(|(block, _)| *block).collect();
        // The bytes of a block that changes have no other user.
        drop(way);
        while blocks.len() < steps.len() {
            match self.nodes.create(extent.physical, Some(PHYSICAL_END)) {
                Ok(block) => blocks.push(block),
                Err(error) => {
                    for block in blocks.drain(found..) {
                        self.nodes.remove(block);
                    }
                    return Err(error);
                }
            }
        }
        let mut above = found.checked_sub(1).map(|last| blocks[last]);
        for (&step, &block) in steps.iter().zip(&blocks).skip(found) {
            self.change(above, |bytes| {
                block_map::set_entry(bytes, step, Some(block));
            });
            above = Some(block);
        }
        self.change(above, |bytes| {
            for (index, block) in indexes.clone().zip(extent.physical.0..) {
                block_map::set_entry(bytes, index, Some(PhysicalBlock(block)));
            }
        });
        Ok(())
    }

    /// Makes a hole of those blocks of `range` that the last leaf with any of them holds, and
    /// removes indirect blocks without numbers on the way there. One step. `freed` receives the
    /// extents without references. Returns the remaining range, which may still hold blocks;
    /// nothing, where there is nothing to be removed.
    ///
    /// # Errors
    /// `Corrupt`, or an error of the store. Nothing has been removed then.
    pub(crate) fn remove_last(
        &mut self,
        range: Range<u64>,
        freed: &mut dyn FnMut(LeafEntry),
    ) -> Result<Option<Range<u64>>> {
        let layout = self.format.layout;
        let mut at = range.end.min(end(layout));
        while at > range.start {
            let last = LogicalBlock((at - 1) as u32);
            let path = BlockPath::to(last, layout).expect("a block that a map reaches");
            let way = self.descend(&path)?;
            let steps = path.steps();
            let seen = if way.len() + 1 == steps.len() {
                path.leaf(layout)
            } else {
                path.span(way.len(), layout)
            };
            if self.remove_below(&path, way, range.start, freed)? {
                return Ok((seen.start > range.start).then_some(range.start..seen.start));
            }
            at = seen.start;
        }
        Ok(None)
    }

    /// Removes the numbers of a leaf from that of block `start` to the one that `path` leads to,
    /// and the blocks of `way` that have no others. Whether there was anything.
    fn remove_below(
        &mut self,
        path: &BlockPath,
        way: IndirectPath,
        start: u64,
        freed: &mut dyn FnMut(LeafEntry),
    ) -> Result<bool> {
        let (&last, steps) = path.steps().split_last().expect("at least one step");
        let mut cleared = 0..0;
        let mut removed: SmallVec<[LeafEntry; 8]> = SmallVec::new();
        if way.len() == steps.len() {
            let leaf = path.leaf(self.format.layout);
            cleared = start.saturating_sub(leaf.start) as u32..last + 1;
            self.collect(way.last(), leaf.start, cleared.clone(), &mut removed)?;
        }
        let mut kept = way.len();
        for (depth, (_, bytes)) in way.iter().enumerate().rev() {
            let (before, behind) = (cleared.start as usize * 4, cleared.end as usize * 4);
            if !is_zero(&bytes[..before]) || !is_zero(&bytes[behind..]) {
                break;
            }
            kept = depth;
            cleared = steps[depth]..steps[depth] + 1;
        }
        if removed.is_empty() && kept == way.len() {
            return Ok(false);
        }
        let blocks: SmallVec<[PhysicalBlock; 3]> = way.iter().map(|(block, _)| *block).collect();
        drop(way);
        let above = kept.checked_sub(1).map(|last| blocks[last]);
        self.change(above, |bytes| {
            cleared
                .clone()
                .for_each(|index| block_map::set_entry(bytes, index, None));
        });
        for &block in &blocks[kept..] {
            self.nodes.remove(block);
        }
        removed.into_iter().for_each(freed);
        Ok(true)
    }

    /// The extents that the numbers at `indexes` of a leaf are; it begins with block `first`.
    fn collect(
        &self,
        leaf: Option<&Indirect>,
        first: u64,
        indexes: Range<u32>,
        extents: &mut SmallVec<[LeafEntry; 8]>,
    ) -> Result<()> {
        let mut next = None;
        for index in indexes {
            let found = number(self.i_block, leaf, index, self.format.layout)?;
            match (found, extents.last_mut()) {
                (None, _) => {}
                (Some(_), Some(extent)) if found == next => extent.blocks += 1,
                (Some(physical), _) => extents.push(LeafEntry {
                    logical: LogicalBlock((first + u64::from(index)) as u32),
                    physical,
                    blocks: 1,
                    kind: ExtentKind::Written,
                }),
            }
            next = found.map(|block| PhysicalBlock(block.0 + 1));
        }
        for extent in extents {
            check(
                self.format.off_limits,
                extent.physical,
                extent.blocks.into(),
            )?;
        }
        Ok(())
    }

    /// The indirect blocks on the way to a leaf, which may be changed.
    fn descend(&mut self, path: &BlockPath) -> Result<IndirectPath> {
        let (_, steps) = path.steps().split_last().expect("at least one step");
        let mut way = IndirectPath::new();
        for &step in steps {
            let Some(next) = number(self.i_block, way.last(), step, self.format.layout)? else {
                break;
            };
            if way.iter().any(|(block, _)| *block == next) {
                return Err(corrupt(format!("indirect block {next} leads to itself")));
            }
            check(self.format.off_limits, next, 1)?;
            way.push((next, self.nodes.hold(next, &|_| Ok(()))?));
        }
        Ok(way)
    }

    fn change(&mut self, block: Option<PhysicalBlock>, mut change: impl FnMut(&mut [u8])) {
        match block {
            None => change(self.i_block),
            Some(block) => self.nodes.change(block, &mut change),
        }
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

fn corrupt(problem: String) -> Error {
    Error::corrupt(Corruption::other("block map", problem.clone()), problem)
}

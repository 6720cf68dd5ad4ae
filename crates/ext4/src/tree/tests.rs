//! One file's tree over a store in memory, checked after every step.

mod cost;
mod deep;
mod lengths;
mod memory;
mod model;
mod scale;
mod shapes;
mod trouble;
mod verify;

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};

use extant_ondisk::ext4::extent::{ExtentKind, ExtentNode, LOGICAL_END, LeafEntry, ROOT_BYTES};
use extant_ondisk::ext4::{
    InodeNumber, InodeSeed, Layout, LogicalBlock, PhysicalBlock, Seed, Superblock,
};
use extant_space::{ErrorKind, Result};

use super::*;
use memory::{Memory, Trust};
use verify::{Part, Summary};

/// Bytes of the smallest node that a tree can have: 6 entries.
const TINY: usize = 88;

/// A file, of which every step is checked.
struct File {
    root: [u8; ROOT_BYTES],
    memory: Memory,
    layout: Layout,
    seed: Option<InodeSeed>,
}

impl File {
    fn new(node_bytes: usize) -> Self {
        let mut root = [0; ROOT_BYTES];
        init(&mut root);
        Self {
            root,
            memory: Memory::new(node_bytes),
            layout: layout(),
            seed: Some(seed()),
        }
    }

    /// Without checksums and repeated validation: for many extents.
    fn quick(node_bytes: usize) -> Self {
        let mut file = Self::new(node_bytes);
        file.seed = None;
        file.memory.trust = Trust::Cached;
        file
    }

    /// With `count` extents of one block, `stride` blocks apart.
    fn with_extents(mut self, count: u32, stride: u32) -> Self {
        for index in 0..count {
            self.raw().insert(written(index * stride, 1)).unwrap();
        }
        self
    }

    /// Another with the same contents.
    fn copy(&self) -> Self {
        Self {
            memory: self.memory.copy(),
            ..*self
        }
    }

    fn tree(&self) -> Tree<'_, Memory> {
        let format = TreeFormat {
            layout: &self.layout,
            seed: self.seed,
            off_limits: None,
        };
        Tree::new(&self.root, &self.memory, format)
    }

    /// To change it without a check.
    fn raw(&mut self) -> TreeMut<'_, Memory> {
        let format = TreeFormat {
            layout: &self.layout,
            seed: self.seed,
            off_limits: None,
        };
        TreeMut::new(&mut self.root, &mut self.memory, format)
    }

    /// Makes one step; it must not touch more nodes than allowed, and an error must change nothing.
    fn step<T>(&mut self, step: impl FnOnce(&mut TreeMut<'_, Memory>) -> Result<T>) -> Result<T> {
        let before = (self.root, self.memory.contents());
        let cost = step_cost(self.depth());
        self.memory.touched.clear();
        self.memory.created = 0;
        let result = step(&mut self.raw());
        assert!(self.memory.created <= cost.created);
        assert!(self.memory.touched.len() as u32 <= cost.touched);
        if result.is_err() {
            assert!(before == (self.root, self.memory.contents()), "half-done");
        }
        self.check();
        result
    }

    fn insert(&mut self, extent: LeafEntry) -> Result<()> {
        self.step(|tree| tree.insert(extent))
    }

    fn remove(&mut self, range: Range<u64>) -> Result<Vec<LeafEntry>> {
        let mut freed = Vec::new();
        let mut rest = Some(range);
        while let Some(range) = rest {
            rest = self.step(|tree| tree.remove_last(range, &mut |run| freed.push(run)))?;
        }
        Ok(freed)
    }

    fn convert(&mut self, range: Range<u64>, kind: ExtentKind) -> Result<()> {
        let mut rest = Some(range);
        while let Some(range) = rest {
            rest = self.step(|tree| tree.convert_next(range, kind))?;
        }
        Ok(())
    }

    fn shift(&mut self, from: u64, by: u64, direction: Direction) -> Result<()> {
        let mut rest = self.step(|tree| tree.shift(from, by, direction))?;
        while let Some(shift) = rest {
            rest = self.step(|tree| tree.shift_next(&shift))?;
        }
        Ok(())
    }

    /// Everything is valid, and the store has the tree's nodes and no others.
    fn check(&self) -> Summary {
        let mut nodes = BTreeSet::new();
        let summary = self.tree().verify(|part| {
            if let Part::Node(block) = part {
                nodes.insert(block);
            }
        });
        let summary = summary.unwrap();
        assert_eq!(summary.nodes, nodes.len() as u64);
        assert!(
            nodes.iter().eq(self.memory.blocks.keys()),
            "nodes leaked or lost"
        );
        summary
    }

    fn depth(&self) -> u16 {
        ExtentNode::parse_root(&self.root, &self.layout)
            .unwrap()
            .depth()
    }

    fn extents(&self) -> Vec<LeafEntry> {
        let mut extents = Vec::new();
        let mut at = 0;
        let walked = self.tree().walk(0..u64::MAX, |part| {
            assert_eq!(part.logical().start, at, "parts follow one another");
            at = part.logical().end;
            if let Mapping::Extent(extent) = part {
                extents.push(extent);
            }
            ControlFlow::<()>::Continue(())
        });
        assert_eq!(walked.unwrap(), ControlFlow::Continue(()));
        assert_eq!(at, LOGICAL_END);
        extents
    }

    /// First block and length of every extent.
    fn lengths(&self) -> Vec<(u32, u16)> {
        let extents = self.extents();
        extents
            .iter()
            .map(|extent| (extent.logical.0, extent.blocks))
            .collect()
    }
}

/// 512 MiB in blocks of 4 KiB.
fn layout() -> Layout {
    let bytes = include_bytes!("../../../ondisk/tests/data/superblock.bin");
    *Superblock::parse(bytes).unwrap().layout()
}

fn seed() -> InodeSeed {
    Seed::from_stored(1).inode(InodeNumber(12), 7)
}

/// An extent whose place follows from its logical block, so that neighbours continue each other.
fn written(logical: u32, blocks: u16) -> LeafEntry {
    LeafEntry {
        logical: LogicalBlock(logical),
        physical: PhysicalBlock(1000 + u64::from(logical)),
        blocks,
        kind: ExtentKind::Written,
    }
}

fn unwritten(logical: u32, blocks: u16) -> LeafEntry {
    LeafEntry {
        kind: ExtentKind::Unwritten,
        ..written(logical, blocks)
    }
}

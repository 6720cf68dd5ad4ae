//! A store in memory that fails on request.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use extant_ondisk::ext4::PhysicalBlock;
use extant_space::{Error, ErrorKind, Result};

use crate::tree::{Nodes, NodesMut, Validator};

/// The first block of nodes; blocks of files in tests are below.
const FIRST: u64 = 100_000;

/// Validates every read, so that every changed block has to be valid and sealed.
pub(super) struct Memory {
    node_bytes: usize,
    pub(super) blocks: BTreeMap<PhysicalBlock, Arc<[u8]>>,
    next: u64,
    /// Blocks that were changed, created or removed.
    pub(super) touched: BTreeSet<PhysicalBlock>,
    /// Number of blocks that were created.
    pub(super) created: u32,
    /// Number of reads and creations that still succeed.
    pub(super) reads_left: Cell<usize>,
    pub(super) creates_left: usize,
    pub(super) trust: Trust,
}

/// Whether bytes were validated before.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// It was read from the disk.
    Validator,
    /// It is in the cache, perhaps as something else.
    Cached,
}

impl Memory {
    pub(super) fn new(node_bytes: usize) -> Self {
        Self {
            node_bytes,
            blocks: BTreeMap::new(),
            next: FIRST,
            touched: BTreeSet::new(),
            created: 0,
            reads_left: Cell::new(usize::MAX),
            creates_left: usize::MAX,
            trust: Trust::Validator,
        }
    }

    /// The bytes of all blocks.
    pub(super) fn contents(&self) -> BTreeMap<PhysicalBlock, Vec<u8>> {
        let blocks = self.blocks.iter();
        blocks
            .map(|(&block, bytes)| (block, bytes.to_vec()))
            .collect()
    }

    /// A store with the same contents.
    pub(super) fn copy(&self) -> Self {
        let blocks = self.contents().into_iter();
        Self {
            blocks: blocks.map(|(block, bytes)| (block, bytes.into())).collect(),
            touched: BTreeSet::new(),
            reads_left: self.reads_left.clone(),
            ..*self
        }
    }

    /// Changes a block without the tree.
    pub(super) fn spoil(&mut self, block: PhysicalBlock, change: impl FnOnce(&mut [u8])) {
        change(Arc::get_mut(self.blocks.get_mut(&block).expect("a node")).expect("it has no user"));
    }
}

impl Nodes for Memory {
    fn read(&self, block: PhysicalBlock, validate: Validator<'_>) -> Result<Arc<[u8]>> {
        let left = self.reads_left.get().checked_sub(1);
        self.reads_left
            .set(left.ok_or_else(|| Error::new(ErrorKind::Io))?);
        let bytes = self.blocks.get(&block);
        let bytes = bytes.ok_or_else(|| Error::new(ErrorKind::Io).detail("no such block"))?;
        if self.trust == Trust::Validator {
            validate(bytes)?;
        }
        Ok(Arc::clone(bytes))
    }
}

impl NodesMut for Memory {
    fn hold(&mut self, block: PhysicalBlock, validate: Validator<'_>) -> Result<Arc<[u8]>> {
        self.read(block, validate)
    }

    fn change(&mut self, block: PhysicalBlock, change: &mut dyn FnMut(&mut [u8])) {
        self.touched.insert(block);
        let bytes = self.blocks.get_mut(&block).expect("held or created");
        change(Arc::get_mut(bytes).expect("the bytes have no other user"));
    }

    fn create(&mut self, goal: PhysicalBlock, _: Option<PhysicalBlock>) -> Result<PhysicalBlock> {
        assert!(goal.0 > 0, "a goal");
        let left = self.creates_left.checked_sub(1);
        self.creates_left = left.ok_or_else(|| Error::new(ErrorKind::NoSpace))?;
        let block = PhysicalBlock(self.next);
        self.next += 1;
        self.created += 1;
        self.touched.insert(block);
        self.blocks.insert(block, vec![0; self.node_bytes].into());
        Ok(block)
    }

    fn remove(&mut self, block: PhysicalBlock) {
        self.touched.insert(block);
        self.blocks.remove(&block).expect("removed once");
    }
}

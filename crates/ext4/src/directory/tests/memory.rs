//! Blocks in memory, that can run out, fail to be read, and be given out twice.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;

use extant_ondisk::ext4::LogicalBlock;
use extant_space::{Error, ErrorKind, Result};

use super::super::{DirectoryBlocks, DirectoryBlocksMut, DirectoryContext, Shape};

/// The source of reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The bytes are validated.
    Disk,
    /// They were, perhaps as another kind of block.
    Cache,
}

#[derive(Clone)]
pub(super) struct Memory {
    pub(super) blocks: Vec<Arc<[u8]>>,
    pub(super) shape: Shape,
    pub(super) source: Source,
    /// Blocks there is still space for.
    pub(super) space: u32,
    /// Reads that still succeed.
    pub(super) reads: Cell<u32>,
    pub(super) changed: BTreeSet<u32>,
    pub(super) appended: u32,
    /// The next block that is appended is this one too.
    pub(super) append_again: Option<u32>,
    /// Two numbers of one block.
    twins: Option<[u32; 2]>,
    block_bytes: usize,
}

impl Memory {
    pub(super) fn new(context: &DirectoryContext) -> Self {
        Self::of(Vec::new(), context)
    }

    pub(super) fn of(blocks: Vec<Arc<[u8]>>, context: &DirectoryContext) -> Self {
        Self {
            blocks,
            shape: context.flagged,
            source: Source::Disk,
            space: u32::MAX,
            reads: Cell::new(u32::MAX),
            changed: BTreeSet::new(),
            appended: 0,
            append_again: None,
            twins: None,
            block_bytes: context.format.block_bytes as usize,
        }
    }

    /// Changes bytes without going through the cache.
    pub(super) fn spoil(&mut self, index: u32, change: impl FnOnce(&mut [u8])) {
        let mut block = self.blocks[index as usize].to_vec();
        change(&mut block);
        self.blocks[index as usize] = block.into();
    }

    /// Blocks changed and appended since the last call.
    pub(super) fn take_counts(&mut self) -> (u32, u32) {
        let changed = std::mem::take(&mut self.changed).len() as u32;
        (changed, std::mem::take(&mut self.appended))
    }
}

impl DirectoryBlocks for Memory {
    fn blocks(&self) -> u32 {
        self.blocks.len() as u32
    }

    fn read(
        &self,
        index: LogicalBlock,
        validate: &dyn Fn(&[u8]) -> Result<()>,
    ) -> Result<Arc<[u8]>> {
        let reads = self.reads.get().checked_sub(1);
        self.reads
            .set(reads.ok_or_else(|| Error::new(ErrorKind::Io))?);
        let block = &self.blocks[index.0 as usize];
        if self.source == Source::Disk {
            validate(block)?;
        }
        Ok(Arc::clone(block))
    }
}

impl DirectoryBlocksMut for Memory {
    fn change(&mut self, index: LogicalBlock, change: &mut dyn FnMut(&mut [u8])) -> Result<()> {
        self.changed.insert(index.0);
        let block = &mut self.blocks[index.0 as usize];
        if Arc::get_mut(block).is_none() {
            *block = block.to_vec().into();
        }
        change(Arc::get_mut(block).expect("a copy of its own"));
        if let Some(twins) = self.twins.filter(|twins| twins.contains(&index.0)) {
            let block = Arc::clone(&self.blocks[index.0 as usize]);
            for twin in twins {
                self.blocks[twin as usize] = Arc::clone(&block);
            }
        }
        Ok(())
    }

    fn append(&mut self) -> Result<LogicalBlock> {
        let space = self.space.checked_sub(1);
        self.space = space.ok_or_else(|| Error::new(ErrorKind::NoSpace))?;
        self.appended += 1;
        self.blocks.push(vec![0; self.block_bytes].into());
        let new = self.blocks() - 1;
        if let Some(old) = self.append_again.take() {
            self.blocks[old as usize] = Arc::clone(&self.blocks[new as usize]);
            self.twins = Some([old, new]);
        }
        Ok(LogicalBlock(new))
    }

    fn set_shape(&mut self, shape: Shape) {
        self.shape = shape;
    }
}

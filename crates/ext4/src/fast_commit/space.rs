//! The blocks of the device during a replay.
//!
//! Model: a record may assign a block to one file before a later one removes it from another. So
//! bitmaps do not change until the end, and changes are kept as a balance, which must be consistent
//! at the end, one block for one file ([`Space::settle`]).
//!
//! Tree nodes and directory blocks that the replay itself needs are allocated from blocks that are
//! free now and not given to a file by any record, whatever the order.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use extant_jbd2::Extension;
use extant_ondisk::ext4::PhysicalBlock;
use extant_space::{Error, ErrorKind, Result};

use super::Commits;
use super::replay::too_large;
use crate::cache::Block;
use crate::groups::group_credits;
use crate::inode_cell::InodeState;
use crate::state::FsState;
use crate::transaction::Transaction;
use crate::tree::{Nodes, NodesMut, Validator};

/// Blocks that one block's bitmap has at most.
const RANGE_MAX: u64 = 1 << 19;

pub(super) struct Space<'a> {
    pub(super) fs: &'a FsState,
    pub(super) transaction: &'a Transaction<'a>,
    commits: &'a Commits,
    /// First block, end, and the new owner.
    balance: RefCell<Vec<(u64, i64)>>,
    /// Blocks taken for nodes and directories.
    own: RefCell<BTreeSet<PhysicalBlock>>,
}

impl<'a> Space<'a> {
    pub(super) fn new(
        fs: &'a FsState,
        transaction: &'a Transaction<'a>,
        commits: &'a Commits,
    ) -> Self {
        Self {
            fs,
            transaction,
            commits,
            balance: RefCell::default(),
            own: RefCell::default(),
        }
    }

    /// Makes sure that `blocks` more blocks of metadata can be changed.
    pub(super) fn reserve(&self, blocks: u32) -> Result<()> {
        match self.transaction.reserve(blocks) {
            Extension::Granted => Ok(()),
            Extension::Refused => Err(too_large()),
        }
    }

    /// A file has these blocks from now on.
    pub(super) fn gain(&self, start: PhysicalBlock, blocks: u64) {
        self.note(start, blocks, 1);
    }

    /// A file has these blocks no more.
    pub(super) fn lose(&self, start: PhysicalBlock, blocks: u64) {
        self.note(start, blocks, -1);
    }

    fn note(&self, start: PhysicalBlock, blocks: u64, change: i64) {
        let mut balance = self.balance.borrow_mut();
        balance.push((start.0, change));
        balance.push((start.0 + blocks, -change));
    }

    /// A block for metadata of a file, near `goal`, which gains it.
    pub(super) fn take(&self, goal: PhysicalBlock) -> Result<PhysicalBlock> {
        let mut own = self.own.borrow_mut();
        let block = self.fs.groups.find_free(goal, |block| {
            own.contains(&block) || self.commits.give(block.0)
        })?;
        own.insert(block);
        self.gain(block, 1);
        Ok(block)
    }

    /// Whether blocks were given to a file that another one still has.
    pub(super) fn has_conflict(&self) -> Result<bool> {
        for (range, change) in self.changes() {
            if change > 1 || change == 1 && !self.fs.groups.are_free(range)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Brings the bitmaps up to date.
    ///
    /// # Errors
    /// `Corrupt` when a block would belong to two files, or was taken from one that did not have
    /// it.
    pub(super) fn settle(&self) -> Result<()> {
        let groups = &self.fs.groups;
        for (range, change) in self.changes() {
            let count = u32::try_from(range.end - range.start).expect("cut to less");
            // At most the end of one group and the start of another, or one whole small one and
            // parts of two.
            let most = 2 + count / self.fs.layout.blocks_per_group();
            self.reserve(group_credits(most))?;
            match change {
                1 => groups.use_blocks(self.transaction, range)?,
                -1 => groups.free_blocks(self.transaction, range)?,
                _ => {
                    let (start, end) = (range.start, range.end);
                    return Err(Error::new(ErrorKind::Corrupt)
                        .detail(format!("blocks {start} to {end} belong to several files")));
                }
            }
        }
        Ok(())
    }

    /// Ranges whose balance is not even, none longer than [`RANGE_MAX`].
    fn changes(&self) -> Vec<(Range<u64>, i64)> {
        let mut edges = self.balance.borrow().clone();
        edges.sort_unstable_by_key(|(block, _)| *block);
        let mut changes = Vec::new();
        let (mut at, mut sum) = (0, 0);
        for (block, change) in edges {
            while sum != 0 && at < block {
                let end = block.min(at + RANGE_MAX);
                changes.push((at..end, sum));
                at = end;
            }
            at = block;
            sum += change;
        }
        changes
    }
}

/// The nodes of one inode's tree.
pub(super) struct Store<'s, 'a> {
    space: &'s Space<'a>,
    held: Vec<(PhysicalBlock, Arc<Block>)>,
    /// Blocks gained, less blocks lost.
    gained: i64,
}

impl<'s, 'a> Store<'s, 'a> {
    pub(super) fn new(space: &'s Space<'a>) -> Self {
        Self {
            space,
            held: Vec::new(),
            gained: 0,
        }
    }

    /// Counts blocks that the space has in its books.
    pub(super) fn count(&mut self, blocks: u32) {
        self.gained += i64::from(blocks);
    }

    pub(super) fn gain(&mut self, start: PhysicalBlock, blocks: u64) {
        self.space.gain(start, blocks);
        self.gained += blocks as i64;
    }

    pub(super) fn lose(&mut self, start: PhysicalBlock, blocks: u64) {
        self.space.lose(start, blocks);
        self.gained -= blocks as i64;
    }

    /// Adds the gained blocks to the inode's count.
    pub(super) fn settle(self, state: &mut InodeState) -> Result<()> {
        let layout = &self.space.fs.layout;
        let sectors = self.gained << (layout.block_bits() - 9);
        let after = state.inode.sectors(layout).saturating_add_signed(sectors);
        state.inode.set_sectors(after, layout)
    }
}

impl Nodes for Store<'_, '_> {
    fn read(&self, block: PhysicalBlock, validate: Validator<'_>) -> Result<Arc<[u8]>> {
        self.space.fs.cache.read(block, validate)
    }
}

impl NodesMut for Store<'_, '_> {
    fn hold(&mut self, number: PhysicalBlock, validate: Validator<'_>) -> Result<Arc<[u8]>> {
        let cache = &self.space.fs.cache;
        let bytes = cache.read(number, validate)?;
        if !self.held.iter().any(|(held, _)| *held == number) {
            self.held.push((number, cache.hold(number)));
        }
        Ok(bytes)
    }

    fn change(&mut self, number: PhysicalBlock, change: &mut dyn FnMut(&mut [u8])) {
        let held = self.held.iter().find(|(held, _)| *held == number);
        let (_, block) = held.expect("a block that is held");
        self.space
            .fs
            .cache
            .change_held(self.space.transaction, block, |bytes| change(bytes));
    }

    fn create(&mut self, goal: PhysicalBlock, _: Option<PhysicalBlock>) -> Result<PhysicalBlock> {
        // Only extent trees are changed here, whose blocks may be anywhere.
        let number = self.space.take(goal)?;
        self.gained += 1;
        let cache = &self.space.fs.cache;
        cache.create(self.space.transaction, number, |_| ());
        self.held.push((number, cache.hold(number)));
        Ok(number)
    }

    fn remove(&mut self, number: PhysicalBlock) {
        // Not revoked: the log has no older copies, as all of it is checkpointed.
        self.held.retain(|(held, _)| *held != number);
        self.space.fs.cache.forget(number);
        self.space.own.borrow_mut().remove(&number);
        self.lose(number, 1);
    }
}

//! Block allocation of one inode within a transaction: data blocks, tree nodes, and freeing.
//!
//! Allocated and freed blocks are counted here and added to the inode's `i_blocks` at the end of
//! the operation ([`Store::settle`]).
//!
//! Blocks that only extend the last extent of a file get their bitmap bits when the transaction is
//! frozen, or before they would be cleared again ([`DeferredBits`]): files that grow at the same
//! time may share a group, and its lock would move between processors with every block.

use std::ops::Range;
use std::sync::Arc;

use extant_mballoc::{
    Alignment, Allocation, Block as AllocatorBlock, BlockRange, Free, Goal, Owner, Request,
    RequestFlags,
};
use extant_ondisk::ext4::{GroupNumber, InodeNumber, PhysicalBlock};
use extant_space::Result;

use crate::cache::{Block, Changing};
use crate::inode_cell::{DeferredBits, InodeCell, InodeState};
use crate::options::Reserve;
use crate::state::{FsState, allocator_id};
use crate::transaction::Transaction;
use crate::tree::{Nodes, NodesMut, Validator};

pub(crate) struct Store<'a> {
    fs: &'a FsState,
    transaction: &'a Transaction<'a>,
    owner: &'a Owner,
    /// Blocks that will be changed, each once.
    held: Vec<(PhysicalBlock, Arc<Block>)>,
    /// Allocated minus freed blocks.
    taken: i64,
    /// Taken from the inode until [`settle`](Self::settle) returns them to it.
    deferred: Option<DeferredBits>,
    /// Nodes may be freed.
    frees: bool,
}

impl<'a> Store<'a> {
    /// For the inode of `cell`, whose state is locked.
    pub(crate) fn new(
        fs: &'a FsState,
        transaction: &'a Transaction<'a>,
        cell: &'a InodeCell,
        state: &mut InodeState,
    ) -> Self {
        Self {
            fs,
            transaction,
            owner: fs.owner(cell, state),
            held: Vec::new(),
            taken: 0,
            deferred: state.deferred.take(),
            frees: false,
        }
    }

    /// For a removal: the bitmaps of nodes are read before anything is changed, while an error can
    /// be returned.
    pub(crate) fn freeing(mut self) -> Self {
        self.frees = true;
        self
    }

    /// Records that the inode refers to blocks that were allocated for it.
    ///
    /// # Errors
    /// `Corrupt` if another inode refers to them; they are not kept then.
    pub(crate) fn attach(&mut self, blocks: Allocation<'_>) -> Result<BlockRange> {
        let range = blocks.range();
        self.fs
            .groups
            .use_blocks(self.transaction, range.start().0..range.end().0)?;
        self.taken += i64::from(range.count());
        Ok(blocks.keep())
    }

    /// The same for data that may extend the last extent.
    ///
    /// # Errors
    /// As [`attach`](Self::attach).
    pub(crate) fn attach_data(&mut self, blocks: Allocation<'_>) -> Result<BlockRange> {
        let range = blocks.range();
        if let Some(deferred) = &mut self.deferred
            && deferred.blocks.end == range.start().0
            && range.end().0 <= deferred.group_end
        {
            deferred.blocks.end = range.end().0;
            self.taken += i64::from(range.count());
            return Ok(blocks.keep());
        }
        self.mark()?;
        let range = self.attach(blocks)?;
        let end = range.end().0;
        let layout = &self.fs.layout;
        self.deferred = layout
            .locate(PhysicalBlock(end - 1))
            .map(|(group, at)| DeferredBits {
                blocks: end..end,
                group_end: end - 1 + u64::from(layout.blocks_in(group) - at),
            });
        Ok(range)
    }

    /// Sets the deferred bits.
    fn mark(&mut self) -> Result<()> {
        match self.deferred.take() {
            Some(deferred) => self.fs.groups.use_joined(&deferred.blocks),
            None => Ok(()),
        }
    }

    /// The inode does not refer to blocks any more.
    ///
    /// # Errors
    /// `Corrupt` when they were not in use.
    pub(crate) fn detach(&mut self, range: BlockRange) -> Result<()> {
        let (start, end) = (range.start().0, range.end().0);
        let mut unset = end..end;
        if let Some(deferred) = &self.deferred
            && deferred.blocks.start < end
            && start < deferred.blocks.end
        {
            if start <= deferred.blocks.start && deferred.blocks.end <= end {
                // Allocated and freed in one transaction: their bits stay as they are.
                unset = self.deferred.take().expect("just seen").blocks
            } else {
                self.mark()?
            }
        }
        self.fs.free(self.transaction, self.owner, range, unset)?;
        self.taken -= i64::from(range.count());
        Ok(())
    }

    /// The same for metadata blocks: the journal must not checkpoint them any more.
    ///
    /// # Errors
    /// As [`detach`](Self::detach).
    pub(crate) fn detach_metadata(&mut self, range: BlockRange) -> Result<()> {
        for number in (range.start().0..range.end().0).map(PhysicalBlock) {
            self.fs.cache.forget(number);
            self.transaction.revoke(number);
        }
        self.detach(range)
    }

    /// The inode does not count blocks any more that others still have.
    pub(crate) fn uncount(&mut self, blocks: u32) {
        self.taken -= i64::from(blocks);
    }

    /// Adds the allocated blocks to the inode's count.
    ///
    /// # Errors
    /// `TooLarge` if the count overflows.
    pub(crate) fn settle(mut self, state: &mut InodeState) -> Result<()> {
        state.deferred = self.deferred.take();
        let layout = &self.fs.layout;
        let sectors = self.taken << (layout.block_bits() - 9);
        let before = state.inode.sectors(layout);
        let after = before.saturating_add_signed(sectors);
        state.inode.set_sectors(after, layout)
    }
}

impl Drop for Store<'_> {
    /// After an error, before it was settled.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        if let Err(error) = self.mark() {
            self.fs.note_error(&error);
        }
    }
}

impl Nodes for Store<'_> {
    fn read(&self, block: PhysicalBlock, validate: Validator<'_>) -> Result<Arc<[u8]>> {
        self.fs.cache.read(block, validate)
    }
}

impl NodesMut for Store<'_> {
    fn hold(&mut self, number: PhysicalBlock, validate: Validator<'_>) -> Result<Arc<[u8]>> {
        let bytes = self.fs.cache.read(number, validate)?;
        if self.frees {
            let block = BlockRange::new(AllocatorBlock(number.0), 1);
            self.fs.hand_over(block)?;
        }
        if !self.held.iter().any(|(held, _)| *held == number) {
            self.held.push((number, self.fs.cache.hold(number)));
        }
        Ok(bytes)
    }

    fn change(&mut self, number: PhysicalBlock, change: &mut dyn FnMut(&mut [u8])) {
        let held = self.held.iter().find(|(held, _)| *held == number);
        let (_, block) = held.expect("a block that is held");
        self.fs
            .cache
            .change_held(self.transaction, block, |bytes| change(bytes));
    }

    fn create(
        &mut self,
        goal: PhysicalBlock,
        limit: Option<PhysicalBlock>,
    ) -> Result<PhysicalBlock> {
        let request = Request {
            goal: Goal::Near(AllocatorBlock(goal.0)),
            wanted: 1,
            minimum: 1,
            alignment: Alignment::Any,
            limit: limit.map(|limit| AllocatorBlock(limit.0)),
            // Nodes may take from the reserve: the blocks they serve were allocated before.
            flags: RequestFlags::METADATA | RequestFlags::USE_RESERVE,
            transaction: Some(allocator_id(self.transaction.id())),
        };
        let owner = self.owner;
        let block = owner.allocate(&request)?;
        let number = PhysicalBlock(block.range().start().0);
        self.fs.assign_metadata(number)?;
        self.attach(block)?;
        self.fs.cache.create(self.transaction, number, |_| ());
        self.transaction.cancel_revoke(number);
        self.held.push((number, self.fs.cache.hold(number)));
        Ok(number)
    }

    fn remove(&mut self, number: PhysicalBlock) {
        self.held.retain(|(held, _)| *held != number);
        let range = BlockRange::new(AllocatorBlock(number.0), 1);
        if let Err(error) = self.detach_metadata(range) {
            self.fs.note_error(&error);
        }
    }
}

impl FsState {
    /// Frees blocks without references; they are reusable after the transaction has committed. The
    /// bits of `unset`, a subset, are clear in their bitmap.
    fn free(
        &self,
        transaction: &Transaction<'_>,
        owner: &Owner,
        range: BlockRange,
        unset: Range<u64>,
    ) -> Result<()> {
        let start = PhysicalBlock(range.start().0);
        if let Some(off_limits) = self
            .groups
            .zone()
            .for_inode(InodeNumber(owner.number() as u32))
        {
            off_limits.check(start, range.count().into())?;
        }
        // The allocator reads a bitmap once, and it must be the one from before the change.
        self.hand_over(range)?;
        for set in [range.start().0..unset.start, unset.end..range.end().0] {
            if !set.is_empty() {
                self.groups.free_blocks(transaction, set)?;
            }
        }
        owner.free(range, Free::AfterCommit(allocator_id(transaction.id())))
    }

    /// Whether requests may take from the reserve.
    pub(crate) fn reserve_flag(&self) -> RequestFlags {
        match self.options.reserve {
            Reserve::Keep => RequestFlags::empty(),
            Reserve::Take => RequestFlags::USE_RESERVE,
        }
    }

    /// Has the allocator read the bitmaps of a range.
    pub(crate) fn hand_over(&self, range: BlockRange) -> Result<()> {
        let locate = |block| self.layout.locate(PhysicalBlock(block));
        let (first, last) = (locate(range.start().0), locate(range.end().0 - 1));
        let (Some((first, _)), Some((last, _))) = (first, last) else {
            // Reported when the blocks are marked.
            return Ok(());
        };
        // With small blocks an extent may be longer than a group.
        for group in first.0..=last.0 {
            if !self.groups.is_handed_over(GroupNumber(group))? {
                self.allocator.load(extant_mballoc::GroupNumber(group))?;
            }
        }
        Ok(())
    }
}

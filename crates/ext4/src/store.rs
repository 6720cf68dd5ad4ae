//! The blocks of one inode while a transaction changes it: taking, giving back, and the nodes of its tree.
//!
//! What an operation takes and gives back is counted here and added to the inode's `i_blocks` at its end
//! ([`Store::settle`]).

use std::sync::Arc;

use extant_mballoc::{
    Alignment, Allocation, Block as AllocatorBlock, BlockRange, Free, Goal, Owner, Request,
    RequestFlags,
};
use extant_ondisk::ext4::PhysicalBlock;
use extant_space::Result;

use crate::cache::{Block, Changing};
use crate::filesystem::{Parts, allocator_id};
use crate::inode::InodeState;
use crate::options::Reserve;
use crate::transaction::Transaction;
use crate::tree::{Judge, Nodes, NodesMut};

pub(crate) struct Store<'a> {
    parts: &'a Parts,
    transaction: &'a Transaction<'a>,
    owner: &'a Owner,
    /// Blocks that will be changed, each once.
    held: Vec<(PhysicalBlock, Arc<Block>)>,
    /// Blocks taken, less blocks given back.
    taken: i64,
}

impl<'a> Store<'a> {
    pub(crate) fn new(
        parts: &'a Parts,
        transaction: &'a Transaction<'a>,
        owner: &'a Owner,
    ) -> Self {
        Self {
            parts,
            transaction,
            owner,
            held: Vec::new(),
            taken: 0,
        }
    }

    /// The inode refers to blocks from now on that were allocated for it.
    ///
    /// # Errors
    /// `Corrupt` when somebody refers to them already; they are not kept then.
    pub(crate) fn attach(&mut self, blocks: Allocation<'_>) -> Result<BlockRange> {
        self.parts
            .groups
            .use_blocks(self.transaction, blocks.range())?;
        self.taken += i64::from(blocks.range().count());
        Ok(blocks.keep())
    }

    /// The inode does not refer to blocks any more.
    ///
    /// # Errors
    /// `Corrupt` when they were not in use.
    pub(crate) fn detach(&mut self, range: BlockRange) -> Result<()> {
        self.parts.free(self.transaction, self.owner, range)?;
        self.taken -= i64::from(range.count());
        Ok(())
    }

    /// The same for blocks of metadata: what the journal has of them must not come home any more.
    ///
    /// # Errors
    /// As [`detach`](Self::detach).
    pub(crate) fn detach_metadata(&mut self, range: BlockRange) -> Result<()> {
        for number in (range.start().0..range.end().0).map(PhysicalBlock) {
            self.parts.cache.forget(number);
            self.transaction.revoke(number);
        }
        self.detach(range)
    }

    /// The inode does not count blocks any more that others still have.
    pub(crate) fn uncount(&mut self, blocks: u32) {
        self.taken -= i64::from(blocks);
    }

    /// Adds what was taken to the inode's count.
    ///
    /// # Errors
    /// `TooLarge` when it cannot count so many.
    pub(crate) fn settle(self, state: &mut InodeState) -> Result<()> {
        let layout = &self.parts.layout;
        let sectors = self.taken << (layout.block_bits() - 9);
        let before = state.inode.sectors(layout);
        let after = before.saturating_add_signed(sectors);
        state.inode.set_sectors(after, layout)
    }
}

impl Nodes for Store<'_> {
    fn read(&self, block: PhysicalBlock, judge: Judge<'_>) -> Result<Arc<[u8]>> {
        self.parts.cache.read(block, judge)
    }
}

impl NodesMut for Store<'_> {
    fn hold(&mut self, number: PhysicalBlock, judge: Judge<'_>) -> Result<Arc<[u8]>> {
        let bytes = self.parts.cache.read(number, judge)?;
        if !self.held.iter().any(|(held, _)| *held == number) {
            self.held.push((number, self.parts.cache.hold(number)));
        }
        Ok(bytes)
    }

    fn change(&mut self, number: PhysicalBlock, change: &mut dyn FnMut(&mut [u8])) {
        let held = self.held.iter().find(|(held, _)| *held == number);
        let (_, block) = held.expect("a block that is held");
        self.parts
            .cache
            .change_held(self.transaction, block, |bytes| change(bytes));
    }

    fn create(&mut self, goal: PhysicalBlock) -> Result<PhysicalBlock> {
        let request = Request {
            goal: Goal::Near(AllocatorBlock(goal.0)),
            wanted: 1,
            minimum: 1,
            alignment: Alignment::Any,
            limit: None,
            // Nodes may take from the reserve: what they are for was allocated before.
            flags: RequestFlags::METADATA | RequestFlags::USE_RESERVE,
            transaction: Some(allocator_id(self.transaction.id())),
        };
        let owner = self.owner;
        let range = self.attach(owner.allocate(&request)?)?;
        let number = PhysicalBlock(range.start().0);
        self.parts.cache.create(self.transaction, number, |_| ());
        self.transaction.cancel_revoke(number);
        self.held.push((number, self.parts.cache.hold(number)));
        Ok(number)
    }

    fn remove(&mut self, number: PhysicalBlock) {
        self.held.retain(|(held, _)| *held != number);
        let range = BlockRange::new(AllocatorBlock(number.0), 1);
        if let Err(error) = self.detach_metadata(range) {
            self.parts.note_error(&error);
        }
    }
}

impl Parts {
    /// Gives back blocks to which nothing refers any more; they can be used again when the transaction has
    /// committed.
    pub(crate) fn free(
        &self,
        transaction: &Transaction<'_>,
        owner: &Owner,
        range: BlockRange,
    ) -> Result<()> {
        // The allocator reads a bitmap once, and it must be the one from before the change.
        self.hand_over(range)?;
        self.groups.free_blocks(transaction, range)?;
        owner.free(range, Free::AfterCommit(allocator_id(transaction.id())))
    }

    /// Whether requests may take from the reserve.
    pub(crate) fn reserve_flag(&self) -> RequestFlags {
        match self.options.reserve {
            Reserve::Keep => RequestFlags::empty(),
            Reserve::Take => RequestFlags::USE_RESERVE,
        }
    }

    fn hand_over(&self, range: BlockRange) -> Result<()> {
        for block in [range.start().0, range.end().0 - 1] {
            let Some((group, _)) = self.layout.locate(PhysicalBlock(block)) else {
                continue;
            };
            if !self.groups.is_handed_over(group)? {
                self.allocator.load(extant_mballoc::GroupNumber(group.0))?;
            }
        }
        Ok(())
    }
}

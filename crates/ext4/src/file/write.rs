//! Writing.
//!
//! A write is divided into pieces. Written blocks are overwritten in place. For unwritten blocks
//! and holes the data is written first, in whole blocks padded with zeros; then one transaction
//! maps the blocks as written. So a crash shows the old state of a piece or the new one, never the
//! previous content of the blocks.

use std::ops::Range;
use std::sync::Arc;

use extant_blockdev::{Device, Operation, Persistence, WriteBuffers, Zeroing};
use extant_mballoc::{Alignment, Allocation, Block as AllocatorBlock, Goal, Request, RequestFlags};
use extant_ondisk::ext4::extent::{ExtentKind, ExtentNode, LeafEntry};
use extant_ondisk::ext4::inode::{InodeFlags, TimeField};
use extant_ondisk::ext4::{LogicalBlock, PhysicalBlock};
use extant_space::{ByteRange, Error, ErrorKind, Result, event, traced};

use super::check_extents;
use super::overwrite::Done;
use super::stamp::{Stamp, WriteTimes, Written, is_stamped};
use crate::block_map;
use crate::cache::Changing;
use crate::engine::Engine;
use crate::groups::group_credits;
use crate::inode_cell::{InodeCell, InodeState};
use crate::io;
use crate::mapping::{self, MapMut};
use crate::state::{FsState, allocator_id};
use crate::store::Store;
use crate::sync::{read, write};
use crate::transaction::{INODE_CREDITS, Transaction};
use crate::tree::{Mapping, TreeMut, step_cost};

/// Blocks of a chunk in which out-of-order writes are gathered.
const PIECE: u64 = 512;

/// Files of this size and more are flagged in the superblock.
const LARGE_BYTES: u64 = 1 << 31;

/// A place in a file.
pub(crate) struct MapPosition {
    /// The mapping at this block.
    pub(crate) mapping: Mapping,
    /// The goal for blocks of a hole that begins there, from its neighbours in the file.
    pub(crate) goal: Goal,
    /// Free blocks to leave around them.
    pub(crate) room: Option<FreeMargin>,
    /// Their upper bound.
    pub(crate) limit: Option<AllocatorBlock>,
    /// Levels of the tree below its root.
    pub(crate) depth: u16,
}

/// Blocks around the first one of a piece of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreeMargin {
    before: u32,
    /// With the block itself.
    behind: u32,
}

impl Engine {
    /// Writes all of `from` at `offset`, growing the file as needed.
    pub(crate) fn write_file(
        &self,
        cell: &Arc<InodeCell>,
        from: &[u8],
        offset: u64,
        times: WriteTimes,
    ) -> Written {
        let mut at = offset;
        let result = self.write_on(cell, from, &mut at, times);
        Written {
            bytes: (at - offset) as usize,
            result,
        }
    }

    /// Writes `from` at `at`, which moves on with each piece that is written.
    fn write_on(
        &self,
        cell: &Arc<InodeCell>,
        from: &[u8],
        at: &mut u64,
        times: WriteTimes,
    ) -> Result<()> {
        if from.is_empty() {
            return Ok(());
        }
        // Data is written before a transaction is begun.
        self.changeable()?;
        if self.overwrite(cell, from, *at, times)? == Done::Yes {
            *at += from.len() as u64;
            return Ok(());
        }
        let _alone = write(&cell.operation);
        let offset = *at;
        let end = offset
            .checked_add(from.len() as u64)
            .ok_or_else(|| Error::new(ErrorKind::TooLarge))?;
        let size = {
            let state = read(&cell.state);
            state.check_writable(offset, &self.fs.layout)?;
            self.fs.check_size(&state, end)?;
            state.inode.size_bytes(&self.fs.layout)
        };
        if offset > size {
            self.fs.zero_after_end(cell, size)?;
        }
        while *at < end {
            let rest = &from[(*at - offset) as usize..];
            *at += self.with_space(|| self.write_piece(cell, rest, *at, times))?;
        }
        Ok(())
    }

    /// Writes the part in one extent or hole; returns the bytes written.
    fn write_piece(
        &self,
        cell: &Arc<InodeCell>,
        from: &[u8],
        at: u64,
        times: WriteTimes,
    ) -> Result<u64> {
        let fs = &*self.fs;
        let bits = fs.layout.block_bits();
        let position = fs.position(cell, fs.block_of(at))?;
        let range = position.mapping.logical();
        let length = (from.len() as u64).min((range.end << bits) - at);
        let from = &from[..length as usize];
        let end = at + length;
        match position.mapping {
            Mapping::Extent(extent) if extent.kind == ExtentKind::Written => {
                let within = at - (u64::from(extent.logical.0) << bits);
                io::write(&*fs.device, (extent.physical.0 << bits) + within, from)?;
                self.stamp(cell, Stamp::of_write(end, times))?;
                Ok(length)
            }
            Mapping::Extent(extent) => {
                let blocks = at >> bits..fs.block_after(end);
                let skipped = blocks.start - u64::from(extent.logical.0);
                fs.write_blocks(PhysicalBlock(extent.physical.0 + skipped), from, at)?;
                self.make_written(cell, blocks, Stamp::of_write(end, times))?;
                Ok(length)
            }
            Mapping::Hole(ref hole) => {
                let first = at >> bits;
                let wanted = fs.block_after(end) - first;
                let most = u64::from(ExtentKind::Written.blocks_max());
                let wanted = wanted.min(hole.end - first).min(most);
                let allocation = fs.take(cell, &position, wanted, None)?;
                let blocks = allocation.range().count() as u16;
                let length = length.min(((first + u64::from(blocks)) << bits) - at);
                let physical = PhysicalBlock(allocation.range().start().0);
                fs.write_blocks(physical, &from[..length as usize], at)?;
                let extent = LeafEntry {
                    logical: LogicalBlock(first as u32),
                    physical,
                    blocks,
                    kind: ExtentKind::Written,
                };
                let stamp = Stamp::of_write(at + length, times);
                self.insert_extent(cell, extent, allocation, stamp)?;
                Ok(length)
            }
        }
    }

    /// The inode has an extent from now on.
    pub(crate) fn insert_extent(
        &self,
        cell: &Arc<InodeCell>,
        extent: LeafEntry,
        allocation: Allocation<'_>,
        stamp: Stamp,
    ) -> Result<()> {
        let transaction = self.begin_recorded(self.tree_credits(cell)?)?;
        self.fs
            .insert_extent(&transaction, cell, extent, allocation, stamp)
    }

    /// Unwritten blocks hold data from now on.
    pub(crate) fn make_written(
        &self,
        cell: &Arc<InodeCell>,
        blocks: Range<u64>,
        stamp: Stamp,
    ) -> Result<()> {
        let convert = || self.convert(cell, blocks.clone(), ExtentKind::Written, stamp);
        match self.with_space(convert) {
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                self.make_extents_written(cell, blocks, stamp, error)
            }
            converted => converted,
        }
    }

    /// The same without space for a tree node for the parts of an extent: the rest of the extents
    /// around `blocks` is zeroed, so that each is converted as a whole. Writes to allocated space
    /// must not fail with `NoSpace`. `refused` is the error if an extent reaches past the end of
    /// the file: nothing may be written there.
    fn make_extents_written(
        &self,
        cell: &Arc<InodeCell>,
        blocks: Range<u64>,
        stamp: Stamp,
        refused: Error,
    ) -> Result<()> {
        let fs = &*self.fs;
        let bits = fs.layout.block_bits();
        let size = read(&cell.state).inode.size_bytes(&fs.layout);
        let file_end = fs.block_after(size.max(stamp.size_at_least));
        let mut at = blocks.start;
        while at < blocks.end {
            let Mapping::Extent(extent) = fs.find(cell, LogicalBlock(at as u32))? else {
                return Err(refused);
            };
            let whole = u64::from(extent.logical.0)..extent.logical_end();
            at = whole.end;
            if extent.kind == ExtentKind::Written {
                continue;
            }
            if whole.end > file_end {
                return Err(refused);
            }
            let before = whole.start..blocks.start.max(whole.start);
            let behind = blocks.end.min(whole.end)..whole.end;
            for part in [before, behind].into_iter().filter(|part| !part.is_empty()) {
                let place = extent.physical.0 + (part.start - whole.start);
                let bytes = ByteRange::new(place << bits, (place + part.end - part.start) << bits);
                fs.write_zeroes(cell, bytes, Zeroing::ALLOCATED)?;
            }
            self.convert(cell, whole, ExtentKind::Written, stamp)?;
        }
        Ok(())
    }

    /// Converts extents of `blocks` to `kind`, in several transactions if necessary; the size
    /// changes in the last.
    pub(crate) fn convert(
        &self,
        cell: &Arc<InodeCell>,
        blocks: Range<u64>,
        kind: ExtentKind,
        stamp: Stamp,
    ) -> Result<()> {
        let bits = self.fs.layout.block_bits();
        traced!(
            DEBUG,
            "convert",
            (
                inode = cell.number.0,
                to = ?kind,
                start_bytes = blocks.start << bits,
                length_bytes = (blocks.end - blocks.start) << bits
            ),
            self.convert_blocks(cell, blocks.clone(), kind, stamp)
        )
    }

    fn convert_blocks(
        &self,
        cell: &Arc<InodeCell>,
        blocks: Range<u64>,
        kind: ExtentKind,
        stamp: Stamp,
    ) -> Result<()> {
        let fs = &*self.fs;
        let mut rest = Some(blocks);
        while let Some(range) = rest {
            let transaction = self.begin_recorded(self.tree_credits(cell)?)?;
            let mut state = write(&cell.state);
            state.join(cell, &transaction);
            rest = fs.with_tree(&transaction, cell, &mut state, |tree| {
                tree.convert_next(range.clone(), kind)
            })?;
            state.touch(&transaction, range);
            state.data_changed_in = Some(transaction.epoch());
            if rest.is_none() {
                fs.stamp_state(&mut state, &transaction, stamp);
            }
        }
        Ok(())
    }

    /// Blocks of metadata that one step of the inode's tree touches at most, with the bitmaps of
    /// its nodes and of one piece of data.
    pub(crate) fn tree_credits(&self, cell: &InodeCell) -> Result<u32> {
        let depth = self.fs.depth(&read(&cell.state))?;
        Ok(self.fs.tree_credits_at(depth))
    }

    /// Notes a change of data in place: the times, and the size where it grew.
    pub(super) fn stamp(&self, cell: &Arc<InodeCell>, stamp: Stamp) -> Result<()> {
        let fs = &*self.fs;
        {
            let state = read(&cell.state);
            let grows = stamp.size_at_least > state.inode.size_bytes(&fs.layout);
            let has_times =
                stamp.times == WriteTimes::Kept || is_stamped(&state.inode, fs.clock.now());
            if !grows && has_times {
                return Ok(());
            }
        }
        let transaction = self.begin_recorded(INODE_CREDITS)?;
        cell.change(&transaction, |state| {
            fs.stamp_state(state, &transaction, stamp);
        });
        Ok(())
    }
}

impl FsState {
    /// Looks up a block; for a hole, with the context needed to fill it.
    pub(crate) fn position(&self, cell: &InodeCell, logical: LogicalBlock) -> Result<MapPosition> {
        self.spot_in(&read(&cell.state), logical)
    }

    /// The same, where the state is locked.
    pub(super) fn spot_in(&self, state: &InodeState, logical: LogicalBlock) -> Result<MapPosition> {
        if let Some(position) = state.spot_at_end(logical) {
            return Ok(position);
        }
        let format = self.tree_format(state);
        let find = |logical| mapping::find(&state.inode, &self.cache, format, logical);
        let mut mapping = find(logical)?;
        let mut limit = None;
        if !state.inode.flags().contains(InodeFlags::EXTENTS) {
            limit = Some(AllocatorBlock(block_map::PHYSICAL_END.0));
            if let Mapping::Hole(hole) = &mut mapping {
                // The part filled in one step.
                hole.end = hole.end.min(block_map::leaf(logical, &self.layout).end);
            }
        }
        let (goal, room) = match &mapping {
            Mapping::Hole(hole) => self.goal_in(hole, logical, find)?,
            Mapping::Extent(_) => (Goal::Anywhere, None),
        };
        Ok(MapPosition {
            mapping,
            goal,
            room,
            limit,
            depth: self.depth(state)?,
        })
    }

    /// The goal for a block of a hole. Sequential writes follow the block before. Others are
    /// gathered in chunks of [`PIECE`] blocks, aligned in the file, each with room for all of it
    /// after its first block.
    fn goal_in(
        &self,
        hole: &Range<u64>,
        logical: LogicalBlock,
        find: impl Fn(LogicalBlock) -> Result<Mapping>,
    ) -> Result<(Goal, Option<FreeMargin>)> {
        let at = u64::from(logical.0);
        let piece = at / PIECE * PIECE..(at / PIECE + 1) * PIECE;
        let room = FreeMargin {
            before: (at - piece.start.max(hole.start)) as u32,
            behind: (piece.end.min(hole.end) - at) as u32,
        };
        if hole.start > 0
            && (hole.start == at || hole.start > piece.start)
            && let Mapping::Extent(before) = find(LogicalBlock((hole.start - 1) as u32))?
        {
            let end = before.physical.0 + u64::from(before.blocks);
            return Ok(if hole.start == at {
                (Goal::Follow(AllocatorBlock(end)), None)
            } else {
                (self.near(end + at - hole.start), Some(room))
            });
        }
        if hole.end < piece.end
            && let Mapping::Extent(after) = find(LogicalBlock(hole.end as u32))?
        {
            let place = after.physical.0.checked_sub(hole.end - at);
            let goal = place.map_or(Goal::Anywhere, |place| self.near(place));
            return Ok((goal, Some(room)));
        }
        Ok((Goal::Anywhere, (room.before > 0).then_some(room)))
    }

    fn near(&self, block: u64) -> Goal {
        match self.layout.locate(PhysicalBlock(block)) {
            Some(_) => Goal::Near(AllocatorBlock(block)),
            None => Goal::Anywhere,
        }
    }

    /// Blocks for a file: as many of `wanted` as can be had in one piece.
    pub(crate) fn take<'c>(
        &self,
        cell: &'c InodeCell,
        position: &MapPosition,
        wanted: u64,
        transaction: Option<&Transaction<'_>>,
    ) -> Result<Allocation<'c>> {
        let wanted = wanted.min(self.layout.blocks_per_group().into()) as u32;
        let request = |goal, wanted| Request {
            goal,
            wanted,
            minimum: 1,
            alignment: Alignment::Any,
            limit: position.limit,
            flags: RequestFlags::STREAM | self.reserve_flag(),
            transaction: transaction.map(|transaction| allocator_id(transaction.id())),
        };
        let owner = self.owner_of(cell);
        let Some(room) = position.room else {
            return owner.allocate(&request(position.goal, wanted));
        };
        if let Goal::Near(block) = position.goal {
            let found = owner.allocate(&request(position.goal, wanted))?;
            if found.range().start() == block {
                return Ok(found);
            }
        }
        let all = room.before + room.behind.max(wanted);
        let mut found = owner.allocate(&request(Goal::Anywhere, all))?;
        let count = found.range().count();
        let skip = room.before.min(count.saturating_sub(wanted));
        found.narrow(skip, wanted.min(count - skip));
        Ok(found)
    }

    /// The inode has an extent from now on, in a transaction that has [`Engine::tree_credits`]
    /// left.
    pub(crate) fn insert_extent(
        &self,
        transaction: &Transaction<'_>,
        cell: &Arc<InodeCell>,
        extent: LeafEntry,
        allocation: Allocation<'_>,
        stamp: Stamp,
    ) -> Result<()> {
        let bits = self.layout.block_bits();
        event!(
            TRACE,
            "allocate",
            inode = cell.number.0,
            kind = ?extent.kind,
            start_bytes = u64::from(extent.logical.0) << bits,
            length_bytes = u64::from(extent.blocks) << bits,
            device_bytes = extent.physical.0 << bits
        );
        let mut state = write(&cell.state);
        state.join(cell, transaction);
        let mut store = Store::new(self, transaction, cell, &mut state);
        // Refused if they are in use by the bitmap; the tree must not refer to them then.
        let range = store.attach_data(allocation)?;
        if !state.extend_last(&extent) {
            let format = self.tree_format(&state);
            let mut map = MapMut::new(&mut state, &mut store, format);
            if let Err(error) = map.insert(extent) {
                store.detach(range)?;
                store.settle(&mut state)?;
                return Err(error);
            }
            state.find_end(&self.layout);
        }
        store.settle(&mut state)?;
        state.touch(transaction, extent.logical.0.into()..extent.logical_end());
        transaction.note_new_blocks();
        state.data_changed_in = Some(transaction.epoch());
        self.stamp_state(&mut state, transaction, stamp);
        Ok(())
    }

    /// Zeros of the file, at `range` of the device.
    pub(super) fn write_zeroes(
        &self,
        cell: &InodeCell,
        range: ByteRange,
        zeroing: Zeroing,
    ) -> Result<()> {
        traced!(
            DEBUG,
            "write zeroes",
            (
                inode = cell.number.0,
                space = ?zeroing.space,
                device_bytes = range.start(),
                length_bytes = range.len()
            ),
            self.device.write_zeroes(range, zeroing)
        )
    }

    /// Runs steps on the extent tree of a file whose state is locked and part of the transaction.
    /// Allocated and freed blocks are counted, also after a failed step. `Unsupported` if the file
    /// has a block map.
    pub(super) fn with_tree<T>(
        &self,
        transaction: &Transaction<'_>,
        cell: &InodeCell,
        state: &mut InodeState,
        steps: impl FnOnce(&mut TreeMut<'_, Store<'_>>) -> Result<T>,
    ) -> Result<T> {
        check_extents(state)?;
        let format = self.tree_format(state);
        let mut store = Store::new(self, transaction, cell, state);
        let mut tree = TreeMut::new(state.tree_area(), &mut store, format);
        let done = steps(&mut tree);
        store.settle(state)?;
        done
    }

    /// Levels of the inode's tree below its root; for a block map those of a tree that costs as
    /// much.
    pub(super) fn depth(&self, state: &InodeState) -> Result<u16> {
        if !state.inode.flags().contains(InodeFlags::EXTENTS) {
            return Ok(block_map::DEPTH);
        }
        let root = ExtentNode::parse_root(state.inode.block_area(), &self.layout)?;
        Ok(root.depth())
    }

    /// [`Engine::tree_credits`] of a tree of `depth`.
    pub(crate) fn tree_credits_at(&self, depth: u16) -> u32 {
        let cost = step_cost(depth);
        // An extent is in one group, or at the edge of two when it is freed; nodes can be anywhere.
        INODE_CREDITS + 2 * cost.touched + group_credits(cost.touched + 2)
    }

    /// Blocks of metadata that one more block of a directory touches at most, itself not among
    /// them.
    pub(crate) fn append_credits(&self, cell: &InodeCell) -> Result<u32> {
        // The block before may have made the tree higher.
        Ok(self.tree_credits_at(self.depth(&read(&cell.state))? + 1))
    }

    /// Maps block `logical`.
    pub(crate) fn find(&self, cell: &InodeCell, logical: LogicalBlock) -> Result<Mapping> {
        let state = read(&cell.state);
        let format = self.tree_format(&state);
        mapping::find(&state.inode, &self.cache, format, logical)
    }

    pub(crate) fn stamp_state(
        &self,
        state: &mut InodeState,
        transaction: &Transaction<'_>,
        stamp: Stamp,
    ) {
        if stamp.times == WriteTimes::Present {
            let now = self.clock.now();
            state.inode.set_time(TimeField::Modification, now);
            state.inode.set_time(TimeField::Change, now);
        }
        if stamp.size_at_least > state.inode.size_bytes(&self.layout) {
            state
                .inode
                .set_size_bytes(stamp.size_at_least, &self.layout);
            state.data_changed_in = Some(transaction.epoch());
            if stamp.size_at_least >= LARGE_BYTES {
                self.set_large_file(transaction);
            }
        }
    }

    /// Writes `from`, which begins at byte `at` of the file, into blocks from `first` on that hold
    /// nothing yet: the parts of the first and last block that it does not cover become zeros.
    pub(crate) fn write_blocks(&self, first: PhysicalBlock, from: &[u8], at: u64) -> Result<()> {
        let bytes = u64::from(self.layout.block_bytes());
        let before = (at % bytes) as usize;
        let end = at + from.len() as u64;
        let after = (end.next_multiple_of(bytes) - end) as usize;
        let zeros = vec![0; before.max(after)];
        let buffers: WriteBuffers<'_> = [&zeros[..before], from, &zeros[..after]]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect();
        self.device.run(Operation::Write {
            offset: first.0 * bytes,
            from: buffers,
            persistence: Persistence::Cached,
        })
    }

    /// Makes the bytes of the last block behind byte `size` zeros, where it holds data: they become
    /// part of the file.
    pub(crate) fn zero_after_end(&self, cell: &InodeCell, size: u64) -> Result<()> {
        let bytes = u64::from(self.layout.block_bytes());
        let length = size.next_multiple_of(bytes) - size;
        if length == 0 {
            return Ok(());
        }
        match self.find(cell, self.block_of(size))? {
            Mapping::Extent(extent) if extent.kind == ExtentKind::Written => {
                let within = size - (u64::from(extent.logical.0) << self.layout.block_bits());
                let place = extent.physical.0 * bytes + within;
                io::write(&*self.device, place, &vec![0; length as usize])
            }
            _ => Ok(()),
        }
    }
}

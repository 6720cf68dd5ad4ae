//! Truncating and extending a file, and freeing blocks.
//!
//! A truncate that takes several transactions makes the file an orphan until it is done: after a
//! crash the next opening completes it.

use std::ops::Range;
use std::sync::Arc;

use extant_jbd2::Extension;
use extant_mballoc::{Block as AllocatorBlock, BlockRange};
use extant_ondisk::ext4::LogicalBlock;
use extant_ondisk::ext4::extent::{LOGICAL_END, LeafEntry};
use extant_ondisk::ext4::inode::FileType;
use extant_space::Result;

use super::stamp::Stamp;
use crate::engine::Engine;
use crate::groups::group_credits;
use crate::inode_cell::{InodeCell, InodeState};
use crate::mapping::{self, MapMut};
use crate::orphan;
use crate::state::FsState;
use crate::store::Store;
use crate::sync::{read, write};
use crate::transaction::{INODE_CREDITS, Transaction};
use crate::tree::Mapping;

/// Extents freed in one step: each may be in two groups. An extent longer than a group, possible
/// with small blocks, is freed in parts that are in at most two groups.
const EXTENTS_MAX: usize = 8;
/// Directory blocks freed in one step: each is metadata, which the journal must revoke.
const DIRECTORY_BLOCKS_MAX: u32 = 64;

impl Engine {
    /// Cuts the file or makes it longer by a hole.
    pub(crate) fn resize(&self, cell: &Arc<InodeCell>, size: u64) -> Result<()> {
        self.changeable()?;
        let _alone = write(&cell.operation);
        let fs = &*self.fs;
        let before = {
            let state = read(&cell.state);
            state.check_mutable()?;
            state.check_data_mutable()?;
            fs.check_size(&state, size)?;
            state.inode.size_bytes(&fs.layout)
        };
        if size > before {
            fs.zero_after_end(cell, before)?;
            let transaction = self.begin_recorded(INODE_CREDITS)?;
            cell.change(&transaction, |state| {
                fs.stamp_state(state, &transaction, Stamp::size_at_least(size));
            });
            // Blocks past the end that KEEP_SIZE allocated are kept.
            return Ok(());
        }
        // To the size it has: such blocks are freed, as in the kernel.
        self.truncate_to(cell, size)
    }

    /// Truncates the file to `size`, which is less than its size, and frees all blocks after it.
    pub(super) fn truncate_to(&self, cell: &Arc<InodeCell>, size: u64) -> Result<()> {
        let fs = &*self.fs;
        let credits = self.truncate_credits(cell)?;
        let transaction = self.begin_recorded(credits)?;
        let rest = {
            let mut state = write(&cell.state);
            state.join(cell, &transaction);
            // First, because it can fail: the size must not change while blocks after it remain.
            let behind = fs.block_after(size)..LOGICAL_END;
            let rest = fs.remove_step(&transaction, cell, &mut state, behind)?;
            state.inode.set_size_bytes(size, &fs.layout);
            fs.stamp_state(&mut state, &transaction, Stamp::SAME_SIZE);
            state.data_changed_in = Some(transaction.epoch());
            rest
        };
        if rest.is_some() {
            fs.add_orphan(&transaction, cell);
        }
        // The last block is zeroed before the size can commit: bytes past it must not reappear
        // later.
        fs.zero_after_end(cell, size)?;
        if rest.is_none() {
            return Ok(());
        }
        drop(transaction);
        self.finish_cut(cell)
    }

    /// Frees all blocks after the end of an orphan, and removes it from the list if it has a name.
    pub(crate) fn finish_cut(&self, cell: &Arc<InodeCell>) -> Result<()> {
        let fs = &*self.fs;
        let (size, is_mapped, has_foreign_data) = {
            let state = read(&cell.state);
            let size = state.inode.size_bytes(&fs.layout);
            let has_foreign_data = state.check_data().is_err();
            (size, state.inode.is_mapped(), has_foreign_data)
        };
        // The last block of an encrypted file is whole on the disk: zeros would destroy its end.
        if is_mapped && !has_foreign_data {
            fs.zero_after_end(cell, size)?;
        }
        if is_mapped {
            self.remove_blocks(cell, fs.block_after(size)..LOGICAL_END)?;
        }
        let transaction = self.begin(INODE_CREDITS + orphan::CREDITS)?;
        fs.remove_cut_orphan(&transaction, cell)
    }

    /// Frees the blocks of `range`, in as many transactions as necessary.
    pub(crate) fn remove_blocks(&self, cell: &Arc<InodeCell>, range: Range<u64>) -> Result<()> {
        let fs = &*self.fs;
        let mut rest = Some(range);
        while rest.is_some() {
            let credits = self.truncate_credits(cell)?;
            let transaction = self.begin_recorded(credits)?;
            let mut state = write(&cell.state);
            state.join(cell, &transaction);
            state.data_changed_in = Some(transaction.epoch());
            while let Some(range) = rest {
                rest = fs.remove_step(&transaction, cell, &mut state, range)?;
                if transaction.reserve(credits) == Extension::Refused {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Upper bound of the blocks modified by one freeing step, including the orphan record.
    pub(crate) fn truncate_credits(&self, cell: &InodeCell) -> Result<u32> {
        let groups = group_credits(2 * EXTENTS_MAX as u32);
        let forgotten = if holds_metadata(&read(&cell.state)) {
            DIRECTORY_BLOCKS_MAX
        } else {
            0
        };
        Ok(self.tree_credits(cell)? + groups + forgotten + orphan::CREDITS)
    }
}

impl FsState {
    /// Frees the last few extents of `range`; returns the part that may still have blocks.
    pub(crate) fn remove_step(
        &self,
        transaction: &Transaction<'_>,
        cell: &InodeCell,
        state: &mut InodeState,
        range: Range<u64>,
    ) -> Result<Option<Range<u64>>> {
        let format = self.tree_format(state);
        let is_metadata = holds_metadata(state);
        let blocks_max = if is_metadata {
            DIRECTORY_BLOCKS_MAX.into()
        } else {
            LOGICAL_END
        };
        // Bitmaps that cannot be read are found before the blocks have no reference any more.
        let find = |logical| {
            let found = mapping::find(&state.inode, &self.cache, format, logical)?;
            if let Mapping::Extent(extent) = &found {
                let start = AllocatorBlock(extent.physical.0);
                self.hand_over(BlockRange::new(start, extent.blocks.into()))?;
            }
            Ok(found)
        };
        let group_blocks = self.layout.blocks_per_group().into();
        let part = match last_extents(find, &range, blocks_max, group_blocks)? {
            Some(part) => part,
            None if self.depth(state)? == 0 => return Ok(None),
            // Empty nodes, which other implementations leave behind, are freed as well.
            None => range.clone(),
        };
        state.touch(transaction, part.clone());
        let mut freed: Vec<LeafEntry> = Vec::new();
        let mut store = Store::new(self, transaction, cell, state).freeing();
        let mut map = MapMut::new(state, &mut store, format);
        let left = map.remove_last(part.clone(), &mut |extent| freed.push(extent))?;
        for extent in freed {
            let blocks = BlockRange::new(AllocatorBlock(extent.physical.0), extent.blocks.into());
            if is_metadata {
                store.detach_metadata(blocks)?
            } else {
                store.detach(blocks)?
            }
        }
        store.settle(state)?;
        let end = left.map_or(part.start, |left| left.end);
        Ok((end > range.start).then_some(range.start..end))
    }
}

/// Whether the blocks that an inode refers to are changed through the journal.
fn holds_metadata(state: &InodeState) -> bool {
    state.inode.mode().file_type() == Some(FileType::Directory)
}

/// A part of `range`, up to its end, that holds its last few extents, or as much of them as has
/// `blocks_max` blocks, or of the first of them `group_blocks`; `None` when it holds none.
fn last_extents(
    find: impl Fn(LogicalBlock) -> Result<Mapping>,
    range: &Range<u64>,
    blocks_max: u64,
    group_blocks: u64,
) -> Result<Option<Range<u64>>> {
    let mut end = range.end.min(LOGICAL_END);
    let mut found = 0;
    let mut start = end;
    let mut blocks_left = blocks_max;
    while end > range.start && found < EXTENTS_MAX && blocks_left > 0 {
        let last = LogicalBlock((end - 1) as u32);
        match find(last)? {
            Mapping::Hole(hole) => end = hole.start,
            Mapping::Extent(extent) => {
                let first = range.start.max(extent.logical.0.into());
                let blocks = (end - first).min(blocks_left).min(group_blocks);
                start = end - blocks;
                found += 1;
                if start > first {
                    break;
                }
                end = extent.logical.0.into();
                blocks_left -= blocks;
            }
        }
    }
    Ok((found > 0).then_some(start..range.end))
}

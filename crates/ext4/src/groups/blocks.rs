//! The block bitmap of a group: which blocks have references.
//!
//! A bit is a cluster: a block, or with `bigalloc`, which is only read, several. Functions that
//! change or search bits take them for blocks.

use std::ops::Range;
use std::sync::MutexGuard;

use extant_ondisk::ext4::bitmap::Bitmap;
use extant_ondisk::ext4::group_descriptor::GroupFlags;
use extant_ondisk::ext4::{GroupNumber, PhysicalBlock};
use extant_space::{Error, ErrorKind, Result};

use super::{BitmapBytes, Group, Groups};
use crate::transaction::Transaction;

/// Treatment of freed blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FreedBlocks {
    Used,
    Free,
}

impl Groups {
    /// Notes that `range` is referred to from now on.
    ///
    /// # Errors
    /// `Corrupt` when some of it is in use already; nothing is changed in that group then.
    pub(crate) fn use_blocks(
        &self,
        transaction: &Transaction<'_>,
        range: Range<u64>,
    ) -> Result<()> {
        self.mark(Some(transaction), range, FreedBlocks::Used)
    }

    /// The same for blocks of a group that the running transaction has changed already.
    ///
    /// # Errors
    /// As [`use_blocks`](Self::use_blocks).
    pub(crate) fn use_joined(&self, range: &Range<u64>) -> Result<()> {
        self.mark(None, range.clone(), FreedBlocks::Used)
    }

    /// Clears the bits of `range`.
    ///
    /// # Errors
    /// `Corrupt` if some of them are clear; nothing is changed in that group then.
    pub(crate) fn free_blocks(
        &self,
        transaction: &Transaction<'_>,
        range: Range<u64>,
    ) -> Result<()> {
        self.mark(Some(transaction), range, FreedBlocks::Free)
    }

    /// Whether all blocks of `range` are free.
    ///
    /// # Errors
    /// Those of reading a bitmap.
    pub(crate) fn are_free(&self, range: Range<u64>) -> Result<bool> {
        let layout = self.layout();
        let mut at = range.start;
        while at < range.end {
            let Some((number, start)) = layout.locate(PhysicalBlock(at)) else {
                return Ok(false);
            };
            let in_group = u64::from(layout.blocks_in(number) - start);
            let count = in_group.min(range.end - at) as u32;
            let group = self.group_with_blocks(number)?;
            let bitmap = group.block_bitmap.as_ref().expect("just read");
            if !bitmap.is_all(start..start + count, false) {
                return Ok(false);
            }
            at += u64::from(count);
        }
        Ok(true)
    }

    /// A free block near `goal` that `is_kept` does not exclude. Allocates nothing; for use before
    /// the allocator exists.
    ///
    /// # Errors
    /// `NoSpace`; those of reading a bitmap.
    pub(crate) fn find_free(
        &self,
        goal: PhysicalBlock,
        mut is_kept: impl FnMut(PhysicalBlock) -> bool,
    ) -> Result<PhysicalBlock> {
        let layout = self.layout();
        let count = layout.groups();
        let (home, from) = layout.locate(goal).unwrap_or((GroupNumber(0), 0));
        // The first group twice: from the goal on, and at last from its start.
        for step in 0..=count {
            let number = GroupNumber((home.0 + step) % count);
            let mut at = if step == 0 { from } else { 0 };
            if self.descriptor(number)?.free_blocks() == 0 {
                continue;
            }
            let group = self.group_with_blocks(number)?;
            let bitmap = group.block_bitmap.as_ref().expect("just read");
            while let Some(bit) = bitmap.first_unset(at..layout.blocks_in(number)) {
                let block = PhysicalBlock(layout.first_block(number).0 + u64::from(bit));
                if !is_kept(block) {
                    return Ok(block);
                }
                at = bit + 1;
            }
        }
        Err(Error::new(ErrorKind::NoSpace).detail("no block is free"))
    }

    fn mark(
        &self,
        transaction: Option<&Transaction<'_>>,
        range: Range<u64>,
        to: FreedBlocks,
    ) -> Result<()> {
        let layout = self.layout();
        let mut at = range.start;
        while at < range.end {
            let Some((number, start)) = layout.locate(PhysicalBlock(at)) else {
                return Err(Error::new(ErrorKind::Corrupt)
                    .detail(format!(
                        "blocks {at} to {}: outside the file system",
                        range.end
                    ))
                    .advice("check the file system"));
            };
            let in_group = u64::from(layout.blocks_in(number) - start);
            let count = in_group.min(range.end - at) as u32;
            let mut group = self.group_with_blocks(number)?;
            let bits = start..start + count;
            match transaction {
                Some(transaction) => group.join(transaction, Bitmap::Blocks),
                None => debug_assert!(group.blocks_changed, "a group that has joined"),
            }
            let bitmap = group.block_bitmap.as_mut().expect("just read");
            if !bitmap.flip(bits, to == FreedBlocks::Used) {
                let is = if to == FreedBlocks::Free {
                    "free"
                } else {
                    "in use"
                };
                return Err(Error::new(ErrorKind::Corrupt)
                    .detail(format!(
                        "blocks {at} to {}: some are {is} already",
                        at + u64::from(count)
                    ))
                    .advice("check the file system"));
            }
            let free = group.descriptor.free_blocks();
            let free = match to {
                FreedBlocks::Used => free.checked_sub(count),
                FreedBlocks::Free => free.checked_add(count),
            };
            group
                .descriptor
                .set_free_blocks(free.expect("the count follows the bitmap"));
            group.clear_flag(GroupFlags::BLOCK_UNINIT, layout);
            at += u64::from(count);
        }
        Ok(())
    }

    /// The group with its block bitmap, read now if it was not.
    pub(super) fn group_with_blocks(&self, number: GroupNumber) -> Result<MutexGuard<'_, Group>> {
        let mut group = self.group(number)?;
        if group.block_bitmap.is_none() {
            group.block_bitmap = Some(self.block_bitmap(&group)?);
        }
        Ok(group)
    }

    /// The current block bitmap. It is not cached unless the group is in use.
    pub(crate) fn block_bitmap_now(&self, number: GroupNumber) -> Result<BitmapBytes> {
        let group = self.group(number)?;
        match &group.block_bitmap {
            Some(bitmap) => Ok(bitmap.clone()),
            None => self.block_bitmap(&group),
        }
    }

    fn block_bitmap(&self, group: &Group) -> Result<BitmapBytes> {
        let layout = self.layout();
        let number = group.number;
        let clusters = layout.clusters_in(number);
        let bitmap = if group.flags(layout).contains(GroupFlags::BLOCK_UNINIT) {
            self.fixed_blocks(group)
        } else {
            let place = group.descriptor.block_bitmap();
            let block = self.cache.read(place, &|bytes| {
                Bitmap::Blocks.verify(bytes, number, &group.descriptor, &self.superblock)
            })?;
            BitmapBytes::from_block(&block)
        };
        let (free, promised) = (bitmap.count_unset(clusters), group.descriptor.free_blocks());
        if free != promised {
            return Err(Error::new(ErrorKind::Corrupt)
                .detail(format!(
                    "block bitmap of group {number}: {free} free blocks, where its descriptor says {promised}"
                ))
                .advice("check the file system"));
        }
        self.check_zone(number, &bitmap)?;
        Ok(bitmap)
    }

    /// Refuses a bitmap that marks the file system's own metadata as free.
    fn check_zone(&self, number: GroupNumber, bitmap: &BitmapBytes) -> Result<()> {
        let layout = self.layout();
        let first = layout.first_block(number).0;
        let all = first..first + u64::from(layout.blocks_in(number));
        for range in self.zone.within(all) {
            let per_cluster = u64::from(layout.blocks_per_cluster());
            let start = (range.start - first) / per_cluster;
            let end = (range.end - first).div_ceil(per_cluster);
            if let Some(bit) = bitmap.first_unset(start as u32..end as u32) {
                let block = range.start.max(first + u64::from(bit) * per_cluster);
                return Err(Error::new(ErrorKind::Corrupt)
                    .detail(format!(
                        "block bitmap of group {number}: block {block} is free, which holds metadata of the file system itself"
                    ))
                    .advice("check the file system"));
            }
        }
        Ok(())
    }

    /// Contents of a bitmap that was never written: only the group's own metadata is in use.
    fn fixed_blocks(&self, group: &Group) -> BitmapBytes {
        let layout = self.layout();
        let (number, descriptor) = (group.number, &group.descriptor);
        let block_bytes = layout.block_bytes() as usize;
        let mut bitmap = BitmapBytes::unused(block_bytes, layout.clusters_in(number));
        let per_cluster = layout.blocks_per_cluster();
        let fixed = layout.fixed_blocks(number).div_ceil(per_cluster);
        bitmap.set(0..fixed, true);
        for (start, count) in [
            (descriptor.block_bitmap(), 1),
            (descriptor.inode_bitmap(), 1),
            (descriptor.inode_table(), layout.inode_table_blocks()),
        ] {
            for block in (start.0..start.0 + u64::from(count)).map(PhysicalBlock) {
                if let Some((at, index)) = layout.locate(block)
                    && at == number
                {
                    let bit = index / per_cluster;
                    bitmap.set(bit..bit + 1, true);
                }
            }
        }
        bitmap
    }
}

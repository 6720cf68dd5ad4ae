//! `fallocate`: every mode.
//!
//! | mode | whole blocks of the range | blocks at the edge |
//! |---|---|---|
//! | allocate | holes become unwritten | as whole ones |
//! | punch hole | become holes | written ones: zeros inside the range |
//! | zero range | become unwritten | written ones: zeros inside the range; holes: unwritten |
//! | write zeroes | become zeros, written | written ones: zeros inside the range; others: zeros as a whole, written |
//! | collapse, insert | removed, inserted | refused: only whole blocks |
//!
//! Each chunk is a transaction of its own, so that a long request does not block others. After an
//! error or a crash a part is done: from the start of the range, but blocks are freed from its end;
//! after an error the size is the old one.
//! Collapse and insert begin moving at the hole that is closed, or at the end of the file.
//!
//! A file with a block map has no unwritten blocks: only punch is supported, as in the kernel.

use std::ops::Range;
use std::sync::Arc;

use extant_blockdev::Zeroing;
use extant_jbd2::Extension;
use extant_mballoc::Allocation;
use extant_ondisk::ext4::extent::{ExtentKind, LeafEntry};
use extant_ondisk::ext4::layout::Mapping as MappingKind;
use extant_ondisk::ext4::{LogicalBlock, PhysicalBlock};
use extant_space::{ByteRange, Error, ErrorKind, FallocateMode, Result, traced};

use super::check_extents;
use super::stamp::Stamp;
use super::write::MapPosition;
use crate::engine::Engine;
use crate::inode_cell::InodeCell;
use crate::io;
use crate::options::DeviceZeroes;
use crate::state::FsState;
use crate::sync::{read, write};
use crate::transaction::{INODE_CREDITS, Transaction};
use crate::tree::{Direction, Mapping};

/// Zeros that are written at a time at the edges of a range.
const PIECES_MAX: u32 = 64;

impl Engine {
    /// One operation of `fallocate(2)`.
    pub(crate) fn fallocate(
        &self,
        cell: &Arc<InodeCell>,
        mode: FallocateMode,
        range: ByteRange,
    ) -> Result<()> {
        traced!(
            DEBUG,
            "fallocate",
            (
                inode = cell.number.0,
                mode = mode.name(),
                start_bytes = range.start(),
                length_bytes = range.len()
            ),
            self.fallocate_locked(cell, mode, range)
        )
    }

    /// The same, as the only change of the file.
    fn fallocate_locked(
        &self,
        cell: &Arc<InodeCell>,
        mode: FallocateMode,
        range: ByteRange,
    ) -> Result<()> {
        self.changeable()?;
        if range.is_empty() {
            return Err(Error::new(ErrorKind::InvalidArgument).detail("an empty range"));
        }
        let _alone = write(&cell.operation);
        let fs = &*self.fs;
        let (size, first) = {
            let state = read(&cell.state);
            match mode {
                FallocateMode::Allocate | FallocateMode::AllocateKeepSize => {
                    state.check_growable()?;
                }
                _ => state.check_mutable()?,
            }
            state.check_data_mutable()?;
            // In the kernel's order: first the limits of every file, then those of this one.
            fs.check_size_of(MappingKind::Extents, range.end())?;
            if mode != FallocateMode::PunchHole {
                check_extents(&state)?;
            }
            let first = match mode {
                FallocateMode::Allocate | FallocateMode::AllocateKeepSize => {
                    Some(fs.spot_in(&state, fs.block_of(range.start()))?)
                }
                _ => None,
            };
            (state.inode.size_bytes(&fs.layout), first)
        };
        let grown = Stamp::size_at_least(range.end());
        let kept = Stamp::SAME_SIZE;
        let grow = |stamp: Stamp| {
            if stamp.size_at_least > size {
                fs.zero_after_end(cell, size)
            } else {
                Ok(())
            }
        };
        let done = match mode {
            FallocateMode::Allocate => {
                grow(grown).and_then(|()| self.allocate(cell, range, grown, first))
            }
            FallocateMode::AllocateKeepSize => self.allocate(cell, range, kept, first),
            FallocateMode::PunchHole => self.punch(cell, range),
            FallocateMode::ZeroRange => grow(grown).and_then(|()| self.zero(cell, range, grown)),
            FallocateMode::ZeroRangeKeepSize => self.zero(cell, range, kept),
            FallocateMode::WriteZeroes => {
                grow(grown).and_then(|()| self.write_zeroes(cell, range, grown))
            }
            FallocateMode::CollapseRange => self.collapse(cell, range, size),
            FallocateMode::InsertRange => self.insert_hole(cell, range, size),
            // No extent here is ever shared.
            FallocateMode::UnshareRange => self.allocate(cell, range, grown, None),
            _ => Err(Error::new(ErrorKind::Unsupported).detail(mode.name())),
        };
        if done.is_err() {
            // The first error is the one to report.
            let _ = self.restore_size(cell, mode, size);
        }
        done
    }

    /// The size after an error is that from before: the cache of a mount keeps its own, and learns
    /// of no other one from a failed call. Unwritten space that was allocated after the end is
    /// kept, as in the kernel. Written blocks there are an error for e2fsck: after write zeroes all
    /// space after the end is freed, also what was allocated before.
    fn restore_size(&self, cell: &Arc<InodeCell>, mode: FallocateMode, size: u64) -> Result<()> {
        let layout = &self.fs.layout;
        let has_grown = read(&cell.state).inode.size_bytes(layout) > size;
        match mode {
            FallocateMode::WriteZeroes if has_grown => self.truncate_to(cell, size),
            FallocateMode::Allocate | FallocateMode::UnshareRange | FallocateMode::ZeroRange
                if has_grown =>
            {
                let transaction = self.begin(INODE_CREDITS)?;
                cell.change(&transaction, |state| {
                    state.inode.set_size_bytes(size, layout);
                    state.data_changed_in = Some(transaction.epoch());
                });
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Turns holes into unwritten extents. `first` is the mapping at the start, if known.
    fn allocate(
        &self,
        cell: &Arc<InodeCell>,
        range: ByteRange,
        stamp: Stamp,
        mut first: Option<MapPosition>,
    ) -> Result<()> {
        let fs = &*self.fs;
        let blocks = u64::from(fs.block_of(range.start()).0)..fs.block_after(range.end());
        let mut at = blocks.start;
        while at < blocks.end {
            let position = match first.take() {
                Some(position) => position,
                None => fs.position(cell, LogicalBlock(at as u32))?,
            };
            at = self.allocate_some(cell, at..blocks.end, stamp, position)?;
        }
        Ok(())
    }

    /// Fills a number of pieces of `blocks` in one transaction; returns where it stopped.
    fn allocate_some(
        &self,
        cell: &Arc<InodeCell>,
        blocks: Range<u64>,
        stamp: Stamp,
        mut position: MapPosition,
    ) -> Result<u64> {
        let fs = &*self.fs;
        let transaction = self.begin_recorded(fs.tree_credits_at(position.depth))?;
        let mut at = blocks.start;
        let mut is_stamped = false;
        for _ in 0..PIECES_MAX {
            match position.mapping {
                Mapping::Extent(extent) => {
                    at = extent.logical_end();
                    is_stamped = false;
                }
                Mapping::Hole(ref hole) => {
                    let wanted = hole.end.min(blocks.end) - at;
                    let allocation = fs.take(cell, &position, wanted, Some(&transaction))?;
                    at = fs.fill_hole(&transaction, cell, at, allocation, stamp)?;
                    is_stamped = true;
                }
            }
            if at >= blocks.end {
                break;
            }
            position = fs.position(cell, LogicalBlock(at as u32))?;
            if transaction.reserve(fs.tree_credits_at(position.depth)) == Extension::Refused {
                break;
            }
        }
        if at >= blocks.end && !is_stamped {
            cell.change(&transaction, |state| {
                fs.stamp_state(state, &transaction, stamp)
            });
        }
        Ok(at)
    }

    fn punch(&self, cell: &Arc<InodeCell>, range: ByteRange) -> Result<()> {
        let fs = &*self.fs;
        fs.zero_edges(cell, range)?;
        let inner = fs.whole_blocks(range);
        if !inner.is_empty() {
            self.remove_blocks(cell, inner)?;
        }
        self.stamp_only(cell, Stamp::SAME_SIZE)
    }

    fn zero(&self, cell: &Arc<InodeCell>, range: ByteRange, stamp: Stamp) -> Result<()> {
        let fs = &*self.fs;
        fs.zero_edges(cell, range)?;
        let inner = fs.whole_blocks(range);
        if !inner.is_empty() {
            self.convert(cell, inner, ExtentKind::Unwritten, Stamp::SAME_SIZE)?;
        }
        self.allocate(cell, range, stamp, None)
    }

    fn write_zeroes(&self, cell: &Arc<InodeCell>, range: ByteRange, stamp: Stamp) -> Result<()> {
        let fs = &*self.fs;
        let bits = fs.layout.block_bits();
        self.allocate(cell, range, Stamp::SAME_SIZE, None)?;
        fs.zero_edges(cell, range)?;
        let mut at = u64::from(fs.block_of(range.start()).0);
        let end = fs.block_after(range.end());
        let inner = fs.whole_blocks(range);
        while at < end {
            let Mapping::Extent(extent) = fs.find(cell, LogicalBlock(at as u32))? else {
                return Err(Error::new(ErrorKind::Corrupt).detail("a block was not allocated"));
            };
            let to = extent.logical_end().min(end);
            // Written blocks at the edge have had their part above.
            let part = match extent.kind {
                ExtentKind::Unwritten => at..to,
                ExtentKind::Written => {
                    at.max(inner.start)..to.min(inner.end).max(at.max(inner.start))
                }
            };
            if !part.is_empty() {
                let within = part.start - u64::from(extent.logical.0);
                let first = extent.physical.0 + within;
                let place = first..first + (part.end - part.start);
                let bytes = ByteRange::new(place.start << bits, place.end << bits);
                let zeroing = match fs.options.zeroes {
                    DeviceZeroes::Allocated => Zeroing::ALLOCATED,
                    DeviceZeroes::Written => Zeroing::WRITTEN,
                    DeviceZeroes::MayUnmap => {
                        fs.forget_place(&place);
                        Zeroing::ANY
                    }
                };
                fs.write_zeroes(cell, bytes, zeroing)?;
            }
            if extent.kind == ExtentKind::Unwritten {
                let reached = Stamp::size_at_least(stamp.size_at_least.min(to << bits));
                self.make_written(cell, at..to, reached)?;
            }
            at = to;
        }
        self.stamp_only(cell, stamp)
    }

    fn collapse(&self, cell: &Arc<InodeCell>, range: ByteRange, size: u64) -> Result<()> {
        let fs = &*self.fs;
        let blocks = fs.aligned_blocks(range)?;
        if range.end() >= size {
            return Err(Error::new(ErrorKind::InvalidArgument)
                .detail("the range to collapse reaches the end of the file")
                .advice("cut the file instead"));
        }
        self.remove_blocks(cell, blocks.clone())?;
        let kept = Stamp::SAME_SIZE;
        self.shift(
            cell,
            blocks.end,
            blocks.end - blocks.start,
            Direction::Left,
            kept,
        )?;
        let transaction = self.begin(INODE_CREDITS)?;
        cell.change(&transaction, |state| {
            state.inode.set_size_bytes(size - range.len(), &fs.layout);
            fs.stamp_state(state, &transaction, Stamp::SAME_SIZE);
        });
        Ok(())
    }

    fn insert_hole(&self, cell: &Arc<InodeCell>, range: ByteRange, size: u64) -> Result<()> {
        let fs = &*self.fs;
        let blocks = fs.aligned_blocks(range)?;
        if range.start() >= size {
            return Err(Error::new(ErrorKind::InvalidArgument)
                .detail("the range to insert begins at or past the end of the file")
                .advice("make the file longer instead"));
        }
        let grown = size + range.len();
        fs.check_size(&read(&cell.state), grown)?;
        // The size first: moved extents must never be past the end.
        let grown = Stamp::size_at_least(grown);
        self.shift(
            cell,
            blocks.start,
            blocks.end - blocks.start,
            Direction::Right,
            grown,
        )
    }

    /// Moves extents, once it is certain that it can be done; the size changes before the first of
    /// them moves.
    fn shift(
        &self,
        cell: &Arc<InodeCell>,
        from: u64,
        by: u64,
        direction: Direction,
        stamp: Stamp,
    ) -> Result<()> {
        let fs = &*self.fs;
        let mut rest = None;
        let mut begun = false;
        while !begun || rest.is_some() {
            let credits = self.tree_credits(cell)?;
            let transaction = self.begin(credits)?;
            let mut state = write(&cell.state);
            state.join(cell, &transaction);
            let is_first = !begun;
            let moved = fs.with_tree(&transaction, cell, &mut state, |tree| {
                if is_first {
                    rest = tree.shift(from, by, direction)?;
                    begun = true;
                }
                while let Some(shift) = rest.take() {
                    if transaction.reserve(credits) == Extension::Refused {
                        rest = Some(shift);
                        break;
                    }
                    rest = tree.shift_next(&shift)?;
                }
                Ok(())
            });
            if !begun {
                return moved;
            }
            if is_first {
                fs.stamp_state(&mut state, &transaction, stamp);
            }
            state.data_changed_in = Some(transaction.epoch());
            moved?;
        }
        Ok(())
    }

    fn stamp_only(&self, cell: &Arc<InodeCell>, stamp: Stamp) -> Result<()> {
        let transaction = self.begin_recorded(INODE_CREDITS)?;
        cell.change(&transaction, |state| {
            self.fs.stamp_state(state, &transaction, stamp);
        });
        Ok(())
    }
}

impl FsState {
    /// Adds unwritten blocks to the file from block `at` on: as many as one extent can have, or
    /// more extents if the transaction has room. Contiguous blocks are assigned on the device in
    /// one request. Returns the end.
    fn fill_hole(
        &self,
        transaction: &Transaction<'_>,
        cell: &Arc<InodeCell>,
        mut at: u64,
        allocation: Allocation<'_>,
        stamp: Stamp,
    ) -> Result<u64> {
        let kind = ExtentKind::Unwritten;
        let range = allocation.range();
        self.assign(PhysicalBlock(range.start().0), range.count().into())?;
        let mut rest = Some(allocation);
        while let Some(mut piece) = rest {
            rest = piece.split_off(kind.blocks_max().into());
            let extent = LeafEntry {
                logical: LogicalBlock(at as u32),
                physical: PhysicalBlock(piece.range().start().0),
                blocks: piece.range().count() as u16,
                kind,
            };
            at = extent.logical_end();
            let reached =
                Stamp::size_at_least(stamp.size_at_least.min(at << self.layout.block_bits()));
            self.insert_extent(transaction, cell, extent, piece, reached)?;
            let depth = match rest {
                Some(_) => self.depth(&read(&cell.state))?,
                None => break,
            };
            if transaction.reserve(self.tree_credits_at(depth)) == Extension::Refused {
                // The next transaction finds the rest free.
                break;
            }
        }
        Ok(at)
    }

    /// Zeroes the parts inside `range` of written blocks at its edges.
    fn zero_edges(&self, cell: &InodeCell, range: ByteRange) -> Result<()> {
        let bytes = u64::from(self.layout.block_bytes());
        let first_end = range.start().next_multiple_of(bytes).min(range.end());
        let last_start = (range.end() / bytes * bytes).max(first_end);
        for (start, end) in [(range.start(), first_end), (last_start, range.end())] {
            if start == end {
                continue;
            }
            if let Mapping::Extent(extent) = self.find(cell, self.block_of(start))?
                && extent.kind == ExtentKind::Written
            {
                let within = start - u64::from(extent.logical.0) * bytes;
                let place = extent.physical.0 * bytes + within;
                io::write(&*self.device, place, &vec![0; (end - start) as usize])?;
            }
        }
        Ok(())
    }

    /// The whole blocks in `range`.
    fn whole_blocks(&self, range: ByteRange) -> Range<u64> {
        let start = self.block_after(range.start());
        start..(range.end() >> self.layout.block_bits()).max(start)
    }

    fn aligned_blocks(&self, range: ByteRange) -> Result<Range<u64>> {
        let bytes = u64::from(self.layout.block_bytes());
        if !range.start().is_multiple_of(bytes) || !range.len().is_multiple_of(bytes) {
            return Err(Error::new(ErrorKind::InvalidArgument)
                .detail(format!("not in whole blocks of {bytes} bytes")));
        }
        Ok(range.start() / bytes..range.end() / bytes)
    }
}

//! Owners: files, as the allocator sees them.
//!
//! An owner has an opaque number, which selects its stream goal, and *windows*: blocks behind its
//! existing ones that are reserved for it while it grows, so that concurrent writers each get long
//! extents. A window is taken from its group as a whole; requests that continue the file are
//! served from it under the owner's own lock, without access to a group. Windows are freed when
//! the owner is dropped, and reclaimed when other owners need the space.
//!
//! Invariant: the windows of all owners are disjoint, in use in their groups' bitmaps, and counted
//! as free by [`Allocator::free_blocks`](crate::Allocator::free_blocks).

use std::fmt;

use extant_space::{Error, ErrorKind, Result};

use crate::counters::Count;
use crate::options::{Reservation, Reuse, Windows};
use crate::registry::{OwnerShared, OwnerState};
use crate::request::{Alignment, Goal, RequestFlags};
use crate::search::Plan;
use crate::shared::Shared;
use crate::sync::{Arc, MutexGuard, after_panics, lock, lock_timed};
use crate::uncommitted::Runs;
use crate::windows::may_serve;
use crate::{Block, BlockRange, Request, TransactionId};

/// When freed blocks may be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Free {
    /// At once: there is no journal, or no metadata refers to them.
    Now,
    /// When the transaction that freed them has committed; blocks that the same transaction
    /// allocated, at once.
    AfterCommit(TransactionId),
}

/// The handle of a file that owns blocks.
///
/// Cheap: each inode in memory has one. Threads may share it.
pub struct Owner {
    shared: Arc<Shared>,
    inner: Arc<OwnerShared>,
}

/// Allocated blocks to which no metadata refers yet. Dropping it frees them at once.
#[must_use = "dropping it frees the blocks"]
pub struct Allocation<'a> {
    owner: &'a Owner,
    range: BlockRange,
    kept: bool,
}

impl Owner {
    pub(crate) fn new(shared: &Arc<Shared>, number: u64, blocks: u64) -> Self {
        let inner = Arc::new(OwnerShared::new(number, blocks));
        shared.owners.add(&inner);
        Self {
            shared: Arc::clone(shared),
            inner,
        }
    }

    /// The number of the owner.
    pub fn number(&self) -> u64 {
        self.inner.number
    }

    /// Allocates consecutive blocks.
    ///
    /// # Errors
    /// - `NoSpace` when no run of `minimum` free blocks exists below the limit, also not in
    ///   windows;
    /// - `InvalidArgument` for a request that can never be met.
    pub fn allocate(&self, request: &Request) -> Result<Allocation<'_>> {
        let range = self.allocate_range(request)?;
        Ok(Allocation {
            owner: self,
            range,
            kept: false,
        })
    }

    fn allocate_range(&self, request: &Request) -> Result<BlockRange> {
        let mut state = self.lock();
        if let Some(range) = state.windows.take(request) {
            self.shared.counters.window_hit(range.count());
            record_allocated(&mut state, request, range);
            return Ok(range);
        }
        self.shared.counters.add(Count::Requests, 1);
        let range = match request.validate(self.shared.shape.blocks()) {
            Ok(()) => self.allocate_from_groups(state, request),
            Err(error) => Err(error),
        };
        if range.is_err() {
            self.shared.counters.add(Count::Failures, 1);
        }
        range
    }

    /// The slow path, which searches the groups. When it finds no space, it reclaims windows and
    /// waits for the discard in flight, and repeats as long as either may have freed blocks.
    fn allocate_from_groups<'a>(
        &'a self,
        mut state: MutexGuard<'a, OwnerState>,
        request: &Request,
    ) -> Result<BlockRange> {
        loop {
            let before = self.shared.pending.discard_sequence();
            let error = match self.refill(&mut state, request) {
                Ok(range) => {
                    record_allocated(&mut state, request, range);
                    return Ok(range);
                }
                Err(error) => error,
            };
            // Only one owner is locked at a time: another thread may hold the lock of its owner and
            // wait for this one.
            drop(state);
            if self.shared.reclaim_windows() == 0 && !self.shared.pending.wait_for_discard(before) {
                return Err(error);
            }
            state = self.lock();
        }
    }

    /// Allocates blocks from the groups, with a window behind them if the request qualifies.
    fn refill(&self, state: &mut OwnerState, request: &Request) -> Result<BlockRange> {
        let shared = &*self.shared;
        let mut plan = Plan {
            owner: self.inner.number,
            goal: request.goal,
            length: request.wanted,
            wanted: request.wanted,
            minimum: request.minimum,
            alignment: request.alignment,
            limit: request.limit,
            flags: request.flags,
        };
        let reserved = shared.options.reserved_blocks;
        let free = shared.free.sum().saturating_sub(reserved);
        if !request.flags.contains(RequestFlags::USE_RESERVE) && reserved > 0 {
            if free < request.minimum.into() {
                return Err(reserve_only(reserved));
            }
            plan.wanted = plan.wanted.min(u32::try_from(free).unwrap_or(u32::MAX));
            plan.length = plan.wanted;
        }
        // A window never takes from the reserve, because it serves requests without `USE_RESERVE`
        // too.
        let spare = free.saturating_sub(plan.wanted.into());
        let extra = self.window_length(state, request, spare);
        // The rest of a window that begins at the goal is used first.
        if let Goal::Follow(block) = request.goal
            && may_serve(request)
            && let Some(rest) = state.windows.ending_run(block)
        {
            let missing = plan.wanted.saturating_sub(rest.count());
            let more = missing.saturating_add(extra.unwrap_or(0));
            return self.extend_window(state, &plan, rest, more, request);
        }
        if let Some(extra) = extra {
            plan.length = plan.length.saturating_add(extra);
            if plan.goal == Goal::Anywhere
                && let Some(rounded) = plan.length.checked_next_power_of_two()
                && u64::from(rounded) <= free
            {
                plan.length = rounded;
            }
        }
        let range = shared.take(&plan)?;
        let split = range.start().0 + u64::from(range.count().min(plan.wanted));
        let (taken, window) = range.split_at(Block(split));
        if let Some(window) = window {
            self.keep_window(state, window)?;
        }
        let taken = taken.expect("at least one block was taken");
        shared
            .counters
            .add(Count::GroupBlocks, taken.count().into());
        Ok(taken)
    }

    /// Extends a window in place, if the blocks behind it are free and in its group, then serves
    /// the request from it.
    fn extend_window(
        &self,
        state: &mut OwnerState,
        plan: &Plan,
        rest: BlockRange,
        more: u32,
        request: &Request,
    ) -> Result<BlockRange> {
        let extension = Plan {
            goal: Goal::Follow(rest.end()),
            length: more,
            ..plan.clone()
        };
        let last = Block(rest.end().0 - 1);
        if self.shared.geometry().is_one_group(last, rest.end())
            && let Some(range) = self.shared.take_at(rest.end(), &extension, 1)
        {
            let counters = &self.shared.counters;
            counters.add(Count::GoalHits, 1);
            counters.add(Count::WindowBlocksAdded, range.count().into());
            state.windows.extend(rest, range);
        }
        // Shorter than wanted when the blocks behind the window are in use, as at any other goal.
        let short = Request {
            wanted: plan.wanted,
            ..request.clone()
        };
        let (range, from) = match state.windows.take_up_to(&short) {
            Some(range) => (range, Count::WindowBlocksTaken),
            None => (self.shared.take(plan)?, Count::GroupBlocks),
        };
        self.shared.counters.add(from, range.count().into());
        Ok(range)
    }

    /// The length of the window behind a request, of `spare` free blocks; `None` for no window.
    fn window_length(&self, state: &OwnerState, request: &Request, spare: u64) -> Option<u32> {
        let Reservation::Windows {
            smallest,
            largest,
            growth,
        } = self.shared.options.reservation
        else {
            return None;
        };
        let none = RequestFlags::METADATA | RequestFlags::NO_NORMALISE;
        if request.flags.intersects(none)
            || request.alignment != Alignment::Any
            || self.shared.windows() == Windows::Closed
        {
            return None;
        }
        let grown = state.blocks.saturating_mul(growth.into());
        let due = grown.clamp(smallest.into(), largest.into());
        // All owners with windows and this one share half of the spare blocks.
        let share = spare / (2 * (self.shared.owners.with_windows() + 1));
        let length = due.min(share) as u32;
        (length > 0).then_some(length)
    }

    fn keep_window(&self, state: &mut OwnerState, window: BlockRange) -> Result<()> {
        if !state.has_windows {
            state.has_windows = true;
            self.shared.owners.window_opened();
        }
        let added = window.count().into();
        let old = state.windows.add(window);
        self.shared.counters.add(Count::WindowBlocksAdded, added);
        old.into_iter()
            .try_for_each(|old| self.shared.free_window(old))
    }

    /// Frees blocks.
    ///
    /// # Errors
    /// - `Corrupt` for blocks that are free already, or whose group is corrupt;
    /// - `InvalidArgument` for blocks outside the file system.
    ///
    /// The blocks before the failing ones are free then. A block in the window of another owner
    /// counts as in use.
    pub fn free(&self, range: BlockRange, when: Free) -> Result<()> {
        let mut state = self.lock();
        if let Some(window) = state.windows.iter().find(|window| window.overlaps(range)) {
            return Err(in_window(range, window));
        }
        self.free_unless_kept(&mut state, range, when)?;
        self.freed(&mut state, range);
        Ok(())
    }

    /// Frees blocks that are in none of the owner's windows.
    fn free_unless_kept(
        &self,
        state: &mut OwnerState,
        range: BlockRange,
        when: Free,
    ) -> Result<()> {
        let Free::AfterCommit(transaction) = when else {
            let _ = state.uncommitted.remove(range, None);
            return self.free_or_keep(state, range, Provenance::Unchecked);
        };
        let uncommitted = match self.shared.options.reuse {
            Reuse::InsideTransaction => state.uncommitted.remove(range, Some(transaction)),
            Reuse::AfterCommit => Runs::new(),
        };
        if uncommitted.as_slice() == [range] {
            self.reused(range);
            return self.free_or_keep(state, range, Provenance::Allocated);
        }
        let mut rest = Some(range);
        for part in uncommitted {
            let (before, _) = rest.map_or((None, None), |rest| rest.split_at(part.start()));
            if let Some(before) = before {
                self.shared.free_after(before, transaction)?;
            }
            self.reused(part);
            self.free_or_keep(state, part, Provenance::Allocated)?;
            rest = BlockRange::between(part.end(), range.end());
        }
        rest.map_or(Ok(()), |rest| self.shared.free_after(rest, transaction))
    }

    /// Frees blocks of an allocation that no metadata refers to.
    fn take_back(&self, range: BlockRange) {
        let mut state = self.lock();
        let _ = state.uncommitted.remove(range, None);
        let freed = self.free_or_keep(&mut state, range, Provenance::Allocated);
        freed.expect("blocks that were just taken are in use");
        self.freed(&mut state, range);
    }

    fn freed(&self, state: &mut OwnerState, range: BlockRange) {
        state.blocks = state.blocks.saturating_sub(range.count().into());
        let blocks = range.count().into();
        self.shared.counters.add(Count::FreedBlocks, blocks);
    }

    fn reused(&self, range: BlockRange) {
        let blocks = range.count().into();
        self.shared.counters.add(Count::ReusedBlocks, blocks);
    }

    /// Blocks that can be reused at once: joins them to an adjacent window, else frees them.
    fn free_or_keep(
        &self,
        state: &mut OwnerState,
        range: BlockRange,
        provenance: Provenance,
    ) -> Result<()> {
        if let Reservation::Windows { largest, .. } = self.shared.options.reservation
            && let Some((at, joined)) = state.windows.beside(range, largest)
            && (self.shared.geometry()).is_one_group(joined.start(), Block(joined.end().0 - 1))
        {
            // A group checks the blocks that are freed; a window does not.
            if provenance == Provenance::Unchecked {
                self.shared.check_free(range)?;
            }
            state.windows.replace(at, joined);
            let blocks = range.count().into();
            self.shared.counters.add(Count::WindowBlocksAdded, blocks);
            return Ok(());
        }
        self.shared.free_now(range)
    }

    /// Frees the windows, as when a file is closed. The next request may open new ones.
    pub fn release_windows(&self) {
        self.shared.release_windows_of(&self.inner);
    }

    /// The windows of this owner.
    pub fn windows(&self) -> Vec<BlockRange> {
        self.lock().windows.iter().collect()
    }

    fn lock(&self) -> MutexGuard<'_, OwnerState> {
        let (state, waited) = lock_timed(&self.inner.state);
        self.shared.counters.lock_waited(waited);
        state
    }
}

impl Shared {
    /// Reclaims the windows of all owners; returns the number of freed blocks.
    pub(crate) fn reclaim_windows(&self) -> u64 {
        let mut blocks = 0;
        self.owners.for_each(|owner| {
            let released = self.release_windows_of(owner);
            let reclaimed = u64::from(released > 0);
            self.counters.add(Count::WindowsReclaimed, reclaimed);
            blocks += released;
        });
        blocks
    }

    /// Frees the windows of an owner; returns the number of freed blocks.
    fn release_windows_of(&self, owner: &OwnerShared) -> u64 {
        let mut state = lock(&owner.state);
        if std::mem::take(&mut state.has_windows) {
            self.owners.window_closed();
        }
        let mut blocks = 0;
        for window in state.windows.take_all() {
            blocks += u64::from(window.count());
            let freed = self.free_window(window);
            freed.expect("a window's blocks are in use");
        }
        blocks
    }
}

/// Whether the blocks that an owner frees are known to be its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Provenance {
    /// They were allocated to it just now, or in this transaction.
    Allocated,
    /// The caller states it: the bitmap has to be checked.
    Unchecked,
}

/// Records blocks that a request got.
fn record_allocated(state: &mut OwnerState, request: &Request, range: BlockRange) {
    state.blocks += u64::from(range.count());
    if let Some(transaction) = request.transaction {
        state.uncommitted.add(range, transaction);
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        after_panics(|| {
            self.shared.owners.remove(&self.inner);
            self.shared.release_windows_of(&self.inner);
        });
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Owner").field(&self.inner.number).finish()
    }
}

impl Allocation<'_> {
    /// The blocks.
    pub fn range(&self) -> BlockRange {
        self.range
    }

    /// Frees all but `count` blocks behind the first `skip`. The others can be allocated again.
    ///
    /// # Panics
    /// When the allocation has fewer blocks.
    pub fn narrow(&mut self, skip: u32, count: u32) {
        let start = self.range.start().0 + u64::from(skip);
        let kept = BlockRange::new(Block(start), count);
        assert!(kept.end() <= self.range.end(), "{kept} of {}", self.range);
        let (front, _) = self.range.split_at(kept.start());
        let (_, back) = self.range.split_at(kept.end());
        self.range = kept;
        for range in [front, back].into_iter().flatten() {
            self.owner.take_back(range);
        }
    }

    /// Keeps the first `count` blocks and returns the rest, or `None` when there is no rest.
    ///
    /// # Panics
    /// When `count` is 0.
    pub fn split_off(&mut self, count: u32) -> Option<Self> {
        assert!(count > 0, "an allocation of no blocks");
        let at = Block(self.range.start().0 + u64::from(count));
        let (front, rest) = self.range.split_at(at);
        self.range = front.expect("a block at least");
        rest.map(|range| Self {
            owner: self.owner,
            range,
            kept: false,
        })
    }

    /// Keeps the blocks: metadata refers to them now, and their owner frees them later.
    pub fn keep(mut self) -> BlockRange {
        self.kept = true;
        self.range
    }
}

impl Drop for Allocation<'_> {
    fn drop(&mut self) {
        if !self.kept {
            after_panics(|| self.owner.take_back(self.range));
        }
    }
}

impl fmt::Debug for Allocation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Allocation").field(&self.range).finish()
    }
}

fn in_window(range: BlockRange, window: BlockRange) -> Error {
    Error::new(ErrorKind::Corrupt)
        .during("free")
        .detail(format!(
            "{range}: free already, kept for this file with {window}"
        ))
        .advice("check the file system")
}

fn reserve_only(blocks: u64) -> Error {
    Error::new(ErrorKind::NoSpace)
        .during("allocate")
        .detail(format!("only the {blocks} reserved blocks are left"))
}

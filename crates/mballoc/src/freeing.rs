//! Freeing: at once, when a transaction has committed, and around a discard.
//!
//! - Blocks that no committed state refers to are free at once.
//! - Others wait in their group until the transaction commits, and then until the caller has
//!   discarded them. They stay in use in the bitmap until their release, so that a second free of
//!   them is detected.
//! - Free blocks that are to be discarded are in use while the discard is in flight.

use std::ops::Range;

use extant_space::Result;

use crate::counters::Count;
use crate::index::class_of;
use crate::pending::{DiscardGuard, FreedRun};
use crate::shared::Shared;
use crate::{Block, BlockRange, GroupNumber, TransactionId};

impl Shared {
    /// Frees blocks at once.
    pub(crate) fn free_now(&self, range: BlockRange) -> Result<()> {
        self.in_groups(range, |mut group, start, count| {
            group.loaded_for_free(start, count)?;
            group.mark(start, count, true);
            Ok(())
        })
    }

    /// Frees the blocks of a window that its owner has given up.
    pub(crate) fn free_window(&self, window: BlockRange) -> Result<()> {
        let blocks = window.count().into();
        self.counters.add(Count::WindowBlocksReleased, blocks);
        self.free_now(window)
    }

    /// Checks whether blocks can be freed. Errors as [`Self::free_now`].
    pub(crate) fn check_free(&self, range: BlockRange) -> Result<()> {
        self.in_groups(range, |mut group, start, count| {
            group.loaded_for_free(start, count).map(|_| ())
        })
    }

    /// Frees blocks when `transaction` has committed.
    pub(crate) fn free_after(&self, range: BlockRange, transaction: TransactionId) -> Result<()> {
        self.in_groups(range, |mut group, start, count| {
            let number = group.number;
            let loaded = group.loaded_for_free(start, count)?;
            let run = FreedRun {
                group: number,
                #[cfg(feature = "ablation")]
                start,
                count,
                transaction,
                is_first: loaded.add_pending(start, count, transaction),
            };
            self.pending.record(run, &self.goals, &self.counters);
            Ok(())
        })
    }

    /// The runs of a transaction that has committed. They stay in use until
    /// [`Self::release_pending`].
    pub(crate) fn commit_pending(&self, transaction: TransactionId) -> Vec<BlockRange> {
        let groups = self.pending.take_groups(transaction, &self.counters);
        let mut freed = Vec::new();
        for number in groups {
            let mut group = self.wait_group(number);
            let geometry = self.geometry();
            if let Some(loaded) = group.load() {
                let runs = loaded.commit_pending(transaction);
                let ranges = runs
                    .into_iter()
                    .map(|(start, count)| geometry.range_in(GroupNumber(number), start, count));
                freed.extend(ranges);
            }
        }
        freed
    }

    /// Makes committed or discarded runs free.
    pub(crate) fn release_pending(&self, ranges: &[BlockRange]) {
        let mut blocks = 0;
        for range in ranges {
            let (number, start) = (self.geometry().locate(range.start()))
                .expect("no shrink cuts off blocks that are in use");
            let mut group = self.wait_group(number.0);
            let loaded = group.load().expect("a group that has pending blocks");
            loaded.release_pending(start, range.count());
            group.mark(start, range.count(), true);
            blocks += u64::from(range.count());
        }
        (self.pending).remove_blocks(blocks, &self.goals, &self.counters);
    }

    /// Takes at most `runs_max` free runs of at least `minimum` blocks from the part of a group
    /// between two blocks. They are in use until [`Self::release_pending`].
    pub(crate) fn take_for_discard(
        &self,
        _guard: &DiscardGuard<'_>,
        group: GroupNumber,
        between: Range<Block>,
        minimum: u32,
        runs_max: usize,
    ) -> Vec<BlockRange> {
        let header = self.group(group.0);
        if header.free() < minimum || !header.reaches(class_of(minimum)) {
            return Vec::new();
        }
        let mut locked = self.wait_group(group.0);
        let geometry = self.geometry();
        let first = geometry.start_of(group).0;
        let bound = self.open_length(group.0);
        let inside = |block: Block| block.0.saturating_sub(first).min(bound.into()) as u32;
        let (mut at, to) = (inside(between.start), inside(between.end));
        let mut taken = Vec::new();
        while taken.len() < runs_max
            && let Some(loaded) = locked.load()
            && let Some(run) = loaded.bits.next_run(&self.shape, minimum, at, to)
        {
            loaded.add_discard(run.start, run.count);
            locked.mark(run.start, run.count, false);
            taken.push(geometry.range_in(group, run.start, run.count));
            at = run.end();
        }
        let blocks = taken.iter().map(|range| u64::from(range.count())).sum();
        (self.pending).add_blocks(blocks, &self.goals, &self.counters);
        taken
    }
}

//! Freeing: now, after a commit, and refused ones.

use std::num::NonZeroU32;
use std::ops::{ControlFlow, Range};

use extant_mballoc::{Block, BlockRange, Free, GroupNumber, Reuse, TransactionId};
use extant_space::ErrorKind;
use proptest::sample::Index;

use super::{Cell, World, blocks, kind};
use crate::event::When;

impl World<'_> {
    pub(super) fn free(&mut self, run: &Index, from: &Index, count: &Index, when: When) {
        let runs = self.runs(|cell| matches!(cell, Cell::Owned(_)));
        if runs.is_empty() {
            return;
        }
        let run = *run.get(&runs);
        let from = from.index(run.count() as usize) as u32;
        let count = count.index((run.count() - from) as usize) as u32 + 1;
        let range = BlockRange::new(Block(run.start().0 + u64::from(from)), count);
        let Some(Cell::Owned(id)) = self.cell(range.start()) else {
            unreachable!("a run of owned blocks");
        };
        let when = self.when(when);
        self.counts.freed += u64::from(count);
        let Some(at) = self.tenants.iter().position(|tenant| tenant.id == id) else {
            self.allocator.free(range, when).unwrap();
            return self.set(range, self.freed_cell(when));
        };
        let tenant = &mut self.tenants[at];
        tenant.owner.free(range, when).unwrap();
        let reused = match when {
            Free::Now => false,
            Free::AfterCommit(transaction) => {
                tenant.fresh_in == Some(transaction)
                    && self.options.reuse == Reuse::InsideTransaction
            }
        };
        tenant.fresh_changes += 1;
        let fresh: Vec<u64> = blocks(range)
            .map(|block| block.0)
            .filter(|block| tenant.fresh.contains(block))
            .collect();
        if reused || when == Free::Now {
            tenant.fresh.retain(|block| !range.contains(Block(*block)));
        }
        self.set(range, self.freed_cell(when));
        if reused {
            self.counts.reused += fresh.len() as u64;
            for block in fresh {
                self.set(BlockRange::new(Block(block), 1), Cell::Free);
            }
        }
    }

    /// Frees blocks of one group of which some are not in use.
    pub(super) fn free_wrongly(&mut self, at: usize, block: &Index, count: u32, when: When) {
        let start = Block(self.geometry.first.0 + block.index(self.cells.len()) as u64);
        let (group, place) = self.geometry.locate(start).unwrap();
        let count = count.min(self.geometry.length_of(group) - place);
        let range = BlockRange::new(start, count);
        let tenant = &self.tenants[at];
        if blocks(range).any(|block| tenant.fresh.contains(&block.0)) {
            return;
        }
        let own = tenant.owner.windows();
        let windows = self.windows();
        // Windows of others look like blocks in use, until they are freed.
        let is_wrong = |block: Block| match self.cell(block) {
            Some(Cell::Free) => {
                own.iter().any(|window| window.contains(block))
                    || !windows.iter().any(|window| window.contains(block))
            }
            Some(Cell::Pending(_) | Cell::Discarding) => true,
            _ => false,
        };
        if blocks(range).any(is_wrong) {
            let freed = tenant.owner.free(range, self.when(when));
            assert_eq!(kind(freed), Some(ErrorKind::Corrupt), "{range}, {when:?}");
        }
    }

    pub(super) fn free_outside(&mut self, at: usize, distance: u64, when: When) {
        let start = Block(self.geometry.end.0 + distance);
        let range = BlockRange::new(start, 7);
        let freed = self.tenants[at].owner.free(range, self.when(when));
        assert_eq!(kind(freed), Some(ErrorKind::InvalidArgument), "{range}");
        let freed = self.allocator.free(range, self.when(when));
        assert_eq!(kind(freed), Some(ErrorKind::InvalidArgument), "{range}");
    }

    pub(super) fn begin(&mut self) {
        if self.committing.is_none() {
            self.committing = Some(self.running);
            self.running = TransactionId(self.running.0 + 1);
        }
    }

    pub(super) fn commit(&mut self) {
        let Some(transaction) = self.committing.take() else {
            return;
        };
        let freed = self.allocator.committed(transaction);
        let mut seen = Vec::new();
        for &range in freed.ranges() {
            for block in blocks(range) {
                assert_eq!(
                    self.cell(block),
                    Some(Cell::Pending(transaction)),
                    "{block}"
                );
            }
            self.set(range, Cell::Discarding);
            let group = self.geometry.locate(range.start()).unwrap().0;
            seen.push((group, range));
        }
        assert!(!self.cells.contains(&Cell::Pending(transaction)));
        for pair in seen.windows(2) {
            let [(group, range), (next_group, next)] = [pair[0], pair[1]];
            assert!(range.end() <= next.start(), "{range} before {next}");
            assert!(
                range.end() < next.start() || group != next_group,
                "{range} beside {next}"
            );
        }
        self.discarding.push(freed);
    }

    pub(super) fn discarded(&mut self, freed: &Index) {
        if self.discarding.is_empty() {
            return;
        }
        let freed = self.discarding.remove(freed.index(self.discarding.len()));
        let ranges = freed.ranges().to_vec();
        drop(freed);
        for range in ranges {
            self.set(range, Cell::Free);
        }
    }

    pub(super) fn release_windows(&mut self) {
        let windows = self.windows().into_iter();
        let blocks: u64 = windows.map(|window| u64::from(window.count())).sum();
        assert_eq!(self.allocator.release_windows(), blocks);
        assert_eq!(self.windows(), []);
    }

    /// Compares the in-flight blocks of a group, and the counters of the disk meanwhile.
    pub(super) fn withhold(
        &self,
        group: &Index,
        places: [&Index; 2],
        minimum: u32,
        runs_max: usize,
    ) {
        let group = GroupNumber(group.index(self.geometry.groups() as usize) as u32);
        let start = self.geometry.start_of(group);
        let length = self.geometry.length_of(group);
        let [from, to] =
            places.map(|place| Block(start.0 + place.index(length as usize + 1) as u64));
        let mut expected = self.free_runs(from..to);
        expected.retain(|run| run.count() >= minimum);
        expected.truncate(runs_max);
        let blocks: u64 = expected.iter().map(|run| u64::from(run.count())).sum();
        let told = || {
            let allocator = self.allocator;
            (allocator.free_blocks(), allocator.pending_blocks())
        };
        let before = told();
        let minimum = NonZeroU32::new(minimum).unwrap();
        let withheld = self
            .allocator
            .take_for_discard(group, from..to, minimum, runs_max);
        assert_eq!(withheld.ranges(), expected, "withheld runs");
        assert_eq!(told(), (before.0 - blocks, before.1 + blocks));
        assert_eq!(self.allocator.check(), Ok(()));
        for range in &expected {
            let error = self.allocator.free(*range, Free::Now).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
        }
    }

    /// Compares the free runs, for which every bitmap is read.
    pub(super) fn walk(&self) {
        let expected = self.free_runs(self.geometry.first..self.geometry.end);
        let mut seen = Vec::new();
        self.allocator.for_each_free(|range| {
            seen.push(range);
            ControlFlow::Continue(())
        });
        assert_eq!(seen, expected, "free runs");
    }

    /// Runs of blocks that are free and in no window.
    fn free_runs(&self, within: Range<Block>) -> Vec<BlockRange> {
        let windows = self.windows();
        let mut runs: Vec<BlockRange> = Vec::new();
        for block in (within.start.0..within.end.0).map(Block) {
            let kept = windows.iter().any(|window| window.contains(block));
            if kept || self.cell(block) != Some(Cell::Free) {
                continue;
            }
            match runs.last_mut() {
                Some(run) if run.end() == block => {
                    *run = BlockRange::new(run.start(), run.count() + 1);
                }
                _ => runs.push(BlockRange::new(block, 1)),
            }
        }
        runs
    }

    fn when(&self, when: When) -> Free {
        match when {
            When::Now => Free::Now,
            When::AfterCommit => Free::AfterCommit(self.running),
        }
    }

    fn freed_cell(&self, when: Free) -> Cell {
        match when {
            Free::Now => Cell::Free,
            Free::AfterCommit(transaction) => Cell::Pending(transaction),
        }
    }
}

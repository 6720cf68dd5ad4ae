//! Requests, and their permitted results.

use std::rc::Rc;

use extant_mballoc::{
    Alignment, Allocation, Block, BlockRange, Goal, Owner, Request, RequestFlags,
};
use extant_space::ErrorKind;
use proptest::sample::Index;

use super::{Cell, World, blocks};
use crate::event::{Ask, Minimum, Place, Then};

/// Changes in one transaction after which it is closed: the allocator may forget some then.
const FRESH_CHANGES_MAX: u32 = 30;

impl World<'_> {
    pub(super) fn allocate(&mut self, at: usize, ask: &Ask, then: Then) {
        let request = self.request(at, ask);
        let owner = Rc::clone(&self.tenants[at].owner);
        let Some(allocation) = self.ask(at, &owner, &request) else {
            return;
        };
        let range = allocation.range();
        match then {
            Then::Keep => assert_eq!(allocation.keep(), range),
            Then::Drop => {
                drop(allocation);
                self.dropped(at, range);
            }
            Then::DropAfter(other) => {
                let other = other.index(self.tenants.len());
                let another = Rc::clone(&self.tenants[other].owner);
                self.ask(other, &another, &Request::data(3))
                    .map(Allocation::keep);
                drop(allocation);
                self.dropped(at, range);
            }
        }
    }

    /// Sends the request to the allocator, checks the result and records it.
    fn ask<'o>(
        &mut self,
        at: usize,
        owner: &'o Owner,
        request: &Request,
    ) -> Option<Allocation<'o>> {
        let valid = self.is_valid(request);
        let start = self.expected_start(at, request);
        self.counts.requests += 1;
        self.reserve_used |= request.flags.contains(RequestFlags::USE_RESERVE);
        let allocation = match owner.allocate(request) {
            Ok(allocation) => allocation,
            Err(error) => {
                self.counts.failures += 1;
                let expected = if valid {
                    ErrorKind::NoSpace
                } else {
                    ErrorKind::InvalidArgument
                };
                assert_eq!(error.kind(), expected, "{request:?}: {error}");
                assert!(!valid || !self.is_possible(request), "{request:?}: {error}");
                return None;
            }
        };
        let range = allocation.range();
        assert!(valid, "{range} for {request:?}");
        self.check_result(request, range);
        if let Some((start, count)) = start {
            assert_eq!(range.start(), start, "{request:?} at its goal");
            assert!(
                range.count() >= count,
                "{range}, not {count} blocks, for {request:?}"
            );
        }
        self.counts.blocks += u64::from(range.count());
        let tenant = &mut self.tenants[at];
        if let Some(transaction) = request.transaction {
            if tenant.fresh_in != Some(transaction) {
                tenant.fresh_in = Some(transaction);
                tenant.fresh.clear();
                tenant.fresh_changes = 0;
            }
            tenant.fresh_changes += 1;
            tenant.fresh.extend(blocks(range).map(|block| block.0));
        }
        let id = tenant.id;
        self.set(range, Cell::Owned(id));
        if self.options.reserved_blocks > 0 && !self.reserve_used {
            let left = self
                .cells
                .iter()
                .filter(|cell| **cell == Cell::Free)
                .count() as u64;
            assert!(left >= self.options.reserved_blocks, "{left} blocks left");
        }
        Some(allocation)
    }

    fn dropped(&mut self, at: usize, range: BlockRange) {
        self.counts.freed += u64::from(range.count());
        self.tenants[at]
            .fresh
            .retain(|block| !range.contains(Block(*block)));
        self.set(range, Cell::Free);
    }

    fn request(&self, at: usize, ask: &Ask) -> Request {
        let blocks_max = 2 * self.geometry.blocks_per_group;
        let minimum = match ask.minimum {
            Minimum::One => 1,
            Minimum::Wanted => ask.wanted,
            Minimum::Some(index) => index.index(ask.wanted.min(blocks_max) as usize) as u32 + 1,
            Minimum::Zero => 0,
            Minimum::TooMany => ask.wanted.saturating_add(1),
        };
        let tenant = &self.tenants[at];
        let journaled = ask.journaled
            && (tenant.fresh_changes < FRESH_CHANGES_MAX || tenant.fresh_in != Some(self.running));
        Request {
            goal: self.goal(at, &ask.place),
            wanted: ask.wanted,
            minimum,
            alignment: ask.alignment,
            limit: ask.limit.map(|part| self.thousandths(part)),
            flags: ask.flags,
            transaction: journaled.then_some(self.running),
        }
    }

    fn goal(&self, at: usize, place: &Place) -> Goal {
        let any = |index: &Index| {
            Block(
                self.geometry.first.0.saturating_sub(2) + index.index(self.cells.len() + 4) as u64,
            )
        };
        let tenant = &self.tenants[at];
        let in_window = |window: &Index, at: &Index| {
            let windows = tenant.owner.windows();
            let window = windows.get(window.index(windows.len().max(1)))?;
            Some(Block(
                window.start().0 + at.index(window.count() as usize) as u64,
            ))
        };
        match place {
            Place::Anywhere => Goal::Anywhere,
            Place::Near(index) => Goal::Near(any(index)),
            Place::Follow(index) => Goal::Follow(any(index)),
            Place::FollowOwn(index) => {
                let runs = self.runs(|cell| cell == Cell::Owned(tenant.id));
                let run = runs.get(index.index(runs.len().max(1)));
                run.map_or(Goal::Anywhere, |run| Goal::Follow(run.end()))
            }
            Place::FollowWindow(window, at) => {
                in_window(window, at).map_or(Goal::Anywhere, Goal::Follow)
            }
            Place::NearWindow(window, at) => {
                in_window(window, at).map_or(Goal::Anywhere, Goal::Near)
            }
        }
    }

    pub(super) fn thousandths(&self, part: u64) -> Block {
        Block(self.geometry.first.0 + self.geometry.blocks() * part / 1000)
    }

    fn is_valid(&self, request: &Request) -> bool {
        (1..=request.wanted).contains(&request.minimum)
            && request.minimum <= self.geometry.blocks_per_group
            && !matches!(
                request.alignment,
                Alignment::Preferred(0) | Alignment::Required(0)
            )
    }

    /// Whether there are enough blocks once all windows are freed, as they are before a request
    /// fails.
    fn is_possible(&self, request: &Request) -> bool {
        let free = self
            .cells
            .iter()
            .filter(|cell| **cell == Cell::Free)
            .count() as u64;
        if !request.flags.contains(RequestFlags::USE_RESERVE)
            && free < self.options.reserved_blocks + u64::from(request.minimum)
        {
            return false;
        }
        let unit = match request.alignment {
            Alignment::Required(unit) => u64::from(unit),
            _ => 1,
        };
        let mut start = self.geometry.first.0.next_multiple_of(unit);
        while self.cell(Block(start)).is_some() {
            let is_free = |block: Block| self.cell(block) == Some(Cell::Free);
            let run = self.run_from(Block(start), request, is_free);
            if run >= request.minimum {
                return true;
            }
            // From inside the run there are fewer yet.
            start = (start + u64::from(run) + 1).next_multiple_of(unit);
        }
        false
    }

    /// Blocks from `start` on for which `is_free` holds, to the end of the group or the limit.
    fn run_from(&self, start: Block, request: &Request, is_free: impl Fn(Block) -> bool) -> u32 {
        let Some((group, _)) = self.geometry.locate(start) else {
            return 0;
        };
        let end = self.geometry.start_of(group).0 + u64::from(self.geometry.length_of(group));
        let end = request.limit.map_or(end, |limit| limit.0.min(end));
        (start.0..end)
            .take_while(|block| is_free(Block(*block)))
            .count() as u32
    }

    /// Start and minimum length of the result, if the request determines them.
    fn expected_start(&self, at: usize, request: &Request) -> Option<(Block, u32)> {
        if self.options.reserved_blocks > 0 || !self.is_valid(request) {
            return None;
        }
        let (goal, least) = match request.goal {
            Goal::Anywhere => return None,
            Goal::Near(goal) => (goal, request.wanted),
            Goal::Follow(goal) => (goal, request.minimum),
        };
        if let Alignment::Required(unit) = request.alignment
            && !goal.0.is_multiple_of(unit.into())
        {
            return None;
        }
        let own = self.tenants[at].owner.windows();
        if let Some(window) = own.iter().find(|window| window.contains(goal)) {
            let to_data = request.alignment == Alignment::Any
                && !request.flags.contains(RequestFlags::METADATA);
            let there = self.run_from(goal, request, |block| window.contains(block));
            return (to_data && there >= least).then(|| (goal, there.min(request.wanted)));
        }
        let windows = self.windows();
        let there = self.run_from(goal, request, |block| {
            self.cell(block) == Some(Cell::Free)
                && !windows.iter().any(|window| window.contains(block))
        });
        (there >= least).then(|| (goal, there.min(request.wanted)))
    }

    fn check_result(&self, request: &Request, range: BlockRange) {
        let error = |what: &str| panic!("{range} {what}, for {request:?}");
        if range.count() < request.minimum || range.count() > request.wanted {
            error("is too short or too long");
        }
        if blocks(range).any(|block| self.cell(block) != Some(Cell::Free)) {
            error("is not free");
        }
        if request.limit.is_some_and(|limit| range.end() > limit) {
            error("reaches past the limit");
        }
        let last = Block(range.end().0 - 1);
        let [first, last] =
            [range.start(), last].map(|block| self.geometry.locate(block).unwrap().0);
        if first != last {
            error("reaches past the end of its group");
        }
        if let Alignment::Required(unit) = request.alignment
            && !range.start().0.is_multiple_of(unit.into())
        {
            error("is not aligned");
        }
    }
}

//! One request on its way through the criteria.

use super::Plan;
use crate::bits::{Run, order_for};
use crate::group::Loaded;
use crate::index::{CLASSES, class_of, shortest_of};
use crate::options::Policy;
use crate::request::{Alignment, Goal, RequestFlags};
use crate::shared::Shared;
use crate::sync::Ordering;
use crate::{Block, BlockRange, GroupNumber};

const POWER_OF_TWO: usize = 0;
const GOAL_LENGTH_FAST: usize = 1;
const BEST_AVAILABLE: usize = 2;
const GOAL_LENGTH_SLOW: usize = 3;
const ANY_FREE: usize = 4;

/// Groups that a criterion searches before it gives up.
const GROUPS_MAX: u32 = 64;
/// Groups that are searched for a class of which not every run suffices.
const TIGHT_GROUPS_MAX: u32 = 16;
/// Bitmaps that one request reads before it takes what the groups in memory have.
const LOADS_MAX: u32 = 8;
/// Runs that are compared in one group for the longest.
const LONGEST_TRIES: usize = 64;
/// Runs of higher classes that are passed over in one group.
const FITTING_TRIES: usize = 10000;

pub(super) struct Search<'a> {
    shared: &'a Shared,
    plan: &'a Plan,
    /// Groups below this may be searched.
    end: u32,
    start: u32,
    /// Block of the start group to begin at.
    start_at: u32,
    stream: bool,
    loads: u32,
}

/// A search for `length` blocks in groups of one class.
#[derive(Clone, Copy)]
struct Scan {
    criterion: usize,
    class: usize,
    length: u32,
    groups_max: u32,
    runs: Runs,
}

/// Which of a group's runs will do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Runs {
    /// Those of the class that the group was found by.
    OfClass,
    /// Longer ones too, if the group has none of the class.
    OfClassOrLonger,
}

impl<'a> Search<'a> {
    pub(super) fn new(shared: &'a Shared, plan: &'a Plan) -> Self {
        let geometry = shared.geometry();
        let groups = shared.groups();
        let end = match plan.limit {
            Some(limit) if limit <= geometry.first => 0,
            Some(limit) => match geometry.locate(Block(limit.0 - 1)) {
                Some((group, _)) => groups.min(group.0 + 1),
                None => groups,
            },
            None => groups,
        };
        let stream = plan.flags.contains(RequestFlags::STREAM);
        let (start, start_at) = match plan.goal {
            Goal::Anywhere if shared.policy() == Policy::Rotating => {
                (shared.rotation.load(Ordering::Relaxed), 0)
            }
            _ if stream => (shared.goals.get(plan.owner, groups, &shared.counters), 0),
            Goal::Anywhere => (0, 0),
            Goal::Follow(block) | Goal::Near(block) => geometry
                .locate(block)
                .map_or((0, 0), |(group, at)| (group.0, at)),
        };
        let (start, start_at) = if start < end {
            (start, start_at)
        } else {
            (0, 0)
        };
        Self {
            shared,
            plan,
            end,
            start,
            start_at,
            stream,
            loads: 0,
        }
    }

    /// Whether the search began in `group` because that is the stream goal.
    pub(super) fn began_at_stream_goal(&self, group: u32) -> bool {
        self.stream && group == self.start
    }

    pub(super) fn run(&mut self) -> Option<BlockRange> {
        let length = self.plan.length.min(self.shared.shape.blocks());
        let wanted = self.plan.wanted.min(length);
        self.know_start(length);
        self.by_length(length)
            .or_else(|| self.claimed(length))
            .or_else(|| self.best_available(wanted, length))
            .or_else(|| self.scan_up(GOAL_LENGTH_SLOW, class_of(wanted), wanted))
            .or_else(|| self.any_free())
    }

    /// The first two criteria.
    fn by_length(&mut self, length: u32) -> Option<BlockRange> {
        let criterion = match length.is_power_of_two() {
            true => POWER_OF_TWO,
            false => GOAL_LENGTH_FAST,
        };
        // A run that is longer by the alignment less one has an aligned place.
        let roomy = match self.plan.alignment {
            Alignment::Any => length,
            Alignment::Preferred(unit) | Alignment::Required(unit) => {
                length.saturating_add(unit - 1)
            }
        };
        let class = class_of(roomy.min(self.shared.shape.blocks()));
        if shortest_of(class) == roomy {
            return self.scan_up(criterion, class, length);
        }
        // Of its own class some runs are too short; all of the next will do.
        let tight = Scan {
            criterion,
            class,
            length,
            groups_max: TIGHT_GROUPS_MAX,
            runs: Runs::OfClass,
        };
        self.scan(tight)
            .or_else(|| self.scan_up(criterion, class + 1, length))
    }

    /// Reads the bitmap of the start group, so that it is not passed over for a known one
    /// elsewhere.
    fn know_start(&mut self, length: u32) {
        if self.start < self.end
            && self.shared.group(self.start).free() >= length
            && let Some(mut group) = self.shared.try_group(self.start)
            && group.is_untouched()
        {
            group.load();
            self.loads += 1;
        }
    }

    /// A few of the groups that are not read yet: those with most free blocks are the likeliest to
    /// have a run of the length.
    fn claimed(&mut self, length: u32) -> Option<BlockRange> {
        let scan = Scan {
            criterion: match length.is_power_of_two() {
                true => POWER_OF_TWO,
                false => GOAL_LENGTH_FAST,
            },
            class: class_of(length),
            length,
            groups_max: LOADS_MAX,
            runs: Runs::OfClassOrLonger,
        };
        self.scan_claims(scan, length)
    }

    /// Searches unread groups with at least `least` free blocks.
    fn scan_claims(&mut self, mut scan: Scan, least: u32) -> Option<BlockRange> {
        let shared = self.shared;
        let orders = least.ilog2() as usize..shared.index.claim_orders();
        for order in orders.rev() {
            for (from, to) in [(self.start, self.end), (0, self.start)] {
                let mut at = from;
                while scan.groups_max > 0
                    && let Some(group) = shared.index.next_claim(order, at, to)
                {
                    at = group + 1;
                    if shared.group(group).free() < least {
                        continue;
                    }
                    scan.groups_max -= 1;
                    if let Some(range) = self.look_into(group, scan) {
                        return Some(range);
                    }
                }
            }
        }
        None
    }

    /// As long as the longest run is for certain, when that is at least what the caller wants.
    fn best_available(&mut self, wanted: u32, length: u32) -> Option<BlockRange> {
        let class = self.shared.index.highest_filled(CLASSES)?;
        let longest = shortest_of(class);
        if wanted >= length || wanted > longest {
            return None;
        }
        let best = length.min(longest);
        self.scan_up(BEST_AVAILABLE, class_of(best), best)
    }

    /// The last criterion: from the groups with the longest runs down to those that can hold the
    /// minimum, then in every group that is not read yet.
    fn any_free(&mut self) -> Option<BlockRange> {
        let minimum = self.plan.minimum;
        let mut scan = Scan {
            criterion: ANY_FREE,
            class: CLASSES,
            length: self.plan.length,
            groups_max: u32::MAX,
            runs: Runs::OfClassOrLonger,
        };
        while let Some(class) = self.shared.index.highest_filled(scan.class)
            && class >= class_of(minimum)
        {
            scan.class = class;
            if let Some(range) = self.scan(scan) {
                return Some(range);
            }
        }
        self.scan_claims(scan, minimum)
    }

    /// Searches groups of `class` and up, where every run suffices.
    fn scan_up(&mut self, criterion: usize, class: usize, length: u32) -> Option<BlockRange> {
        let mut scan = Scan {
            criterion,
            class,
            length,
            groups_max: GROUPS_MAX,
            runs: Runs::OfClassOrLonger,
        };
        if self.shared.policy() == Policy::Linear {
            return self.scan(Scan {
                groups_max: u32::MAX,
                ..scan
            });
        }
        if let Some(lists) = self.shared.index.lists()
            && let Some(group) = lists.find(order_for(length), |group| group < self.end)
            && let Some(range) = self.look_into(group, scan)
        {
            return Some(range);
        }
        while scan.groups_max > 0
            && let Some(class) = self.shared.index.lowest_filled(scan.class)
        {
            scan.class = class;
            if let Some(range) = self.scan_counted(&mut scan) {
                return Some(range);
            }
            scan.class += 1;
        }
        None
    }

    fn scan(&mut self, mut scan: Scan) -> Option<BlockRange> {
        self.scan_counted(&mut scan)
    }

    /// Searches groups of the class, or with the linear policy those of higher classes too.
    /// Decrements `groups_max`.
    fn scan_counted(&mut self, scan: &mut Scan) -> Option<BlockRange> {
        for (from, to) in [(self.start, self.end), (0, self.start)] {
            let mut at = from;
            while scan.groups_max > 0
                && let Some(group) = self.next(scan.class, at, to)
            {
                at = group + 1;
                scan.groups_max -= 1;
                if let Some(range) = self.look_into(group, *scan) {
                    return Some(range);
                }
            }
        }
        None
    }

    /// The next group to search, from `from` on, before `end`.
    fn next(&self, class: usize, from: u32, end: u32) -> Option<u32> {
        let shared = self.shared;
        if shared.policy() == Policy::Linear {
            return (from..end).find(|&group| shared.group(group).reaches(class));
        }
        shared.index.next(class, from, end)
    }

    fn look_into(&mut self, number: u32, mut scan: Scan) -> Option<BlockRange> {
        let shared = self.shared;
        let last = scan.criterion == ANY_FREE;
        let mut group = if last {
            shared.wait_group(number)
        } else {
            shared.try_group(number)?
        };
        if group.is_untouched() {
            if self.loads >= LOADS_MAX && !last {
                return None;
            }
            self.loads += 1;
            // Where its runs belong is known only now.
            scan.runs = Runs::OfClassOrLonger;
        }
        shared.counters.group_scanned(scan.criterion);
        let to = shared.bound(number, self.plan.limit);
        let geometry = shared.geometry();
        let first = geometry.start_of(GroupNumber(number));
        let loaded = group.load()?;
        let to = to.min(loaded.length);
        let start_at = if number == self.start {
            self.start_at
        } else {
            0
        };
        let run = if last {
            self.any_run(loaded, first, to)
        } else {
            self.run_in(loaded, scan, first, start_at, to)
                .or_else(|| self.run_in(loaded, scan, first, 0, to))
        }?;
        let count = run.count.min(scan.length);
        group.mark(run.start, count, false);
        shared.counters.criterion_hit(scan.criterion);
        Some(geometry.range_in(GroupNumber(number), run.start, count))
    }

    fn run_in(&self, loaded: &Loaded, scan: Scan, first: Block, from: u32, to: u32) -> Option<Run> {
        if self.plan.alignment != Alignment::Any {
            return self.aligned_run(loaded, first, scan.length, from, to);
        }
        let below = match self.shared.policy() {
            Policy::Linear => u32::MAX,
            _ => shortest_of(scan.class + 1),
        };
        let shape = &self.shared.shape;
        let run = loaded
            .bits
            .fitting_run(shape, scan.length, below, from, to, FITTING_TRIES)?;
        (run.count < below || scan.runs == Runs::OfClassOrLonger).then_some(run)
    }

    /// The longest run, when it is of any use.
    fn any_run(&self, loaded: &Loaded, first: Block, to: u32) -> Option<Run> {
        let shape = &self.shared.shape;
        let least = self.plan.minimum;
        if self.plan.alignment != Alignment::Any {
            let run = self.aligned_run(loaded, first, least, 0, to);
            if run.is_some() || matches!(self.plan.alignment, Alignment::Required(_)) {
                return run;
            }
        }
        let longest = loaded.bits.longest_run(shape, 0, to, LONGEST_TRIES);
        longest
            .filter(|run| run.count >= least)
            .or_else(|| loaded.bits.next_run(shape, least, 0, to))
    }

    /// The first run of at least `least` blocks that begins where the alignment wants it.
    fn aligned_run(
        &self,
        loaded: &Loaded,
        first: Block,
        least: u32,
        from: u32,
        to: u32,
    ) -> Option<Run> {
        let unit = match self.plan.alignment {
            Alignment::Any => 1,
            Alignment::Preferred(unit) | Alignment::Required(unit) => u64::from(unit),
        };
        let mut at = from;
        loop {
            let run = loaded.bits.next_run(&self.shared.shape, least, at, to)?;
            let start = first.0 + u64::from(run.start);
            let skip = start.next_multiple_of(unit) - start;
            if skip + u64::from(least) <= u64::from(run.count) {
                let skip = skip as u32;
                return Some(Run {
                    start: run.start + skip,
                    count: run.count - skip,
                });
            }
            at = run.end();
        }
    }
}

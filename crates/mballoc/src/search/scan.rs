//! One search through the criteria.

use super::Plan;
use crate::bits::Run;
#[cfg(feature = "ablation")]
use crate::bits::order_for;
use crate::group::Loaded;
use crate::index::{CLASSES, class_of, shortest_of};
use crate::request::{Alignment, Goal, RequestFlags};
use crate::shared::Shared;
use crate::{Block, BlockRange, GroupNumber};

const POWER_OF_TWO: usize = 0;
const GOAL_LENGTH_FAST: usize = 1;
const BEST_AVAILABLE: usize = 2;
const GOAL_LENGTH_SLOW: usize = 3;
const ANY_FREE: usize = 4;

/// Groups that a criterion scans at most.
const GROUPS_MAX: u32 = 64;
/// Groups scanned in a class in which some runs are too short.
const TIGHT_GROUPS_MAX: u32 = 16;
/// Bitmaps that one request reads before it uses only the groups in memory.
const LOADS_MAX: u32 = 8;
/// Runs of one group that are compared to find the longest.
const LONGEST_TRIES: usize = 64;
/// Runs of higher classes that are skipped in one group.
const FITTING_TRIES: usize = 10000;

pub(super) struct Search<'a> {
    shared: &'a Shared,
    plan: &'a Plan,
    /// One past the last group that may be scanned.
    end: u32,
    start: u32,
    /// Block of the start group to begin at.
    start_at: u32,
    stream: bool,
    loads: u32,
}

/// A scan for `length` blocks in groups of one class.
#[derive(Clone, Copy)]
struct Scan {
    criterion: usize,
    class: usize,
    length: u32,
    groups_max: u32,
    runs: Runs,
}

/// The runs of a group that are accepted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Runs {
    /// Runs of the class by which the group was found.
    OfClass,
    /// Longer runs too, if the group has none of the class.
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
        let rotation = shared.rotation_start();
        let (start, start_at) = match (plan.goal, rotation) {
            (Goal::Anywhere, Some(group)) => (group, 0),
            _ if stream => (shared.goals.get(plan.owner, groups, &shared.counters), 0),
            (Goal::Anywhere, None) => (0, 0),
            (Goal::Follow(block) | Goal::Near(block), _) => geometry
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

    /// Whether `group` is the stream goal at which the search began.
    pub(super) fn began_at_stream_goal(&self, group: u32) -> bool {
        self.stream && group == self.start
    }

    pub(super) fn run(&mut self) -> Option<BlockRange> {
        let length = self.plan.length.min(self.shared.shape.blocks());
        let wanted = self.plan.wanted.min(length);
        self.load_start(length);
        self.by_length(length)
            .or_else(|| self.unloaded(length))
            .or_else(|| self.best_available(wanted, length))
            .or_else(|| self.scan_up(GOAL_LENGTH_SLOW, class_of(wanted), wanted))
            .or_else(|| self.any_free())
    }

    /// The first two criteria.
    fn by_length(&mut self, length: u32) -> Option<BlockRange> {
        let criterion = criterion_for(length);
        // A run that is longer by the alignment minus one has an aligned start.
        let sufficient = match self.plan.alignment {
            Alignment::Any => length,
            Alignment::Preferred(unit) | Alignment::Required(unit) => {
                length.saturating_add(unit - 1)
            }
        };
        let class = class_of(sufficient.min(self.shared.shape.blocks()));
        if shortest_of(class) == sufficient {
            return self.scan_up(criterion, class, length);
        }
        // Some runs of this class are too short; all runs of the next are long enough.
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

    /// Reads the bitmap of the start group, so that a loaded group elsewhere is not preferred to
    /// it.
    fn load_start(&mut self, length: u32) {
        if self.start < self.end
            && self.shared.group(self.start).free() >= length
            && let Some(mut group) = self.shared.try_group(self.start)
            && group.is_unloaded()
        {
            group.load();
            self.loads += 1;
        }
    }

    /// Scans a few unloaded groups: those with most free blocks are the likeliest to have the run.
    fn unloaded(&mut self, length: u32) -> Option<BlockRange> {
        let scan = Scan {
            criterion: criterion_for(length),
            class: class_of(length),
            length,
            groups_max: LOADS_MAX,
            runs: Runs::OfClassOrLonger,
        };
        self.scan_unloaded(scan, length)
    }

    /// Scans unloaded groups with at least `least` free blocks.
    fn scan_unloaded(&mut self, mut scan: Scan, least: u32) -> Option<BlockRange> {
        let shared = self.shared;
        let orders = least.ilog2() as usize..shared.index.unloaded_orders();
        for order in orders.rev() {
            for (from, to) in [(self.start, self.end), (0, self.start)] {
                let mut at = from;
                while scan.groups_max > 0
                    && let Some(group) = shared.index.next_unloaded(order, at, to)
                {
                    at = group + 1;
                    if shared.group(group).free() < least {
                        continue;
                    }
                    scan.groups_max -= 1;
                    if let Some(range) = self.scan_group(group, scan) {
                        return Some(range);
                    }
                }
            }
        }
        None
    }

    /// The length that the longest run certainly has, if the caller wants no more than that.
    fn best_available(&mut self, wanted: u32, length: u32) -> Option<BlockRange> {
        let class = self.shared.index.highest_filled(CLASSES)?;
        let longest = shortest_of(class);
        if wanted >= length || wanted > longest {
            return None;
        }
        let best = length.min(longest);
        self.scan_up(BEST_AVAILABLE, class_of(best), best)
    }

    /// The last criterion: from the groups with the longest runs down to those with the minimum,
    /// then every unloaded group.
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
        self.scan_unloaded(scan, minimum)
    }

    /// Scans groups of `class` and higher, where every run is long enough.
    fn scan_up(&mut self, criterion: usize, class: usize, length: u32) -> Option<BlockRange> {
        let mut scan = Scan {
            criterion,
            class,
            length,
            groups_max: GROUPS_MAX,
            runs: Runs::OfClassOrLonger,
        };
        if self.shared.scans_linearly() {
            return self.scan(Scan {
                groups_max: u32::MAX,
                ..scan
            });
        }
        #[cfg(feature = "ablation")]
        if let Some(lists) = self.shared.index.lists()
            && let Some(group) = lists.find(order_for(length), |group| group < self.end)
            && let Some(range) = self.scan_group(group, scan)
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

    /// Scans groups of the class, with the linear policy also those of higher classes. Decrements
    /// `groups_max`.
    fn scan_counted(&mut self, scan: &mut Scan) -> Option<BlockRange> {
        for (from, to) in [(self.start, self.end), (0, self.start)] {
            let mut at = from;
            while scan.groups_max > 0
                && let Some(group) = self.next(scan, at, to)
            {
                at = group + 1;
                scan.groups_max -= 1;
                if let Some(range) = self.scan_group(group, *scan) {
                    return Some(range);
                }
            }
        }
        None
    }

    /// The next group to scan, from `from` on, before `end`.
    fn next(&self, scan: &Scan, from: u32, end: u32) -> Option<u32> {
        let shared = self.shared;
        if shared.scans_linearly() {
            let next = (from..end).find(|&group| shared.group(group).reaches(scan.class));
            let passed = next.unwrap_or(end).saturating_sub(from);
            shared.counters.groups_passed(scan.criterion, passed);
            return next;
        }
        shared.index.next(scan.class, from, end)
    }

    fn scan_group(&mut self, number: u32, mut scan: Scan) -> Option<BlockRange> {
        let shared = self.shared;
        let last = scan.criterion == ANY_FREE;
        let mut group = if last {
            shared.wait_group(number)
        } else {
            shared.try_group(number)?
        };
        if group.is_unloaded() {
            if self.loads >= LOADS_MAX && !last {
                return None;
            }
            self.loads += 1;
            // The classes of its runs are known only now.
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
        let below = if self.shared.scans_linearly() {
            u32::MAX
        } else {
            shortest_of(scan.class + 1)
        };
        let shape = &self.shared.shape;
        let run = loaded
            .bits
            .fitting_run(shape, scan.length, below, from, to, FITTING_TRIES)?;
        (run.count < below || scan.runs == Runs::OfClassOrLonger).then_some(run)
    }

    /// The longest run of at least the minimum.
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

    /// The first aligned run of at least `least` blocks.
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

fn criterion_for(length: u32) -> usize {
    if length.is_power_of_two() {
        POWER_OF_TWO
    } else {
        GOAL_LENGTH_FAST
    }
}

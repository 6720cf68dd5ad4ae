//! Finding blocks: the goal first, then the criteria one after the other.
//!
//! A criterion names groups through the index and searches them one by one: from the lowest
//! sufficient class of runs to the highest, and in each from the start group to the end of the disk
//! and then from its start. Thus nearly the tightest run of the whole disk is taken, and long ones
//! stay whole.
//! 0. power of two: a length that is one;
//! 1. goal length fast: any other length; for both then a few groups whose bitmap is not read yet;
//! 2. best available: as long as the longest run, if that is at least the minimum;
//! 3. goal length slow: the requested length, in more of the groups that may have it, also with
//!    alignment;
//! 4. any free: the longest run, down to the minimum, in every group that may have it.
//!
//! All but the last skip a group that another thread has locked. With the index the first criteria
//! search one group each; only a request that fails, or almost, searches many.

mod scan;

use extant_space::{Error, ErrorKind, Result};

use crate::counters::Count;
use crate::options::Policy;
use crate::request::{Alignment, Goal, RequestFlags};
use crate::shared::Shared;
use crate::sync::Ordering;
use crate::{Block, BlockRange, GroupNumber};

use scan::Search;

/// Number of criteria.
pub(crate) const CRITERIA: usize = 5;

/// What to search for.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) owner: u64,
    pub(crate) goal: Goal,
    /// Blocks to take when they can be had: what the caller wants and the window behind it.
    pub(crate) length: u32,
    /// Blocks that the caller wants.
    pub(crate) wanted: u32,
    pub(crate) minimum: u32,
    pub(crate) alignment: Alignment,
    pub(crate) limit: Option<Block>,
    pub(crate) flags: RequestFlags,
}

impl Shared {
    /// Takes consecutive blocks out of a group. An error says that there are not even the fewest of
    /// use.
    pub(crate) fn take(&self, plan: &Plan) -> Result<BlockRange> {
        match self.find_and_take(plan) {
            Some(range) => Ok(range),
            None => Err(self.no_space(plan)),
        }
    }

    fn find_and_take(&self, plan: &Plan) -> Option<BlockRange> {
        if let Goal::Follow(block) | Goal::Near(block) = plan.goal {
            let least = match plan.goal {
                Goal::Follow(_) => plan.minimum,
                _ => plan.wanted,
            };
            if let Some(range) = self.take_at(block, plan, least) {
                self.counters.add(Count::GoalHits, 1);
                self.note_stream(plan, range);
                return Some(range);
            }
        }
        let mut search = Search::new(self, plan);
        let range = search.run()?;
        let group = self.geometry().locate(range.start())?.0.0;
        if search.began_at_stream_goal(group) {
            self.counters.add(Count::StreamGoalHits, 1);
        }
        self.note_stream(plan, range);
        if self.policy() == Policy::Rotating {
            self.rotation.store(group, Ordering::Relaxed);
        }
        Some(range)
    }

    /// Takes blocks from `block` on, when it is free and at least `least` are.
    pub(crate) fn take_at(&self, block: Block, plan: &Plan, least: u32) -> Option<BlockRange> {
        let geometry = self.geometry();
        let (number, start) = geometry.locate(block)?;
        // Waits, as the kernel does: elsewhere would be a new extent.
        let mut group = self.wait_group(number.0);
        let to = self.bound(number.0, plan.limit);
        let loaded = group.load()?;
        let to = to.min(loaded.length);
        if start >= to || !loaded.bits.is_free(start) || !is_aligned(block, plan.alignment) {
            return None;
        }
        let most = plan.length.min(to - start);
        let count = loaded.bits.free_from(&self.shape, start, start + most);
        if count < least {
            return None;
        }
        group.mark(start, count, false);
        Some(geometry.range_in(number, start, count))
    }

    fn note_stream(&self, plan: &Plan, range: BlockRange) {
        if plan.flags.contains(RequestFlags::STREAM)
            && let Some((group, _)) = self.geometry().locate(range.start())
        {
            self.goals.set(plan.owner, group.0, &self.counters);
        }
    }

    /// Blocks of a group that may be taken.
    pub(crate) fn bound(&self, group: u32, limit: Option<Block>) -> u32 {
        let open = self.open_length(group);
        let start = self.geometry().start_of(GroupNumber(group));
        limit.map_or(open, |limit| {
            open.min(u32::try_from(limit.0.saturating_sub(start.0)).unwrap_or(u32::MAX))
        })
    }

    fn no_space(&self, plan: &Plan) -> Error {
        let mut detail = match plan.minimum {
            1 => "no free block".to_owned(),
            minimum => format!("no {minimum} free blocks in a row"),
        };
        if let Some(limit) = plan.limit {
            detail += &format!(" below block {limit}");
        }
        let pending = self.pending.blocks();
        if pending > 0 {
            detail += &format!(", {pending} more after a commit");
        }
        let lost = self.out_of_use().len();
        if lost > 0 {
            detail += &format!(", {lost} groups out of use");
        }
        Error::new(ErrorKind::NoSpace)
            .during("allocate")
            .detail(detail)
    }
}

fn is_aligned(block: Block, alignment: Alignment) -> bool {
    match alignment {
        Alignment::Any | Alignment::Preferred(_) => true,
        Alignment::Required(unit) => block.0.is_multiple_of(unit.into()),
    }
}

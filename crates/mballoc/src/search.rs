//! The search for blocks: first the goal, then the criteria in order.
//!
//! A criterion selects groups through the index and scans them one by one: from the lowest
//! sufficient class of runs to the highest, and in each class from the start group to the end of
//! the disk and then from its beginning. The chosen run is nearly the best fit of the whole disk,
//! and long runs stay whole. The criteria:
//!
//! 0. power of two: a length that is a power of two;
//! 1. goal length fast: any other length; after either, a few groups with an unread bitmap;
//! 2. best available: the length of the longest run, if the caller wants no more than that;
//! 3. goal length slow: the wanted length, aligned if required, in more groups that may have it;
//! 4. any free: the longest run of at least the minimum, in every group that may have it.
//!
//! All criteria but the last skip a group whose lock another thread holds. With the index, the
//! first criteria usually scan one group; only a request that fails, or nearly fails, scans many.

mod scan;

use extant_space::{Error, ErrorKind, Result};

use crate::counters::Count;
use crate::request::{Alignment, Goal, RequestFlags};
use crate::shared::Shared;
use crate::{Block, BlockRange, GroupNumber};

use scan::Search;

/// The parameters of a search.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) owner: u64,
    pub(crate) goal: Goal,
    /// Blocks to take if possible: the wanted ones and the window behind them.
    pub(crate) length: u32,
    /// Blocks that the caller wants.
    pub(crate) wanted: u32,
    pub(crate) minimum: u32,
    pub(crate) alignment: Alignment,
    pub(crate) limit: Option<Block>,
    pub(crate) flags: RequestFlags,
}

impl Shared {
    /// Allocates consecutive blocks from a group. Fails when no group has the minimum.
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
                #[cfg(feature = "ablation")]
                self.move_stream_goal(plan, range);
                return Some(range);
            }
        }
        let mut search = Search::new(self, plan);
        let range = search.run()?;
        let group = self.geometry().locate(range.start())?.0.0;
        if search.began_at_stream_goal(group) {
            self.counters.add(Count::StreamGoalHits, 1);
        }
        #[cfg(feature = "ablation")]
        self.move_stream_goal(plan, range);
        self.record_rotation(group);
        Some(range)
    }

    /// Allocates from `block` on, if at least `least` blocks are free there.
    pub(crate) fn take_at(&self, block: Block, plan: &Plan, least: u32) -> Option<BlockRange> {
        let geometry = self.geometry();
        let (number, start) = geometry.locate(block)?;
        // Waits as the kernel does: blocks elsewhere would begin a new extent.
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

    #[cfg(feature = "ablation")]
    fn move_stream_goal(&self, plan: &Plan, range: BlockRange) {
        if plan.flags.contains(RequestFlags::STREAM)
            && let Some((group, _)) = self.geometry().locate(range.start())
        {
            self.goals.set(plan.owner, group.0, &self.counters);
        }
    }

    /// Blocks of a group that may be allocated, counted from its start.
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
        let lost = self.corrupt_groups().len();
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

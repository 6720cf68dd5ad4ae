//! Stream goals: the groups where the searches of streams begin.
//!
//! An owner always has the same goal, so that concurrent writers do not contend for one group.
//! The number of goals is at most the number of processors, because no more writers run at a time,
//! and at most a quarter of the groups, so that a small file system does not fragment.
//!
//! The goals are sticky: they are spread evenly over the groups and never move. With the feature
//! `ablation` they can follow the last allocation, as in the mballoc scalability patches
//! (docs/background.md). Such a goal is a hint that is read and written with relaxed ordering; a
//! shrink may have removed the group that it names, so the reader checks its range.

#[cfg(feature = "ablation")]
use crossbeam_utils::CachePadded;

use crate::counters::Counters;
use crate::options::Options;
#[cfg(feature = "ablation")]
use crate::options::{SharedState, StreamGoals};
#[cfg(feature = "ablation")]
use crate::sync::{AtomicU32, Mutex, Ordering, lock_timed};

pub(crate) struct Goals {
    count: usize,
    #[cfg(feature = "ablation")]
    kind: StreamGoals,
    #[cfg(feature = "ablation")]
    groups: Box<[CachePadded<AtomicU32>]>,
    #[cfg(feature = "ablation")]
    shared: SharedState,
    /// The kernel's `s_md_lock`.
    #[cfg(feature = "ablation")]
    global: Mutex<()>,
}

impl Goals {
    pub(crate) fn new(options: &Options, groups: u32) -> Self {
        let count = options.cpus.min(groups as usize / 4).max(1);
        #[cfg(feature = "ablation")]
        let count = match options.stream_goals {
            StreamGoals::One => 1,
            StreamGoals::Sticky | StreamGoals::PerCpu => count,
        };
        Self {
            count,
            #[cfg(feature = "ablation")]
            kind: options.stream_goals,
            #[cfg(feature = "ablation")]
            groups: (0..count as u32)
                .map(|goal| CachePadded::new(AtomicU32::new(goal * (groups / count as u32))))
                .collect(),
            #[cfg(feature = "ablation")]
            shared: options.shared_state,
            #[cfg(feature = "ablation")]
            global: Mutex::new(()),
        }
    }

    /// Number of goals.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The goal of an owner, one of `groups` groups.
    #[cfg_attr(not(feature = "ablation"), expect(unused_variables))]
    pub(crate) fn get(&self, owner: u64, groups: u32, counters: &Counters) -> u32 {
        let number = self.number(owner);
        #[cfg(feature = "ablation")]
        if self.kind != StreamGoals::Sticky {
            let goal = self.under_lock(counters, || self.groups[number].load(Ordering::Relaxed));
            return if goal < groups { goal } else { 0 };
        }
        number as u32 * (groups / self.count as u32)
    }

    /// Moves a goal that is not sticky to an owner's last allocation.
    #[cfg(feature = "ablation")]
    pub(crate) fn set(&self, owner: u64, group: u32, counters: &Counters) {
        if self.kind == StreamGoals::Sticky {
            return;
        }
        self.under_lock(counters, || {
            let goal = &self.groups[self.number(owner)];
            // Without a write, the cache line stays shared among its readers.
            if goal.load(Ordering::Relaxed) != group {
                goal.store(group, Ordering::Relaxed);
            }
        });
    }

    /// Runs `work`, with `ablation` under the global lock if that is selected.
    #[cfg_attr(
        not(feature = "ablation"),
        expect(unused_variables, clippy::unused_self)
    )]
    pub(crate) fn under_lock<T>(&self, counters: &Counters, work: impl FnOnce() -> T) -> T {
        #[cfg(feature = "ablation")]
        if self.shared == SharedState::GlobalLock {
            let (_guard, waited) = lock_timed(&self.global);
            counters.lock_waited(waited);
            return work();
        }
        work()
    }

    fn number(&self, owner: u64) -> usize {
        (owner % self.count as u64) as usize
    }
}

#[cfg(all(test, feature = "ablation", not(feature = "shuttle")))]
mod tests {
    use super::*;

    fn goals(cpus: usize, groups: u32, stream_goals: StreamGoals) -> usize {
        let options = Options {
            cpus,
            stream_goals,
            ..Options::default()
        };
        Goals::new(&options, groups).count()
    }

    #[test]
    fn goals_are_the_lesser_of_processors_and_a_quarter_of_the_groups_and_at_least_one() {
        assert_eq!(goals(96, 1600, StreamGoals::PerCpu), 96);
        assert_eq!(goals(96, 100, StreamGoals::PerCpu), 25);
        assert_eq!(goals(96, 3, StreamGoals::PerCpu), 1);
        assert_eq!(goals(2, 1600, StreamGoals::PerCpu), 2);
        assert_eq!(goals(96, 1600, StreamGoals::One), 1);
    }

    #[test]
    fn stored_goal_past_the_last_group_is_brought_into_range() {
        let options = Options {
            stream_goals: StreamGoals::PerCpu,
            ..Options::default()
        };
        let counters = Counters::new(1);
        let goals = Goals::new(&options, 100);
        goals.set(7, 99, &counters);
        assert_eq!(goals.get(7, 100, &counters), 99);
        assert_eq!(goals.get(7, 50, &counters), 0);
    }

    #[test]
    fn sticky_goals_are_spread_over_any_number_of_groups() {
        let options = Options {
            cpus: 4,
            ..Options::default()
        };
        let counters = Counters::new(1);
        let goals = Goals::new(&options, 100);
        for groups in [100, 103, 1, 2] {
            goals.set(1, groups - 1, &counters);
            let starts = [0, 1, 2, 3].map(|owner| goals.get(owner, groups, &counters));
            assert_eq!(starts, [0, 1, 2, 3].map(|goal| goal * (groups / 4)));
        }
    }
}

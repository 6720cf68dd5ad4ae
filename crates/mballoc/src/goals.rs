//! Stream goals: the groups at which streams begin to search.
//!
//! An owner always has the same goal, so concurrent writers do not meet in one group. There are at
//! most as many goals as processors, because only so few writers run at a time, and at most a
//! quarter of the groups, so that a small file system is not fragmented.
//!
//! By default goals are sticky and never move. The kernel's goals follow their last allocation:
//! such a goal is a hint that is read and written without ordering, and it may name a group that a
//! shrink has removed: the reader clamps it to the range.

use crossbeam_utils::CachePadded;

use crate::counters::Counters;
use crate::options::{Options, SharedState, StreamGoals};
use crate::sync::{AtomicU32, Mutex, Ordering, lock_timed};

pub(crate) struct Goals {
    kind: StreamGoals,
    groups: Box<[CachePadded<AtomicU32>]>,
    shared: SharedState,
    /// `s_md_lock` of old.
    global: Mutex<()>,
}

impl Goals {
    pub(crate) fn new(options: &Options, groups: u32) -> Self {
        let goals = match options.stream_goals {
            StreamGoals::One => 1,
            StreamGoals::Homes | StreamGoals::PerCpu => {
                options.cpus.min(groups as usize / 4).max(1)
            }
        };
        // Apart from each other from the first allocation on.
        let apart = groups / goals as u32;
        Self {
            kind: options.stream_goals,
            groups: (0..goals as u32)
                .map(|goal| CachePadded::new(AtomicU32::new(goal * apart)))
                .collect(),
            shared: options.shared_state,
            global: Mutex::new(()),
        }
    }

    /// Number of goals.
    pub(crate) fn count(&self) -> usize {
        self.groups.len()
    }

    /// The goal of an owner, one of `groups` groups.
    pub(crate) fn get(&self, owner: u64, groups: u32, counters: &Counters) -> u32 {
        let number = self.number(owner);
        if self.kind == StreamGoals::Homes {
            return number as u32 * (groups / self.count() as u32);
        }
        let goal = self.under_lock(counters, || self.groups[number].load(Ordering::Relaxed));
        if goal < groups { goal } else { 0 }
    }

    /// Notes where an owner's last allocation was.
    pub(crate) fn set(&self, owner: u64, group: u32, counters: &Counters) {
        if self.kind == StreamGoals::Homes {
            return;
        }
        self.under_lock(counters, || {
            let goal = &self.groups[self.number(owner)];
            // A cache line stays shared while it is not written.
            if goal.load(Ordering::Relaxed) != group {
                goal.store(group, Ordering::Relaxed);
            }
        });
    }

    /// Runs `work` under the one lock of old, where that is wanted.
    pub(crate) fn under_lock<T>(&self, counters: &Counters, work: impl FnOnce() -> T) -> T {
        match self.shared {
            SharedState::Atomics => work(),
            SharedState::GlobalLock => {
                let (_guard, waited) = lock_timed(&self.global);
                counters.lock_waited(waited);
                work()
            }
        }
    }

    fn number(&self, owner: u64) -> usize {
        (owner % self.groups.len() as u64) as usize
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
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
    fn homes_lie_apart_in_any_number_of_groups() {
        let options = Options {
            cpus: 4,
            ..Options::default()
        };
        let counters = Counters::new(1);
        let goals = Goals::new(&options, 100);
        for groups in [100, 103, 1, 2] {
            goals.set(1, groups - 1, &counters);
            let homes = [0, 1, 2, 3].map(|owner| goals.get(owner, groups, &counters));
            assert_eq!(homes, [0, 1, 2, 3].map(|home| home * (groups / 4)));
        }
    }
}

//! The pool's rate, shared by its background jobs.
//!
//! Each running job gets a share weighted by its priority, and recomputes it periodically. A job's
//! own rate is an upper bound.

use std::num::NonZeroU64;

use extant_hostfs::{Pace, SharedRate};
use extant_space::Result;

use crate::job::{JobOptions, Record, Stage};
use crate::limits::Limits;
use crate::state::PoolState;

/// The rate of one job.
pub(crate) struct JobRate {
    options: JobOptions,
    /// The pool's, where it bounds this job.
    of_pool: Option<NonZeroU64>,
    shared: Option<SharedRate>,
}

impl JobRate {
    pub(crate) fn new(options: JobOptions, limits: &Limits) -> Self {
        let of_pool = limits.rate.filter(|_| options.background);
        Self {
            options,
            of_pool,
            shared: of_pool.map(SharedRate::new),
        }
    }

    /// For the operations of hostfs.
    pub(crate) fn pace(&self) -> Pace {
        let share = self.options.background_share;
        match &self.shared {
            Some(shared) => Pace::BackgroundShared {
                limit: shared.clone(),
                share,
            },
            None => Pace::new(self.options.background.then_some(share), self.options.rate),
        }
    }

    /// Bytes a second as they are now; `None`: no bound.
    pub(crate) fn now(&self) -> Option<NonZeroU64> {
        match &self.shared {
            Some(shared) => Some(shared.get()),
            None => self.options.rate,
        }
    }

    /// Recomputes this job's share of the pool's rate.
    pub(crate) fn share(&self, own: &Record, state: &PoolState) -> Result<()> {
        let (Some(of_pool), Some(shared)) = (self.of_pool, &self.shared) else {
            return Ok(());
        };
        let others: u64 = state
            .jobs
            .alive()?
            .into_iter()
            .filter(|job| {
                let is_at_work = job.stage != Stage::Waiting;
                job.record.id != own.id && job.record.options.background && is_at_work
            })
            .map(|job| job.record.options.priority.weight())
            .sum();
        shared.set(part_of(of_pool, self.options, others));
        Ok(())
    }
}

fn part_of(rate: NonZeroU64, own: JobOptions, others_weight: u64) -> NonZeroU64 {
    let weight = own.priority.weight();
    let part = u128::from(rate.get()) * u128::from(weight) / u128::from(weight + others_weight);
    let part = NonZeroU64::new(part as u64).unwrap_or(NonZeroU64::MIN);
    own.rate.map_or(part, |own| own.min(part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Priority;

    #[test]
    fn parts_follow_weights_and_add_up() {
        let rate = NonZeroU64::new(100 << 20).unwrap();
        let of = |priority| JobOptions {
            priority,
            background: true,
            ..JobOptions::default()
        };
        let weights = [Priority::Low, Priority::Normal, Priority::High].map(Priority::weight);
        let all: u64 = weights.iter().sum();
        let parts = [Priority::Low, Priority::Normal, Priority::High]
            .map(|priority| part_of(rate, of(priority), all - priority.weight()).get());
        assert!(parts[0] < parts[1] && parts[1] < parts[2]);
        assert!(parts.iter().sum::<u64>() <= rate.get());
        assert_eq!(part_of(rate, of(Priority::Low), 0), rate);
        assert_eq!(part_of(NonZeroU64::MIN, of(Priority::Low), 100).get(), 1);
    }

    #[test]
    fn own_rate_bounds_the_part() {
        let own = JobOptions {
            background: true,
            rate: NonZeroU64::new(7),
            ..JobOptions::default()
        };
        assert_eq!(part_of(NonZeroU64::new(100).unwrap(), own, 0).get(), 7);
    }
}

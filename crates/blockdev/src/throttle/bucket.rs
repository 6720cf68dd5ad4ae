//! A bucket of tokens in one atomic word.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Tokens that come at a rate and can be saved up for a while.
pub(super) struct Bucket {
    rate: NonZeroU64,
    burst: u64,
    /// When everything taken so far is paid for, in nanoseconds from the start, `burst` being
    /// added: so the bucket is full at 0.
    paid: AtomicU64,
}

impl Bucket {
    pub(super) fn new(rate: NonZeroU64, burst: Duration) -> Self {
        Self {
            rate,
            burst: nanoseconds(burst),
            paid: AtomicU64::new(0),
        }
    }

    /// Takes `tokens` at the time `now`, from the start; returns how long to wait before using
    /// them. Later callers wait at least until the same time.
    pub(super) fn take(&self, tokens: u64, now: Duration) -> Duration {
        if tokens == 0 {
            return Duration::ZERO;
        }
        let now = nanoseconds(now);
        let cost = u128::from(tokens) * 1_000_000_000 / u128::from(self.rate.get());
        let cost = u64::try_from(cost).unwrap_or(u64::MAX);
        let order = Ordering::Relaxed;
        let taken = |paid: u64| Some(paid.max(now).saturating_add(cost));
        let before = self.paid.fetch_update(order, order, taken);
        let before = before.expect("the update always has a value");
        Duration::from_nanos(before.saturating_sub(now.saturating_add(self.burst)))
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    fn bucket(rate: u64, burst: Duration) -> Bucket {
        Bucket::new(NonZeroU64::new(rate).unwrap(), burst)
    }

    #[test]
    fn burst_is_free_and_the_debt_is_waited_for() {
        let bucket = bucket(1000, 100 * MILLISECOND);
        let takes = (0..110).map(|_| bucket.take(1, Duration::ZERO));
        let waits: Vec<_> = takes.collect();
        assert!(waits[..=100].iter().all(Duration::is_zero));
        assert_eq!(
            waits[101..],
            [1, 2, 3, 4, 5, 6, 7, 8, 9].map(|n| n * MILLISECOND)
        );
    }

    #[test]
    fn unused_tokens_are_saved_up_to_the_burst_only() {
        let bucket = bucket(1000, 10 * MILLISECOND);
        let late = Duration::from_secs(100);
        assert_eq!(bucket.take(60, late), Duration::ZERO);
        assert_eq!(bucket.take(1, late), 50 * MILLISECOND);
        assert_eq!(bucket.take(1, late + 51 * MILLISECOND), Duration::ZERO);
    }

    #[test]
    fn side_by_side_takers_get_times_of_their_own() {
        let bucket = bucket(1000, Duration::ZERO);
        let mut waits: Vec<Duration> = std::thread::scope(|scope| {
            let takers: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| [(); 250].map(|()| bucket.take(1, Duration::ZERO))))
                .collect();
            takers
                .into_iter()
                .flat_map(|taker| taker.join().unwrap())
                .collect()
        });
        waits.sort_unstable();
        let times = (0..1000).map(|n| n * MILLISECOND);
        assert_eq!(waits, times.collect::<Vec<_>>());
    }

    proptest! {
        #[test]
        fn tokens_used_by_any_time_keep_to_the_rate(
            takes in prop::collection::vec((0u64..50, 1u64..100), 1..100),
        ) {
            let (rate, burst) = (1000, 20 * MILLISECOND);
            let bucket = bucket(rate, burst);
            let (mut now, mut used) = (Duration::ZERO, 0);
            for (pause, tokens) in takes {
                now += u32::try_from(pause).unwrap() * MILLISECOND;
                now += bucket.take(tokens, now);
                // What goes now was paid for but for the burst, whatever it is itself.
                let most = (now + burst).as_secs_f64() * rate as f64;
                prop_assert!(used as f64 <= most + 0.001, "{used} tokens in {now:?}");
                used += tokens;
            }
        }
    }
}

//! Rates: bytes or operations per second.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::{CancelToken, Result};

/// Tokens of this much time may be saved up in a [`RateLimiter`].
const BURST: Duration = Duration::from_millis(100);

/// A rate that can be changed while operations keep to it. Clones share it.
#[derive(Clone, Debug)]
pub struct SharedRate(Arc<AtomicU64>);

impl SharedRate {
    /// A rate that starts with this value, bytes per second.
    pub fn new(bytes_per_second: NonZeroU64) -> Self {
        Self(Arc::new(AtomicU64::new(bytes_per_second.get())))
    }

    /// Sets the rate from now on.
    pub fn set(&self, bytes_per_second: NonZeroU64) {
        self.0.store(bytes_per_second.get(), Ordering::Relaxed);
    }

    /// Bytes per second.
    pub fn get(&self) -> NonZeroU64 {
        NonZeroU64::new(self.0.load(Ordering::Relaxed)).expect("`set` stores no 0")
    }
}

impl PartialEq for SharedRate {
    /// Whether both are clones of one rate.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for SharedRate {}

/// A token bucket in one atomic word: the virtual scheduling of ATM's generic cell rate algorithm.
///
/// The caller supplies the time, counted from a start of its choice, and the rate, which may change
/// between two calls.
#[derive(Debug)]
pub struct TokenBucket {
    burst: u64,
    /// Time at which all tokens taken so far are paid for, in nanoseconds from the start, plus
    /// `burst`: the bucket is full at 0.
    paid: AtomicU64,
}

impl TokenBucket {
    /// A bucket that holds the tokens of `burst` and is full at the start.
    pub fn full(burst: Duration) -> Self {
        Self {
            burst: nanoseconds(burst),
            paid: AtomicU64::new(0),
        }
    }

    /// A bucket that holds the tokens of `burst` and is empty at the start.
    pub fn empty(burst: Duration) -> Self {
        Self {
            burst: nanoseconds(burst),
            paid: AtomicU64::new(nanoseconds(burst)),
        }
    }

    /// Takes `tokens` at the time `now`; returns how long to wait before using them. Later callers
    /// wait at least until the same time.
    pub fn take(&self, tokens: u64, rate: NonZeroU64, now: Duration) -> Duration {
        if tokens == 0 {
            return Duration::ZERO;
        }
        let (now, cost) = (nanoseconds(now), cost(tokens, rate));
        let order = Ordering::Relaxed;
        let taken = |paid: u64| Some(paid.max(now).saturating_add(cost));
        let before = self.paid.fetch_update(order, order, taken);
        let before = before.expect("the update always has a value");
        Duration::from_nanos(before.saturating_sub(now.saturating_add(self.burst)))
    }

    /// Takes `tokens` at the time `now`, unless the bucket is overdrawn. One call may overdraw it.
    ///
    /// # Errors
    /// How long the bucket stays overdrawn.
    pub fn try_take(
        &self,
        tokens: u64,
        rate: NonZeroU64,
        now: Duration,
    ) -> std::result::Result<(), Duration> {
        let (now, cost) = (nanoseconds(now), cost(tokens, rate));
        let due = now.saturating_add(self.burst);
        let order = Ordering::Relaxed;
        let taken = |paid: u64| (paid <= due).then(|| paid.max(now).saturating_add(cost));
        match self.paid.fetch_update(order, order, taken) {
            Ok(_) => Ok(()),
            Err(paid) => Err(Duration::from_nanos(paid - due)),
        }
    }
}

/// Nanoseconds in which `tokens` arrive.
fn cost(tokens: u64, rate: NonZeroU64) -> u64 {
    let cost = u128::from(tokens) * 1_000_000_000 / u128::from(rate.get());
    u64::try_from(cost).unwrap_or(u64::MAX)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Holds the work of one or more threads to a rate, on average over a tenth of a second.
#[derive(Debug)]
pub struct RateLimiter {
    bucket: TokenBucket,
    started: Instant,
}

impl Default for RateLimiter {
    fn default() -> Self {
        Self {
            bucket: TokenBucket::empty(BURST),
            started: Instant::now(),
        }
    }
}

impl RateLimiter {
    /// Waits until work on `bytes` may start at the present `rate`; `None`: no limit.
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled).
    pub fn admit(&self, bytes: u64, rate: Option<NonZeroU64>, cancel: &CancelToken) -> Result<()> {
        match rate {
            None => cancel.check(),
            Some(rate) => cancel.sleep(self.bucket.take(bytes, rate, self.started.elapsed())),
        }
    }

    /// Starts work on `bytes` at `rate`.
    ///
    /// # Errors
    /// How long to wait before asking again: the work before is not paid for.
    pub fn try_admit(
        &self,
        bytes: u64,
        rate: NonZeroU64,
        now: Instant,
    ) -> std::result::Result<(), Duration> {
        let now = now.saturating_duration_since(self.started);
        self.bucket.try_take(bytes, rate, now)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    const RATE: NonZeroU64 = NonZeroU64::new(1000).unwrap();

    #[test]
    fn burst_is_free_and_the_debt_is_waited_for() {
        let bucket = TokenBucket::full(100 * MILLISECOND);
        let takes = (0..110).map(|_| bucket.take(1, RATE, Duration::ZERO));
        let waits: Vec<_> = takes.collect();
        assert!(waits[..=100].iter().all(Duration::is_zero));
        assert_eq!(
            waits[101..],
            [1, 2, 3, 4, 5, 6, 7, 8, 9].map(|n| n * MILLISECOND)
        );
    }

    #[test]
    fn unused_tokens_are_saved_up_to_the_burst_only() {
        let bucket = TokenBucket::full(10 * MILLISECOND);
        let late = Duration::from_secs(100);
        assert_eq!(bucket.take(60, RATE, late), Duration::ZERO);
        assert_eq!(bucket.take(1, RATE, late), 50 * MILLISECOND);
        assert_eq!(
            bucket.take(1, RATE, late + 51 * MILLISECOND),
            Duration::ZERO
        );
    }

    #[test]
    fn concurrent_takers_get_distinct_times() {
        let bucket = TokenBucket::full(Duration::ZERO);
        let mut waits: Vec<Duration> = std::thread::scope(|scope| {
            let takers: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| [(); 250].map(|()| bucket.take(1, RATE, Duration::ZERO))))
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

    #[test]
    fn overdrawn_bucket_refuses_until_the_debt_is_paid() {
        let bucket = TokenBucket::empty(100 * MILLISECOND);
        assert_eq!(bucket.try_take(50, RATE, Duration::ZERO), Ok(()));
        let refused = bucket.try_take(1, RATE, 20 * MILLISECOND);
        assert_eq!(refused, Err(30 * MILLISECOND));
        assert_eq!(bucket.try_take(1, RATE, 50 * MILLISECOND), Ok(()));
        // An idle second saves no more than the burst.
        let later = Duration::from_secs(2);
        assert_eq!(bucket.try_take(100, RATE, later), Ok(()));
        assert_eq!(bucket.try_take(1, RATE, later), Ok(()));
        assert_eq!(bucket.try_take(1, RATE, later), Err(MILLISECOND));
    }

    #[test]
    fn limiter_without_a_rate_only_checks_for_a_cancel() {
        let (limiter, cancel) = (RateLimiter::default(), CancelToken::new());
        limiter.admit(u64::MAX, None, &cancel).unwrap();
        cancel.cancel();
        assert!(limiter.admit(1, None, &cancel).is_err());
        let slow = Some(NonZeroU64::MIN);
        assert!(limiter.admit(u64::MAX, slow, &cancel).is_err());
    }

    proptest! {
        #[test]
        fn tokens_used_by_any_time_keep_to_the_rate(
            takes in prop::collection::vec((0u64..50, 1u64..100), 1..100),
        ) {
            let burst = 20 * MILLISECOND;
            let bucket = TokenBucket::full(burst);
            let (mut now, mut used) = (Duration::ZERO, 0);
            for (pause, tokens) in takes {
                now += u32::try_from(pause).unwrap() * MILLISECOND;
                now += bucket.take(tokens, RATE, now);
                // All bytes up to now are paid for, except the burst.
                let most = (now + burst).as_secs_f64() * RATE.get() as f64;
                prop_assert!(used as f64 <= most + 0.001, "{used} tokens in {now:?}");
                used += tokens;
            }
        }
    }
}

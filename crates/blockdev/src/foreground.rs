//! Foreground I/O tracking during an assign, and the throttle of the assign.
//!
//! A kernel file system holds the inode lock while it allocates. Writers of the file, and direct
//! readers, wait for it; they may keep waiting between two calls, because the next call takes the
//! inode lock again before the waiters have woken up (until the kernel hands it over, after 4 ms).
//!
//! Model: foreground requests ([`ForegroundRequest`]) are counted while an assign runs. The
//! throttle of the assign ([`AssignThrottle`]) reads the count before each call. After
//! [`IDLE_CALLS`] calls without foreground requests the size of a call doubles; otherwise it falls
//! back to [`ASSIGN_BYTES_MIN`]. Between two calls the assign yields to foreground requests in
//! progress.
//!
//! The count is maintained only during an assign: at other times the requests share a cache line
//! that is not written. It is a hint, hence relaxed; a request that began before the assign is not
//! counted.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use extant_space::ByteRange;

/// Bytes of a call while others use the device. A group of ext4 with its usual blocks: smaller
/// calls, or those of many sizes, leave more extents.
const ASSIGN_BYTES_MIN: u64 = 128 << 20;
/// Calls of [`ASSIGN_BYTES_MIN`] without foreground requests before calls become larger.
const IDLE_CALLS: u32 = 32;
/// Timeout of the yield between two calls.
const YIELD_TIMEOUT: Duration = Duration::from_millis(1);
/// Interval at which a yield reads the count.
const POLL_INTERVAL: Duration = Duration::from_micros(20);

/// Counts the foreground requests of a device.
#[derive(Default)]
pub(crate) struct ForegroundTracker {
    /// Assigns in progress.
    throttles: AtomicU64,
    /// Foreground requests that began, and ended, during an assign.
    begun: AtomicU64,
    ended: AtomicU64,
}

impl ForegroundTracker {
    /// Begins a request other than an assign; it ends when the returned guard is dropped.
    pub(crate) fn begin_request(&self) -> ForegroundRequest<'_> {
        if self.throttles.load(Relaxed) == 0 {
            return ForegroundRequest(None);
        }
        self.begun.fetch_add(1, Relaxed);
        ForegroundRequest(Some(self))
    }

    /// Begins an assign.
    pub(crate) fn begin_assign(&self) -> AssignThrottle<'_> {
        self.throttles.fetch_add(1, Relaxed);
        AssignThrottle {
            foreground: self,
            quiet_calls: 0,
            begun_seen: self.begun.load(Relaxed),
        }
    }
}

/// A request other than an assign, in progress.
pub(crate) struct ForegroundRequest<'t>(Option<&'t ForegroundTracker>);

impl Drop for ForegroundRequest<'_> {
    fn drop(&mut self) {
        if let Some(foreground) = self.0 {
            foreground.ended.fetch_add(1, Relaxed);
        }
    }
}

/// Decides the size of each call of an assign, and when it is made.
pub(crate) struct AssignThrottle<'t> {
    foreground: &'t ForegroundTracker,
    /// Calls since the last foreground request.
    quiet_calls: u32,
    begun_seen: u64,
}

impl AssignThrottle<'_> {
    /// Removes the range of the next call from the start of `rest`.
    pub(crate) fn take_chunk(&mut self, rest: &mut ByteRange) -> ByteRange {
        let ended = self.foreground.ended.load(Relaxed);
        let begun = self.foreground.begun.load(Relaxed);
        if begun != self.begun_seen || begun != ended {
            self.begun_seen = begun;
            self.quiet_calls = 0;
        }
        let doublings = self.quiet_calls.saturating_sub(IDLE_CALLS).min(30);
        self.quiet_calls += 1;
        let chunk = rest
            .chunks(ASSIGN_BYTES_MIN << doublings)
            .next()
            .unwrap_or(*rest);
        *rest = ByteRange::new(chunk.end(), rest.end());
        chunk
    }

    /// Between two calls: waits until one of the foreground requests in progress has ended, or
    /// until [`YIELD_TIMEOUT`].
    pub(crate) fn yield_to_foreground(&self) {
        let foreground = self.foreground;
        let ended = foreground.ended.load(Relaxed);
        if foreground.begun.load(Relaxed) == ended {
            return;
        }
        let begun = Instant::now();
        while foreground.ended.load(Relaxed) == ended && begun.elapsed() < YIELD_TIMEOUT {
            thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Drop for AssignThrottle<'_> {
    fn drop(&mut self) {
        self.foreground.throttles.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// Lengths of the calls that allocate `rest`, none above `most`; `before` runs ahead of each.
    fn calls(
        throttle: &mut AssignThrottle<'_>,
        bytes: u64,
        most: u64,
        mut before: impl FnMut(),
    ) -> Vec<u64> {
        let mut calls = Vec::new();
        for mut rest in ByteRange::new(0, bytes).chunks(most) {
            while !rest.is_empty() {
                before();
                calls.push(throttle.take_chunk(&mut rest).len());
            }
        }
        calls
    }

    #[test]
    fn large_assign_of_an_idle_device_is_few_calls() {
        let foreground = ForegroundTracker::default();
        let calls = calls(&mut foreground.begin_assign(), 100 * GIB, GIB, || {});
        assert_eq!(calls.iter().sum::<u64>(), 100 * GIB);
        assert!(calls.len() <= 150, "{} calls", calls.len());
        assert_eq!(calls[0], ASSIGN_BYTES_MIN);
        assert_eq!(calls.iter().max(), Some(&GIB));
    }

    #[test]
    fn calls_stay_small_while_others_come() {
        let foreground = ForegroundTracker::default();
        let calls = calls(&mut foreground.begin_assign(), 100 * GIB, GIB, || {
            drop(foreground.begin_request())
        });
        assert!(calls.iter().all(|call| *call == ASSIGN_BYTES_MIN));
    }

    #[test]
    fn visit_that_lasts_keeps_calls_small() {
        let foreground = ForegroundTracker::default();
        let mut throttle = foreground.begin_assign();
        let request = foreground.begin_request();
        let during = calls(&mut throttle, 20 * GIB, GIB, || {});
        assert!(during.iter().all(|call| *call == ASSIGN_BYTES_MIN));
        drop(request);
        let after = calls(&mut throttle, 20 * GIB, GIB, || {});
        assert_eq!(after.last(), Some(&GIB));
    }

    #[test]
    fn visit_before_the_assign_counts_for_nothing() {
        let foreground = ForegroundTracker::default();
        let before = foreground.begin_request();
        let mut throttle = foreground.begin_assign();
        drop(before);
        throttle.yield_to_foreground();
        assert_eq!(foreground.ended.load(Relaxed), 0);
        assert_eq!(
            calls(&mut throttle, 20 * GIB, GIB, || {}).last(),
            Some(&GIB)
        );
    }

    #[test]
    fn giving_way_ends_with_the_visit() {
        let foreground = ForegroundTracker::default();
        let throttle = foreground.begin_assign();
        let request = foreground.begin_request();
        thread::scope(|scope| {
            scope.spawn(move || drop(request));
            // Bounded either way: the visit ends, or the time does.
            throttle.yield_to_foreground();
        });
        assert_eq!(foreground.ended.load(Relaxed), 1);
    }
}

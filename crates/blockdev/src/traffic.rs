//! Foreground I/O tracking during an assign, and the throttle of the assign.
//!
//! A kernel file system holds the inode lock while it allocates. Writers of the file, and direct
//! readers, wait for it; they may keep waiting between two calls, because the next call takes the
//! inode lock again before the waiters have woken up (until the kernel hands it over, after 4 ms).
//!
//! Model: foreground requests ([`Visit`]) are counted while an assign runs. The assign's throttle
//! ([`Pace`]) reads the count before each call: after [`STEADY_CALLS`] calls without foreground
//! traffic the request size doubles, otherwise it falls back to [`LEAST`]. Between two calls it
//! yields to foreground requests in progress.
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
const LEAST: u64 = 128 << 20;
/// Calls of [`LEAST`] without foreground traffic before they become larger.
const STEADY_CALLS: u32 = 32;
/// The longest that the inode is left to others between two calls.
const GIVE_WAY: Duration = Duration::from_millis(1);
/// How often to look whether they had it.
const LOOK: Duration = Duration::from_micros(20);

/// The visits of a device.
#[derive(Default)]
pub(crate) struct Traffic {
    /// Paces at work.
    paces: AtomicU64,
    /// Visits that have begun, and ended, while there was one.
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Traffic {
    /// Begins a request that is no assign; it ends when what is returned is dropped.
    pub(crate) fn visit(&self) -> Visit<'_> {
        if self.paces.load(Relaxed) == 0 {
            return Visit(None);
        }
        self.begun.fetch_add(1, Relaxed);
        Visit(Some(self))
    }

    /// Begins an assign.
    pub(crate) fn pace(&self) -> Pace<'_> {
        self.paces.fetch_add(1, Relaxed);
        Pace {
            traffic: self,
            quiet_calls: 0,
            begun_seen: self.begun.load(Relaxed),
        }
    }
}

/// A request that is no assign, on its way.
pub(crate) struct Visit<'t>(Option<&'t Traffic>);

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        if let Some(traffic) = self.0 {
            traffic.ended.fetch_add(1, Relaxed);
        }
    }
}

/// How much of an assign is allocated in one call, and when.
pub(crate) struct Pace<'t> {
    traffic: &'t Traffic,
    /// Calls since the last foreground traffic.
    quiet_calls: u32,
    begun_seen: u64,
}

impl Pace<'_> {
    /// Takes what is to be allocated by the next call from the start of `rest`.
    pub(crate) fn take_piece(&mut self, rest: &mut ByteRange) -> ByteRange {
        let ended = self.traffic.ended.load(Relaxed);
        let begun = self.traffic.begun.load(Relaxed);
        if begun != self.begun_seen || begun != ended {
            self.begun_seen = begun;
            self.quiet_calls = 0;
        }
        let doublings = self.quiet_calls.saturating_sub(STEADY_CALLS).min(30);
        self.quiet_calls += 1;
        let piece = rest.chunks(LEAST << doublings).next().unwrap_or(*rest);
        *rest = ByteRange::new(piece.end(), rest.end());
        piece
    }

    /// Between two calls: waits until one of the visits that are inside has ended, though not for
    /// long.
    pub(crate) fn give_way(&self) {
        let traffic = self.traffic;
        let ended = traffic.ended.load(Relaxed);
        if traffic.begun.load(Relaxed) == ended {
            return;
        }
        let begun = Instant::now();
        while traffic.ended.load(Relaxed) == ended && begun.elapsed() < GIVE_WAY {
            thread::sleep(LOOK);
        }
    }
}

impl Drop for Pace<'_> {
    fn drop(&mut self) {
        self.traffic.paces.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// Lengths of the calls that allocate `rest`, none above `most`; `before` runs ahead of each.
    fn calls(pace: &mut Pace<'_>, bytes: u64, most: u64, mut before: impl FnMut()) -> Vec<u64> {
        let mut calls = Vec::new();
        for mut rest in ByteRange::new(0, bytes).chunks(most) {
            while !rest.is_empty() {
                before();
                calls.push(pace.take_piece(&mut rest).len());
            }
        }
        calls
    }

    #[test]
    fn large_assign_of_an_idle_device_is_few_calls() {
        let traffic = Traffic::default();
        let calls = calls(&mut traffic.pace(), 100 * GIB, GIB, || {});
        assert_eq!(calls.iter().sum::<u64>(), 100 * GIB);
        assert!(calls.len() <= 150, "{} calls", calls.len());
        assert_eq!(calls[0], LEAST);
        assert_eq!(calls.iter().max(), Some(&GIB));
    }

    #[test]
    fn calls_stay_small_while_others_come() {
        let traffic = Traffic::default();
        let calls = calls(&mut traffic.pace(), 100 * GIB, GIB, || {
            drop(traffic.visit())
        });
        assert!(calls.iter().all(|call| *call == LEAST));
    }

    #[test]
    fn visit_that_lasts_keeps_calls_small() {
        let traffic = Traffic::default();
        let mut pace = traffic.pace();
        let visit = traffic.visit();
        let during = calls(&mut pace, 20 * GIB, GIB, || {});
        assert!(during.iter().all(|call| *call == LEAST));
        drop(visit);
        let after = calls(&mut pace, 20 * GIB, GIB, || {});
        assert_eq!(after.last(), Some(&GIB));
    }

    #[test]
    fn visit_before_the_assign_counts_for_nothing() {
        let traffic = Traffic::default();
        let before = traffic.visit();
        let mut pace = traffic.pace();
        drop(before);
        pace.give_way();
        assert_eq!(traffic.ended.load(Relaxed), 0);
        assert_eq!(calls(&mut pace, 20 * GIB, GIB, || {}).last(), Some(&GIB));
    }

    #[test]
    fn giving_way_ends_with_the_visit() {
        let traffic = Traffic::default();
        let pace = traffic.pace();
        let visit = traffic.visit();
        thread::scope(|scope| {
            scope.spawn(move || drop(visit));
            // Not forever either way: the visit ends, or the time does.
            pace.give_way();
        });
        assert_eq!(traffic.ended.load(Relaxed), 1);
    }
}

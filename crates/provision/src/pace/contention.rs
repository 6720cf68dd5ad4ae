//! Yields the disk to other users.
//!
//! Two signals are used. The I/O of others is the disk's counters in sysfs minus the I/O of this
//! operation. The load of the disk is the latency of the operation's own requests:
//! - without other I/O, requests are sent one at a time, and the next one follows the last;
//! - with other I/O, requests of this operation are in flight for at most a share of the time, so
//!   that other requests seldom queue behind one, or transfer up to a share of the bytes of the
//!   disk, whichever is more: on a saturated disk each request takes so long that the first rule
//!   alone would nearly stop the operation.
//!
//! The shares are [`ContendedShare`]. Where one request at a time cannot carry a chosen share of
//! the bytes, more are in flight.
//!
//! Without counters (FUSE, NFS, btrfs) a latency twice the lowest seen counts as other I/O.
//!
//! The time in which the process itself was stopped (SIGSTOP, a frozen cgroup) says nothing about
//! the disk: a request that ended meanwhile keeps the latency of the one before.

use std::sync::Arc;
use std::time::{Duration, Instant};

use extant_space::BackgroundShare;

use super::Admission;

/// Bytes per second of other I/O that are ignored, as of a log.
const QUIET_BYTES_PER_SECOND: f64 = 262_144.0;
/// Weight of the newest sample in the averages.
const SAMPLE_WEIGHT: f64 = 0.2;
/// How often the counters are read.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);
/// How long a monitor is remembered after the last request of his.
const CONTENTION_TIMEOUT: Duration = Duration::from_millis(500);
/// Small enough that a request of others waits little behind it.
const REQUEST_BYTES_UNCONTENDED: u32 = 512 << 10;
const REQUEST_BYTES_CONTENDED: u32 = 128 << 10;
/// If every request waits long in a full queue, its size matters less than its wait.
const REQUEST_BYTES_SATURATED: u32 = 2 << 20;
/// Requests in flight at most, as many as the writers of zeros have.
const DEPTH_MAX: u32 = 16;
/// An operation with requests in flight asks at least every 20 ms. One that asks so much later was
/// stopped.
const STOP_MIN: Duration = Duration::from_millis(200);
/// Longest time without a request: the work makes progress even on a disk that is never idle.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The counters of a disk.
pub(super) trait Counters: Send {
    /// Bytes that all users have transferred; `None` if that cannot be read at the moment.
    fn transferred_bytes(&self) -> Option<u64>;
}

impl<C: Counters + Sync> Counters for Arc<C> {
    fn transferred_bytes(&self) -> Option<u64> {
        (**self).transferred_bytes()
    }
}

/// Limits of the operation beside others.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ContendedShare {
    /// Part of the time that requests may be in flight.
    time: f64,
    /// Part of the disk's bytes.
    bytes: f64,
    /// Requests in flight, where the part of the bytes needs them.
    depth_max: u32,
}

impl ContendedShare {
    /// Others hardly notice it.
    const DEFAULT: Self = Self {
        time: 0.04,
        bytes: 0.004,
        depth_max: 1,
    };

    fn of(share: Option<BackgroundShare>) -> Self {
        share.map_or(Self::DEFAULT, |share| Self {
            time: share.fraction(),
            bytes: share.fraction(),
            depth_max: DEPTH_MAX,
        })
    }
}

pub(super) struct ContentionMonitor {
    disk: Option<Box<dyn Counters>>,
    share: ContendedShare,
    /// Bytes of all users at the last sample.
    last: u64,
    sampled: Instant,
    /// Bytes of this operation since then.
    own: u64,
    /// Bytes per second of other users.
    others_rate: f64,
    /// Last time other users used the disk.
    seen: Option<Instant>,
    /// Bytes per second of all users.
    disk_rate: f64,
    lowest_latency: Duration,
    /// Values of the last request.
    latency: Duration,
    /// No request before, with none in flight.
    next: Instant,
    /// No request before, with others in flight: the share of the bytes allows the last one until
    /// then.
    next_beside_own: Instant,
    /// The last time the operation asked with requests in flight.
    asked: Option<Instant>,
    /// The end of the last time in which the process was stopped.
    resumed: Option<Instant>,
}

impl ContentionMonitor {
    pub(super) fn new(
        disk: Option<Box<dyn Counters>>,
        share: Option<BackgroundShare>,
        now: Instant,
    ) -> Self {
        let last = disk.as_ref().and_then(|disk| disk.transferred_bytes());
        let last = last.unwrap_or_default();
        Self {
            disk,
            share: ContendedShare::of(share),
            last,
            sampled: now,
            own: 0,
            others_rate: 0.0,
            // Assumes other users until the counters show none.
            seen: Some(now),
            disk_rate: 0.0,
            lowest_latency: Duration::MAX,
            latency: Duration::ZERO,
            next: now,
            next_beside_own: now,
            asked: None,
            resumed: None,
        }
    }

    pub(super) fn admit(&mut self, now: Instant, in_flight: u32) -> Admission {
        self.notice_stop(now);
        self.asked = (in_flight > 0).then_some(now);
        if in_flight >= self.share.depth_max {
            return Admission::Later(SAMPLE_INTERVAL);
        }
        self.sample(now);
        if in_flight > 0 && (self.is_alone(now) || self.disk_rate <= 0.0) {
            return Admission::Later(SAMPLE_INTERVAL);
        }
        let next = match in_flight {
            0 => self.next,
            _ => self.next_beside_own,
        };
        if now < next {
            return Admission::Later(next - now);
        }
        if self.is_alone(now) {
            Admission::Now(REQUEST_BYTES_UNCONTENDED)
        } else {
            Admission::Now(self.request_beside())
        }
    }

    /// A request of `bytes` was sent.
    pub(super) fn started(&mut self, now: Instant, bytes: u32) {
        self.next_beside_own = now + self.period(bytes.into()).unwrap_or_default();
    }

    /// Each request has to carry the share of the disk's bytes, regardless of its duration.
    fn request_beside(&self) -> u32 {
        let share = self.disk_rate * self.share.bytes * self.latency.as_secs_f64();
        (share as u32).clamp(REQUEST_BYTES_CONTENDED, REQUEST_BYTES_SATURATED)
    }

    /// Time in which the share of the disk's bytes is `bytes`; `None` for an unknown rate.
    fn period(&self, bytes: u64) -> Option<Duration> {
        let rate = self.disk_rate * self.share.bytes;
        (rate > 0.0).then(|| Duration::from_secs_f64((bytes as f64 / rate).min(60.0)))
    }

    pub(super) fn completed(&mut self, now: Instant, bytes: u64, latency: Duration) {
        self.own += bytes;
        self.notice_stop(now);
        let spans_stop = self
            .resumed
            .is_some_and(|resumed| now.saturating_duration_since(resumed) < latency);
        if spans_stop {
            self.next = now + self.gap(bytes, self.latency);
            return;
        }
        self.latency = latency;
        let for_this_size =
            latency.mul_f64(f64::from(REQUEST_BYTES_CONTENDED) / bytes.max(1) as f64);
        // Rises slowly, so that one fast request does not count permanently.
        self.lowest_latency = self
            .lowest_latency
            .saturating_add(self.lowest_latency / 500)
            .min(for_this_size);
        if self.disk.is_none() && for_this_size > self.lowest_latency * 2 {
            self.seen = Some(now);
        }
        self.next = if self.is_alone(now) {
            now
        } else {
            now + self.gap(bytes, latency)
        };
    }

    /// Recognizes that the process was stopped since it asked last. Others are assumed until the
    /// counters show none, as at the start.
    fn notice_stop(&mut self, now: Instant) {
        let Some(asked) = &mut self.asked else {
            return;
        };
        if now.saturating_duration_since(*asked) > STOP_MIN {
            self.resumed = Some(now);
            self.seen = Some(now);
        }
        *asked = now;
    }

    /// Time to leave free after a request, by the two rules above.
    fn gap(&self, bytes: u64, latency: Duration) -> Duration {
        let by_time = latency.mul_f64((1.0 - self.share.time) / self.share.time);
        let period = self.period(bytes);
        let by_bytes = period.map_or(WAIT_MAX, |period| period.saturating_sub(latency));
        by_time.min(by_bytes).min(WAIT_MAX)
    }

    fn is_alone(&self, now: Instant) -> bool {
        self.seen
            .is_none_or(|seen| now.saturating_duration_since(seen) > CONTENTION_TIMEOUT)
    }

    fn sample(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.sampled);
        if elapsed < SAMPLE_INTERVAL {
            return;
        }
        let total = self.disk.as_ref().and_then(|disk| disk.transferred_bytes());
        let Some(total) = total else {
            return;
        };
        let bytes = total.saturating_sub(self.last);
        let others = bytes.saturating_sub(self.own);
        let average = |old: f64, bytes: u64| {
            (1.0 - SAMPLE_WEIGHT) * old + SAMPLE_WEIGHT * bytes as f64 / elapsed.as_secs_f64()
        };
        self.disk_rate = average(self.disk_rate, bytes);
        self.others_rate = average(self.others_rate, others);
        if self.others_rate > QUIET_BYTES_PER_SECOND {
            self.seen = Some(now);
        }
        self.last = total;
        self.sampled = now;
        self.own = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn contended_monitor(disk_rate: f64) -> ContentionMonitor {
        let mut monitor = ContentionMonitor::new(None, None, Instant::now());
        monitor.disk_rate = disk_rate;
        monitor
    }

    #[test]
    fn beside_a_light_user_requests_are_in_flight_for_a_twenty_fifth_of_the_time() {
        let monitor = contended_monitor(60e6);
        let latency = Duration::from_micros(100);
        let gap = monitor.gap(u64::from(REQUEST_BYTES_CONTENDED), latency);
        assert_eq!(gap, Duration::from_micros(2400));
    }

    #[test]
    fn beside_a_saturating_user_the_share_keeps_the_work_going() {
        let mut monitor = contended_monitor(2e9);
        let latency = Duration::from_millis(100);
        monitor.latency = latency;
        let request = monitor.request_beside();
        let period = latency + monitor.gap(u64::from(request), latency);
        let rate = f64::from(request) / period.as_secs_f64();
        assert!((7e6..9e6).contains(&rate), "{rate}");
    }

    #[test]
    fn without_counters_a_doubled_latency_counts_as_contention() {
        let start = Instant::now();
        let mut monitor = ContentionMonitor::new(None, None, start);
        let later = start + CONTENTION_TIMEOUT * 2;
        monitor.completed(later, 128 << 10, Duration::from_micros(100));
        assert!(monitor.is_alone(later));
        monitor.completed(later, 128 << 10, Duration::from_micros(250));
        assert!(!monitor.is_alone(later));
    }

    /// Bytes that a simulated disk has transferred.
    #[derive(Default)]
    struct Transferred(AtomicU64);

    impl Counters for Transferred {
        fn transferred_bytes(&self) -> Option<u64> {
            Some(self.0.load(Ordering::Relaxed))
        }
    }

    /// Use of a simulated disk by the operation.
    struct Usage {
        /// Part of the time with a request in flight.
        time: f64,
        /// Part of the bytes.
        bytes: f64,
        requests: u64,
        /// Bytes of the largest request.
        largest: u32,
    }

    /// Runs 60 simulated seconds beside others who transfer `others` bytes a second; a request of
    /// ours takes `latency` of its bytes.
    fn simulate(share: Option<&str>, others: u64, latency: fn(u32) -> Duration) -> Usage {
        simulate_stopped(share, others, latency, Duration::ZERO)
    }

    /// The same; after each half second the process is stopped for `stop`.
    fn simulate_stopped(
        share: Option<&str>,
        others: u64,
        latency: fn(u32) -> Duration,
        stop: Duration,
    ) -> Usage {
        let run = Duration::from_millis(500);
        let disk = Arc::new(Transferred::default());
        let start = Instant::now();
        let share = share.map(|share| share.parse().unwrap());
        let counters: Box<dyn Counters> = Box::new(Arc::clone(&disk));
        let mut monitor = ContentionMonitor::new(Some(counters), share, start);
        let mut flights: Vec<(Instant, Duration, u32)> = Vec::new();
        let (mut now, mut busy, mut own, mut requests) = (start, Duration::ZERO, 0, 0);
        let (mut next_stop, mut largest) = (start + run, 0);
        let end = start + Duration::from_secs(60);
        while now < end {
            let next = match monitor.admit(now, flights.len() as u32) {
                Admission::Now(bytes) => {
                    monitor.started(now, bytes);
                    flights.push((now + latency(bytes), latency(bytes), bytes));
                    requests += 1;
                    largest = largest.max(bytes);
                    continue;
                }
                Admission::Later(wait) => now + wait,
            };
            let first_end = flights.iter().map(|flight| flight.0).min();
            let mut step = first_end.map_or(next, |first| first.min(next)) - now;
            if now + step >= next_stop {
                step += stop;
                next_stop = now + step + run;
            }
            now += step;
            if !flights.is_empty() {
                busy += step;
            }
            let theirs = (others as f64 * step.as_secs_f64()) as u64;
            disk.0.fetch_add(theirs, Ordering::Relaxed);
            flights.retain(|&(ends, latency, bytes)| {
                if ends <= now {
                    disk.0.fetch_add(bytes.into(), Ordering::Relaxed);
                    own += u64::from(bytes);
                    monitor.completed(now, bytes.into(), now - (ends - latency));
                }
                ends > now
            });
        }
        Usage {
            time: busy.as_secs_f64() / 60.0,
            bytes: own as f64 / disk.0.load(Ordering::Relaxed) as f64,
            requests,
            largest,
        }
    }

    /// A disk that is not busy: 1 GB a second.
    fn light(bytes: u32) -> Duration {
        Duration::from_nanos(bytes.into())
    }

    /// A disk whose queue is full.
    fn saturated(_: u32) -> Duration {
        Duration::from_millis(100)
    }

    fn is_about(found: f64, wanted: f64) -> bool {
        (wanted * 0.8..=wanted * 1.1).contains(&found)
    }

    #[test]
    fn share_beside_a_light_user_is_one_of_the_time() {
        for (share, wanted) in [
            (None, 0.04),
            (Some("1%"), 0.01),
            (Some("10%"), 0.1),
            (Some("50%"), 0.5),
        ] {
            let usage = simulate(share, 5_000_000, light);
            assert!(is_about(usage.time, wanted), "{share:?}: {}", usage.time);
        }
    }

    #[test]
    fn share_beside_a_saturating_user_is_one_of_the_bytes() {
        for (share, wanted) in [
            (None, 0.004),
            (Some("0.5%"), 0.005),
            (Some("2%"), 0.02),
            (Some("10%"), 0.1),
        ] {
            let usage = simulate(share, 2_000_000_000, saturated);
            assert!(is_about(usage.bytes, wanted), "{share:?}: {}", usage.bytes);
        }
    }

    #[test]
    fn idle_disk_is_used_all_the_time_at_every_share() {
        for share in [None, Some("0.1%"), Some("100%")] {
            let usage = simulate(share, 0, light);
            assert!(usage.time > 0.98, "{share:?}: {}", usage.time);
        }
    }

    #[test]
    fn share_of_all_never_pauses_beside_others() {
        let usage = simulate(Some("100%"), 50_000_000, light);
        assert!(usage.time > 0.98, "{}", usage.time);
    }

    #[test]
    fn smallest_share_sends_a_request_each_second() {
        let usage = simulate(Some("0.1%"), 5_000_000, |_| Duration::from_millis(10));
        assert!((55..=70).contains(&usage.requests), "{}", usage.requests);
    }

    #[test]
    fn process_that_is_stopped_at_times_keeps_its_share_and_its_requests() {
        let stop = Duration::from_millis(500);
        for share in [None, Some("5%")] {
            let always = simulate(share, 2_000_000_000, saturated);
            let stopped = simulate_stopped(share, 2_000_000_000, saturated, stop);
            let largest = [stopped.largest, always.largest].map(f64::from);
            assert!(is_about(largest[0], largest[1]), "{share:?}: {largest:?}");
            let part = stopped.bytes / always.bytes;
            assert!((0.4..0.6).contains(&part), "{share:?}: {part}");
        }
    }
}

//! Yields the disk to other users.
//!
//! Two signals are used. The I/O of others is the disk's counters in sysfs minus the I/O of this
//! operation. The load of the disk is the latency of the operation's own requests, which are sent
//! one at a time:
//! - without other I/O, the next request follows the last;
//! - with other I/O, requests of this operation are in flight for at most [`DUTY`] of the time, so
//!   that other requests seldom queue behind one, or transfer up to [`SHARE`] of the bytes of the
//!   disk, whichever is more: on a saturated disk each request takes so long that the first rule
//!   alone would nearly stop the operation.
//!
//! Without counters (FUSE, NFS, btrfs) a latency twice the lowest seen counts as other I/O.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use extant_sys::disk;

use super::Admission;

/// Share of the time that requests may be in flight while others use the disk.
const DUTY: f64 = 0.04;
/// Share of the disk's throughput that the operation may use while others use the disk.
const SHARE: f64 = 0.004;
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
/// Longest time without a request: the work makes progress even on a disk that is never idle.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The counters of a disk.
#[derive(Clone, Debug)]
pub(super) struct DiskUse {
    stat: PathBuf,
}

impl DiskUse {
    /// The counters of the disk with number `device`; `None` when it has none.
    pub(super) fn of_device(device: u64) -> Option<Self> {
        let stat = disk::directory(device)?.join("stat");
        let disk = Self { stat };
        disk.read()?;
        Some(disk)
    }

    /// Bytes read and written since boot: fields 3 and 7, in sectors of 512 bytes
    /// (Documentation/block/stat.rst).
    fn read(&self) -> Option<u64> {
        let text = fs::read_to_string(&self.stat).ok()?;
        let fields: Vec<u64> = text
            .split_ascii_whitespace()
            .map_while(|field| field.parse().ok())
            .collect();
        Some((fields.get(2)? + fields.get(6)?) * 512)
    }
}

pub(super) struct ContentionMonitor {
    disk: Option<DiskUse>,
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
    next: Instant,
}

impl ContentionMonitor {
    pub(super) fn new(disk: Option<DiskUse>, now: Instant) -> Self {
        let last = disk.as_ref().and_then(DiskUse::read).unwrap_or_default();
        Self {
            disk,
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
        }
    }

    pub(super) fn admit(&mut self, now: Instant, in_flight: u32) -> Admission {
        if in_flight > 0 {
            return Admission::Later(SAMPLE_INTERVAL);
        }
        self.sample(now);
        if now < self.next {
            return Admission::Later(self.next - now);
        }
        if self.is_alone(now) {
            Admission::Now(REQUEST_BYTES_UNCONTENDED)
        } else {
            Admission::Now(self.request_beside())
        }
    }

    /// One request at a time has to carry [`SHARE`] of the disk's bytes, regardless of its
    /// duration.
    fn request_beside(&self) -> u32 {
        let share = self.disk_rate * SHARE * self.latency.as_secs_f64();
        (share as u32).clamp(REQUEST_BYTES_CONTENDED, REQUEST_BYTES_SATURATED)
    }

    pub(super) fn completed(&mut self, now: Instant, bytes: u64, latency: Duration) {
        self.own += bytes;
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

    /// Time to leave free after a request, by the two rules above.
    fn gap(&self, bytes: u64, latency: Duration) -> Duration {
        let by_duty = latency.mul_f64((1.0 - DUTY) / DUTY);
        let by_share = if self.disk_rate > 0.0 {
            let period =
                Duration::from_secs_f64((bytes as f64 / (self.disk_rate * SHARE)).min(60.0));
            period.saturating_sub(latency)
        } else {
            WAIT_MAX
        };
        by_duty.min(by_share).min(WAIT_MAX)
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
        let Some(total) = self.disk.as_ref().and_then(DiskUse::read) else {
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
    use super::*;

    fn contended_monitor(disk_rate: f64) -> ContentionMonitor {
        let mut monitor = ContentionMonitor::new(None, Instant::now());
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
        let mut monitor = ContentionMonitor::new(None, start);
        let later = start + CONTENTION_TIMEOUT * 2;
        monitor.completed(later, 128 << 10, Duration::from_micros(100));
        assert!(monitor.is_alone(later));
        monitor.completed(later, 128 << 10, Duration::from_micros(250));
        assert!(!monitor.is_alone(later));
    }
}

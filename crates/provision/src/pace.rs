//! Rate, request size, and pauses for other users.
//!
//! Three rules, each a small type of its own:
//! - [`Window`] keeps no more in flight than the disk does in 40 ms, so that a
//!   cancel is answered while the last requests end, on any disk;
//! - [`RateLimiter`] holds a rate;
//! - [`ContentionMonitor`] yields to other users of the disk, which [`WatchedDisk`] finds.
//!
//! [`Pacer`] joins them and is asked before every request.

mod contention;
mod watched_disk;
mod window;

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use extant_space::{
    BackgroundShare, ByteRange, CancelToken, Control, ProgressSink, RateLimiter, Result,
    SharedRate, SpaceFile,
};

use contention::ContentionMonitor;
use watched_disk::WatchedDisk;
pub(crate) use window::REQUEST_MAX;
use window::Window;

/// A request is at most this part of a second's bytes.
const REQUESTS_PER_SECOND_MIN: u64 = 20;

/// Granularity of paced requests, bytes: a multiple of any block.
pub(crate) const PACED_UNIT: u32 = 64 << 10;

/// Shortest wait for a rate.
const LATER_MIN: Duration = Duration::from_micros(100);

/// How a long operation uses the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// At the full speed of the disk.
    #[default]
    Full,
    /// At most this number of bytes per second, on average over a tenth of a second.
    Limit(NonZeroU64),
    /// At low priority: the rate follows the latency of the operation's own requests and the other
    /// I/O of the disk.
    Background {
        /// At most this number of bytes per second.
        limit: Option<NonZeroU64>,
        /// Share of the disk while others use it; `None`: 4 % of the time or 0.4 % of the bytes.
        share: Option<BackgroundShare>,
    },
    /// As [`Background`](Self::Background), under a limit that is shared with others.
    BackgroundShared {
        /// At most this number of bytes per second, at this moment.
        limit: SharedRate,
        /// Share of the disk while others use it.
        share: Option<BackgroundShare>,
    },
}

impl Pace {
    /// In the background if `background` is given, with its share, below `limit` bytes per second.
    pub fn new(background: Option<Option<BackgroundShare>>, limit: Option<NonZeroU64>) -> Self {
        match (background, limit) {
            (Some(share), limit) => Self::Background { limit, share },
            (None, Some(limit)) => Self::Limit(limit),
            (None, None) => Self::Full,
        }
    }

    /// The limit at this moment, bytes per second; `None`: no limit.
    pub fn rate(&self) -> Option<NonZeroU64> {
        match self {
            Self::Full => None,
            Self::Limit(rate) => Some(*rate),
            Self::Background { limit, .. } => *limit,
            Self::BackgroundShared { limit, .. } => Some(limit.get()),
        }
    }

    /// Whether the operation yields to other users of the disk.
    pub fn is_background(&self) -> bool {
        matches!(
            self,
            Self::Background { .. } | Self::BackgroundShared { .. }
        )
    }

    /// Share of the disk while others use it.
    pub fn share(&self) -> Option<BackgroundShare> {
        match self {
            Self::Full | Self::Limit(_) => None,
            Self::Background { share, .. } | Self::BackgroundShared { share, .. } => *share,
        }
    }

    /// Fails where the pace cannot be kept on `file`: in the background, where a file that is
    /// stored in an image has no disk whose counters show other users. Reports the disk.
    ///
    /// # Errors
    /// `Unsupported` with the reason; those of opening the image.
    pub fn check(&self, file: &dyn SpaceFile, progress: &dyn ProgressSink) -> Result<()> {
        if self.is_background()
            && let Some(disk) = WatchedDisk::of_file(file)?
        {
            progress.watches_disk(&disk.name());
        }
        Ok(())
    }
}

/// Answer to "may I send the next request?"
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Now, with at most this number of bytes.
    Now(u32),
    /// Ask again when a request has ended, or after so long.
    Later(Duration),
}

/// Decides about every request of one operation.
pub struct Pacer<'f> {
    pace: Pace,
    window: Window,
    limiter: RateLimiter,
    monitor: Option<ContentionMonitor>,
    /// Since when requests are held back because others use the disk.
    giving_way: Option<Instant>,
    gave_way: Duration,
    disk: Option<WatchedDisk<'f>>,
    has_named_disk: bool,
}

impl<'f> Pacer<'f> {
    /// A pacer for requests to the disk under `file`.
    ///
    /// # Errors
    /// As [`Pace::check`].
    pub fn of_file(file: &'f dyn SpaceFile, pace: &Pace) -> Result<Self> {
        let now = Instant::now();
        if !pace.is_background() {
            return Ok(Self::new(pace, None, now));
        }
        let disk = WatchedDisk::of_file(file)?;
        let counters = disk.as_ref().map(WatchedDisk::counters);
        let monitor = ContentionMonitor::new(counters, pace.share(), now);
        Ok(Self {
            disk,
            ..Self::new(pace, Some(monitor), now)
        })
    }

    fn new(pace: &Pace, monitor: Option<ContentionMonitor>, now: Instant) -> Self {
        Self {
            pace: pace.clone(),
            window: Window::new(now),
            limiter: RateLimiter::default(),
            monitor,
            giving_way: None,
            gave_way: Duration::ZERO,
            disk: None,
            has_named_disk: false,
        }
    }

    /// Calls `request` on consecutive chunks of `range`, one at a time, at the pace. Chunks are
    /// multiples of `unit` bytes.
    ///
    /// # Errors
    /// `Cancelled`; those of the request.
    pub fn one_at_a_time(
        &mut self,
        range: ByteRange,
        unit: u32,
        control: Control<'_>,
        request: &mut dyn FnMut(ByteRange) -> Result<()>,
    ) -> Result<()> {
        let done =
            self.one_at_a_time_unreported(range, unit, control.cancel, &mut |pacer, chunk| {
                pacer.report(control.progress);
                request(chunk)
            });
        self.report(control.progress);
        done
    }

    /// [`one_at_a_time`](Self::one_at_a_time), which leaves the pauses for a later
    /// [`report`](Self::report).
    pub(crate) fn one_at_a_time_unreported(
        &mut self,
        range: ByteRange,
        unit: u32,
        cancel: &CancelToken,
        request: &mut dyn FnMut(&mut Self, ByteRange) -> Result<()>,
    ) -> Result<()> {
        let mut at = range.start();
        while at < range.end() {
            cancel.check()?;
            match self.admit(Instant::now(), 0, 0, unit) {
                Admission::Later(wait) => cancel.sleep(wait)?,
                Admission::Now(bytes) => {
                    let end = range.end().min(at + u64::from(bytes));
                    let started = Instant::now();
                    request(self, ByteRange::new(at, end))?;
                    self.write_out(ByteRange::new(at, end))?;
                    let now = Instant::now();
                    self.completed(now, end - at, now - started);
                    at = end;
                }
            }
        }
        Ok(())
    }

    /// May a request start now, with `in_flight` requests of `in_flight_bytes` running?
    ///
    /// The bytes admitted are a multiple of `unit` and at least one unit. Admitted bytes must be
    /// started: it is taken off the rate.
    pub(crate) fn admit(
        &mut self,
        now: Instant,
        in_flight: u32,
        in_flight_bytes: u64,
        unit: u32,
    ) -> Admission {
        // In the background one small request at a time is all there is; a window on top would
        // take the others' queue for a slow disk.
        let admission = match &mut self.monitor {
            Some(monitor) => monitor.admit(now, in_flight),
            None => self.window.admit(in_flight_bytes),
        };
        // The operation's own request in flight is no pause.
        let is_held_back = matches!(admission, Admission::Later(_)) && in_flight == 0;
        if let Some(since) = self.giving_way.take() {
            self.gave_way += now.saturating_duration_since(since);
        }
        self.giving_way = (is_held_back && self.monitor.is_some()).then_some(now);
        let Admission::Now(mut bytes) = admission else {
            return admission;
        };
        let rate = self.pace.rate();
        if let Some(rate) = rate {
            let request_max = rate.get() / REQUESTS_PER_SECOND_MIN;
            bytes = bytes.min(u32::try_from(request_max).unwrap_or(u32::MAX));
        }
        let bytes = (bytes - bytes % unit).max(unit);
        let admitted = rate.map(|rate| self.limiter.try_admit(bytes.into(), rate, now));
        if let Some(Err(wait)) = admitted {
            return Admission::Later(wait.max(LATER_MIN));
        }
        if let Some(monitor) = &mut self.monitor {
            monitor.started(now, bytes);
        }
        Admission::Now(bytes)
    }

    /// In the background: waits until a request that has ended is on the disk and in its counters,
    /// where it is in the page cache of an image before.
    pub(crate) fn write_out(&self, range: ByteRange) -> Result<()> {
        match &self.disk {
            Some(disk) if !range.is_empty() => disk.write_out(range),
            _ => Ok(()),
        }
    }

    /// Reports the pauses since the last report, and the disk in the first one.
    pub(crate) fn report(&mut self, progress: &dyn ProgressSink) {
        if let Some(disk) = self.disk.as_ref().filter(|_| !self.has_named_disk) {
            progress.watches_disk(&disk.name());
            self.has_named_disk = true;
        }
        if self.gave_way > Duration::ZERO {
            progress.gave_way(std::mem::take(&mut self.gave_way));
        }
    }

    /// A request of `bytes` ended after `latency`.
    pub(crate) fn completed(&mut self, now: Instant, bytes: u64, latency: Duration) {
        self.window.completed(now, bytes);
        if let Some(monitor) = &mut self.monitor {
            monitor.completed(now, bytes, latency);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Runs a disk of `rate` bytes a second for `seconds`; returns the bytes done.
    fn simulate(pacer: &mut Pacer<'_>, start: Instant, rate: u64, seconds: u64) -> u64 {
        let (mut now, mut done) = (start, 0);
        while now < start + Duration::from_secs(seconds) {
            match pacer.admit(now, 0, 0, 4096) {
                Admission::Now(bytes) => {
                    let latency = Duration::from_nanos(u64::from(bytes) * 1_000_000_000 / rate);
                    now += latency;
                    done += u64::from(bytes);
                    pacer.completed(now, u64::from(bytes), latency);
                }
                Admission::Later(wait) => now += wait.max(Duration::from_micros(10)),
            }
        }
        done
    }

    #[test]
    fn limit_holds_on_average_for_large_and_small_rates() {
        for rate in [64 << 10, MIB, 100 * MIB] {
            let start = Instant::now();
            let mut pacer = Pacer::new(&Pace::Limit(NonZeroU64::new(rate).unwrap()), None, start);
            let done = simulate(&mut pacer, start, 2000 * MIB, 20);
            let wanted = rate * 20;
            assert!(
                done <= wanted + rate / 5 && done >= wanted * 9 / 10,
                "{rate}: {done} of {wanted}"
            );
        }
    }

    #[test]
    fn shared_limit_holds_from_the_moment_it_is_changed() {
        let rate = |mib: u64| NonZeroU64::new(mib * MIB).unwrap();
        let shared = SharedRate::new(rate(10));
        let start = Instant::now();
        let monitor = ContentionMonitor::new(None, None, start);
        let pace = Pace::BackgroundShared {
            limit: shared.clone(),
            share: None,
        };
        let mut pacer = Pacer::new(&pace, Some(monitor), start);
        let first = simulate(&mut pacer, start, 2000 * MIB, 10);
        assert!((90 * MIB..=102 * MIB).contains(&first), "{first}");
        shared.set(rate(40));
        let later = start + Duration::from_secs(10);
        let second = simulate(&mut pacer, later, 2000 * MIB, 10);
        assert!((360 * MIB..=408 * MIB).contains(&second), "{second}");
    }

    #[test]
    fn full_pace_waits_for_nothing_but_the_window() {
        let start = Instant::now();
        let mut pacer = Pacer::new(&Pace::Full, None, start);
        let done = simulate(&mut pacer, start, 100 * MIB, 5);
        assert!(done >= 499 * MIB, "{done}");
    }

    #[test]
    fn admitted_bytes_are_whole_units() {
        let now = Instant::now();
        let mut pacer = Pacer::new(&Pace::Limit(NonZeroU64::new(1).unwrap()), None, now);
        assert_eq!(pacer.admit(now, 0, 0, 65_536), Admission::Now(65_536));
    }
}

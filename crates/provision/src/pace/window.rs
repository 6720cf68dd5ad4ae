//! Keeps no more in flight than the disk does in 40 ms.

use std::time::{Duration, Instant};

use super::Admission;

const TARGET: Duration = Duration::from_millis(40);
const MEASURE: Duration = Duration::from_millis(10);
/// How long a window that others compete with is left alone.
const HOLD: Duration = Duration::from_secs(1);
const WINDOW_MIN: u64 = 256 << 10;
const WINDOW_INITIAL: u64 = 4 << 20;
/// Measured on virtio and NVMe: deeper queues bring nothing.
const WINDOW_MAX: u64 = 16 << 20;
const REQUESTS: u64 = 8;
const REQUEST_MIN: u64 = 64 << 10;
/// Largest request, and size of the buffer of zeros.
pub(crate) const REQUEST_MAX: u64 = 2 << 20;

/// How long to wait for a request to end before looking for a cancel again.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

pub(super) struct Window {
    bytes: u64,
    measured_from: Instant,
    measured_bytes: u64,
    /// Window and rate before the last step down, until the effect of the step is known.
    stepped_down: Option<(u64, f64)>,
    /// No step down before this time.
    held_until: Instant,
}

impl Window {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            bytes: WINDOW_INITIAL,
            measured_from: now,
            measured_bytes: 0,
            stepped_down: None,
            held_until: now,
        }
    }

    pub(super) fn admit(&self, in_flight_bytes: u64) -> Admission {
        let request = request_bytes(self.bytes);
        if in_flight_bytes == 0 || in_flight_bytes + request <= self.bytes {
            Admission::Now(request as u32)
        } else {
            Admission::Later(RETRY_INTERVAL)
        }
    }

    pub(super) fn completed(&mut self, now: Instant, bytes: u64) {
        self.measured_bytes += bytes;
        let elapsed = now.saturating_duration_since(self.measured_from);
        // Every request of the window must have completed once: before that, the requests of an
        // older one count.
        if elapsed < MEASURE || self.measured_bytes < self.bytes {
            return;
        }
        let rate = self.measured_bytes as f64 / elapsed.as_secs_f64();
        self.measured_from = now;
        self.measured_bytes = 0;
        self.adapt(now, rate);
    }

    fn adapt(&mut self, now: Instant, rate: f64) {
        if let Some((bytes, rate_before)) = self.stepped_down.take() {
            // The rate fell with the window: others fill the disk's queue, and the requests in
            // flight are our share of it. A smaller window shortens no wait then.
            let shrunk = self.bytes as f64 / bytes as f64;
            if rate < rate_before * shrunk.sqrt() {
                self.bytes = bytes;
                self.held_until = now + HOLD;
                return;
            }
        }
        // Down a half at a time, up by doubling: a burst into the disk's cache is no proof
        // of speed.
        let wanted = (rate * TARGET.as_secs_f64()) as u64;
        let next = wanted
            .clamp(self.bytes / 2, self.bytes * 2)
            .clamp(WINDOW_MIN, WINDOW_MAX);
        if next < self.bytes {
            if now < self.held_until {
                return;
            }
            self.stepped_down = Some((self.bytes, rate));
        }
        self.bytes = next;
    }
}

fn request_bytes(window: u64) -> u64 {
    let share = (window / REQUESTS).clamp(REQUEST_MIN, REQUEST_MAX);
    1 << share.ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settle(rate: u64) -> u64 {
        let mut now = Instant::now();
        let mut window = Window::new(now);
        for _ in 0..200 {
            let Admission::Now(bytes) = window.admit(0) else {
                panic!("an idle disk always admits")
            };
            now += Duration::from_nanos(u64::from(bytes) * 1_000_000_000 / rate);
            window.completed(now, u64::from(bytes));
        }
        window.bytes
    }

    #[test]
    fn window_equals_40_ms_of_disk_throughput() {
        assert_eq!(settle(2_000 << 20), WINDOW_MAX);
        let slow = settle(50 << 20);
        assert!((1 << 20..=3 << 20).contains(&slow), "{slow}");
        assert_eq!(settle(1 << 20), WINDOW_MIN);
    }

    #[test]
    fn window_does_not_shrink_where_others_fill_the_queue() {
        // The disk serves 200 MiB of others before ours, whatever we send.
        let latency = Duration::from_millis(100);
        let mut now = Instant::now();
        let mut window = Window::new(now);
        for _ in 0..100 {
            now += latency;
            window.completed(now, window.bytes);
        }
        assert!(window.bytes >= WINDOW_INITIAL / 2, "{}", window.bytes);
    }

    #[test]
    fn full_window_admits_nothing_more() {
        let window = Window::new(Instant::now());
        assert_eq!(
            window.admit(WINDOW_INITIAL),
            Admission::Later(RETRY_INTERVAL)
        );
        assert!(matches!(
            window.admit(WINDOW_INITIAL / 2),
            Admission::Now(_)
        ));
    }
}

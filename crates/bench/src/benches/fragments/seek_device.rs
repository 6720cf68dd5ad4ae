//! A disk with a head: what a request costs depends on where the last one ended.
//!
//! Model, of a disk of 7200 turns a minute:
//!
//! - Transfer at 200 MiB/s. A request that starts where the last one ended costs nothing more, as
//!   read-ahead and write cache of a disk hide the time between two requests.
//! - A seek takes 0.5 ms, and the more with the square root of the distance, up to 8 ms for the
//!   whole device; then half a turn until the sector arrives, 4.17 ms. Seeks of real disks have
//!   this shape while the arm accelerates (C. Ruemmler, J. Wilkes: An Introduction to Disk Drive
//!   Modeling, IEEE Computer 27/3, 1994).
//! - A gap ahead costs at most the time in which it passes below the head.
//! - One request at a time, in the order of arrival; those of one batch by ascending offset, as an
//!   I/O scheduler would send them. Nothing is reordered between batches.
//!
//! Size of the parameters: Seagate's product manual of Constellation ES.3 has a latency of 4.16 ms
//! and 1,668,096 bytes a track, which are 191 MiB/s. Average seeks of such disks are 8 to 9 ms, so
//! this one is fast.
//!
//! Data is in memory. The time is spent by sleeping, so that clients measure it. Only reads and
//! writes cost time.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use extant_blockdev::{Device, Geometry, MemoryDevice, Operation, RangeStatus, Request};
use extant_space::{ByteRange, Result};
use parking_lot::Mutex;

/// Bytes a second below the head.
pub(super) const BYTES_PER_SECOND: u64 = 200 << 20;
const SEEK_MIN: Duration = Duration::from_micros(500);
const SEEK_MAX: Duration = Duration::from_millis(8);
const HALF_TURN: Duration = Duration::from_nanos(4_166_667);

/// A device of that model.
pub(super) struct SeekDevice {
    inner: MemoryDevice,
    size: u64,
    started: Instant,
    head: Mutex<Head>,
    /// Requests cost nothing and are not counted.
    is_free: AtomicBool,
}

/// The head, which serves one request at a time.
#[derive(Default)]
struct Head {
    /// End of the last request.
    position: u64,
    /// When that is done, counted from the start.
    free_at: Duration,
    requests: u64,
}

impl SeekDevice {
    pub(super) fn new(inner: MemoryDevice) -> Self {
        Self {
            size: inner.geometry().size,
            inner,
            started: Instant::now(),
            head: Mutex::default(),
            is_free: AtomicBool::new(false),
        }
    }

    /// Reads and writes so far.
    pub(super) fn requests(&self) -> u64 {
        self.head.lock().requests
    }

    /// Runs `work`, whose requests cost no time and do not move the head.
    pub(super) fn free_of_cost<T>(&self, work: impl FnOnce() -> T) -> T {
        self.is_free.store(true, Ordering::Relaxed);
        let result = work();
        self.is_free.store(false, Ordering::Relaxed);
        result
    }

    /// Time of `range` for a head at `from`.
    fn time(&self, from: u64, range: ByteRange) -> Duration {
        let distance = range.start().abs_diff(from);
        let reposition = if distance == 0 {
            Duration::ZERO
        } else {
            let stroke = (distance as f64 / self.size as f64).sqrt();
            SEEK_MIN + (SEEK_MAX - SEEK_MIN).mul_f64(stroke) + HALF_TURN
        };
        let reposition = if range.start() > from {
            reposition.min(passing(distance))
        } else {
            reposition
        };
        reposition + passing(range.len())
    }

    /// Moves the head over the transfers of a batch that arrives at `now`; returns when they are
    /// done.
    fn serve(&self, requests: &[Request<'_>], now: Duration) -> Duration {
        let transfers = requests
            .iter()
            .filter_map(|request| match request.operation {
                Operation::Read { .. } | Operation::Write { .. } => request.operation.range(),
                _ => None,
            });
        let mut ranges: Vec<ByteRange> = transfers.collect();
        if ranges.is_empty() {
            return now;
        }
        ranges.sort_by_key(|range| range.start());
        let mut head = self.head.lock();
        let mut done = head.free_at.max(now);
        for range in &ranges {
            done += self.time(head.position, *range);
            head.position = range.end();
        }
        head.free_at = done;
        head.requests += ranges.len() as u64;
        done
    }
}

/// Time in which `bytes` pass below the head.
fn passing(bytes: u64) -> Duration {
    Duration::from_secs_f64(bytes as f64 / BYTES_PER_SECOND as f64)
}

impl Device for SeekDevice {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        if self.is_free.load(Ordering::Relaxed) {
            return self.inner.submit(requests);
        }
        let done = self.serve(requests, self.started.elapsed());
        self.inner.submit(requests);
        thread::sleep(done.saturating_sub(self.started.elapsed()));
    }

    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()> {
        self.inner.status(range, visit)
    }
}

#[cfg(test)]
mod tests {
    use extant_blockdev::Persistence;

    use super::*;

    const MIB: u64 = 1 << 20;
    /// Of 1 MiB below the head.
    const TRANSFER: Duration = Duration::from_millis(5);

    fn device() -> SeekDevice {
        SeekDevice::new(MemoryDevice::new(64 * MIB))
    }

    #[test]
    fn request_after_the_last_one_costs_its_transfer_alone() {
        let range = ByteRange::new(3 * MIB, 4 * MIB);
        assert_eq!(device().time(3 * MIB, range), TRANSFER);
    }

    #[test]
    fn seek_costs_the_root_of_its_distance_and_half_a_turn() {
        let device = device();
        let quarter = device.time(17 * MIB, ByteRange::new(0, MIB));
        // Half of the way from the shortest to the longest seek, and the last MiB.
        let stroke = (17.0_f64 / 64.0).sqrt();
        let seek = Duration::from_secs_f64(0.0005 + 0.0075 * stroke);
        let expected = seek + HALF_TURN + TRANSFER;
        assert!(quarter.abs_diff(expected) < Duration::from_micros(1));
        let whole = device.time(64 * MIB, ByteRange::new(0, MIB));
        assert_eq!(whole, SEEK_MAX + HALF_TURN + TRANSFER);
    }

    #[test]
    fn gap_ahead_costs_its_passing_and_the_same_gap_behind_half_a_turn() {
        let device = device();
        let ahead = device.time(MIB, ByteRange::new(MIB + MIB / 2, 2 * MIB + MIB / 2));
        assert_eq!(ahead, TRANSFER / 2 + TRANSFER);
        let behind = device.time(2 * MIB, ByteRange::new(MIB + MIB / 2, 2 * MIB + MIB / 2));
        assert!(behind > TRANSFER + HALF_TURN + SEEK_MIN);
    }

    #[test]
    fn batch_is_served_by_offset_and_batches_one_after_the_other() {
        let device = device();
        let from = vec![0; MIB as usize];
        let write = |offset| Request::write(offset, &from, Persistence::Cached);
        let batch = [write(MIB), write(0), Request::new(Operation::Flush)];
        assert_eq!(device.serve(&batch, TRANSFER), 3 * TRANSFER);
        // Arrives before the first is done.
        let done = device.serve(&[write(2 * MIB)], TRANSFER);
        assert_eq!((done, device.requests()), (4 * TRANSFER, 3));
    }

    #[test]
    fn time_is_really_spent_and_data_is_that_of_the_device_below() {
        let device = device();
        let start = Instant::now();
        let from = vec![7; MIB as usize];
        device.write_at(&from, 0, Persistence::Cached).unwrap();
        assert!(start.elapsed() >= TRANSFER);
        let mut into = [0; 8192];
        let read = device.free_of_cost(|| device.read_at(&mut into, MIB - 4096));
        read.unwrap();
        assert_eq!((into[4095], into[4096], device.requests()), (7, 0, 1));
    }
}

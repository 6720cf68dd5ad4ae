//! The requests of a writer that uses direct I/O.

use std::io::{self, IoSlice};
use std::time::{Duration, Instant};

use extant_space::{ByteRange, Error, Result};
use extant_sys::call::{Call, Durability, Memory};
use extant_sys::queue::CallQueue;

use super::Work;
use crate::pace::Admission;

/// Requests at a time; the pace allows fewer on slow disks.
pub(super) const QUEUE_DEPTH: usize = 16;
/// Longest time between two checks for a cancel.
const CANCEL_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// One request on its way.
#[derive(Clone, Copy)]
struct Flight {
    range: ByteRange,
    started: Instant,
}

/// Requests that zero some ranges, all of which read from one buffer of zeros.
pub(super) struct ZeroQueue<'w, 'a, 'z> {
    work: &'w mut Work<'a>,
    zeros: &'z [u8],
    block_bytes: u32,
    /// Ranges to be zeroed, the next one last.
    ranges: Vec<ByteRange>,
    flights: [Option<Flight>; QUEUE_DEPTH],
    in_flight_bytes: u64,
    /// How long the pace holds the next request back.
    held_back: Duration,
    /// The first error; no request is started after it.
    failed: Option<Error>,
}

impl<'w, 'a, 'z> ZeroQueue<'w, 'a, 'z> {
    pub(super) fn new(
        work: &'w mut Work<'a>,
        zeros: &'z [u8],
        block_bytes: u32,
        mut ranges: Vec<ByteRange>,
    ) -> Self {
        ranges.reverse();
        Self {
            work,
            zeros,
            block_bytes,
            ranges,
            flights: [None; QUEUE_DEPTH],
            in_flight_bytes: 0,
            held_back: Duration::ZERO,
            failed: None,
        }
    }

    /// Everything is zeroed.
    pub(super) fn is_done(&self) -> bool {
        self.ranges.is_empty()
    }

    /// With nothing in flight: waits until the pace admits the next request.
    pub(super) fn wait_for_pace(&mut self) -> Result<&Self> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        self.work.report_progress();
        let wait = std::mem::take(&mut self.held_back);
        std::thread::sleep(wait.min(CANCEL_CHECK_INTERVAL));
        Ok(self)
    }

    /// Takes the next request off the ranges, if it may start now.
    fn take(&mut self) -> Result<Option<ByteRange>> {
        let in_flight = self.flights.iter().flatten().count();
        let Some(range) = self.ranges.last_mut() else {
            return Ok(None);
        };
        self.work.target.check_stop()?;
        self.work.report_progress();
        // An admitted request must be started: the pacer is asked only when there is a free slot.
        if in_flight == QUEUE_DEPTH {
            return Ok(None);
        }
        let admission = self.work.pacer.admit(
            Instant::now(),
            in_flight as u32,
            self.in_flight_bytes,
            self.block_bytes.max(512),
        );
        let bytes = match admission {
            Admission::Now(bytes) => {
                self.held_back = Duration::ZERO;
                u64::from(bytes).min(range.len())
            }
            Admission::Later(wait) => {
                self.held_back = wait;
                return Ok(None);
            }
        };
        let request = ByteRange::new(range.start(), range.start() + bytes);
        *range = ByteRange::new(request.end(), range.end());
        if range.is_empty() {
            self.ranges.pop();
        }
        Ok(Some(request))
    }

    fn fail(&mut self, error: Error) {
        self.failed.get_or_insert(error);
    }
}

impl<'z> CallQueue<'z> for ZeroQueue<'_, '_, 'z> {
    fn next(&mut self) -> Option<(usize, Call<'z>)> {
        if self.failed.is_some() {
            return None;
        }
        let range = match self.take() {
            Ok(range) => range?,
            Err(error) => {
                self.fail(error);
                return None;
            }
        };
        let slot = self.flights.iter().position(Option::is_none);
        let slot = slot.expect("a slot is free");
        self.flights[slot] = Some(Flight {
            range,
            started: Instant::now(),
        });
        self.in_flight_bytes += range.len();
        let zeros = IoSlice::new(&self.zeros[..range.len() as usize]);
        let call = Call::Write {
            offset: range.start(),
            from: Memory::Parts([zeros].into_iter().collect()),
            durability: Durability::Cached,
        };
        Some((slot, call))
    }

    fn ended(&mut self, slot: usize, _: Call<'z>, result: io::Result<usize>) {
        let flight = self.flights[slot].take().expect("a slot in use");
        self.in_flight_bytes -= flight.range.len();
        let explain = |source: io::Error| {
            Error::from(source)
                .during("write zeros")
                .in_range(flight.range)
        };
        let written = match result {
            Ok(0) => {
                let source = io::Error::from_raw_os_error(libc::EIO);
                let error = explain(source);
                return self.fail(error.detail("the file system wrote nothing and gave no reason"));
            }
            Ok(written) => written as u64,
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) => 0,
            Err(error) => return self.fail(explain(error)),
        };
        let done = ByteRange::new(flight.range.start(), flight.range.start() + written);
        if let Err(error) = self.work.pacer.write_out(done) {
            return self.fail(error);
        }
        let now = Instant::now();
        let latency = now.saturating_duration_since(flight.started);
        self.work.pacer.completed(now, written, latency);
        self.work.count(written);
        let rest = ByteRange::new(done.end(), flight.range.end());
        if !rest.is_empty() {
            self.ranges.push(rest);
        }
    }

    fn recheck_interval(&self) -> Option<Duration> {
        if self.held_back.is_zero() {
            Some(CANCEL_CHECK_INTERVAL)
        } else {
            Some(self.held_back.min(CANCEL_CHECK_INTERVAL))
        }
    }
}

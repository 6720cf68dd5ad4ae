//! Foreground I/O on a device during another operation.
//!
//! A reader and a writer, 4 KiB at a random offset of a written range per request, with pauses so
//! that the machine is not saturated. Each request holds the gate for reading; closing the gate
//! waits for requests in flight, so each request begins and ends in the phase it is counted for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use extant_blockdev::{Device, Persistence};
use parking_lot::RwLock;

use crate::random::Random;

/// Bytes of a request.
const BLOCK: usize = 4096;
const THINK_TIME: Duration = Duration::from_micros(50);

/// Whether requests are counted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Quiet,
    Counted,
}

/// Times of the requests that were counted.
pub(super) struct Times {
    pub(super) reads: Vec<Duration>,
    pub(super) writes: Vec<Duration>,
}

/// Switches the phases.
pub(super) struct Gate {
    phase: RwLock<Phase>,
}

impl Gate {
    /// Begins a phase, once the requests in flight are done.
    pub(super) fn begin(&self, phase: Phase) {
        *self.phase.write() = phase;
    }
}

/// Runs `work` beside a reader and a writer of the first `bytes` of the device.
pub(super) fn beside<T>(
    device: &dyn Device,
    bytes: u64,
    work: impl FnOnce(&Gate) -> Result<T>,
) -> Result<(T, Times)> {
    let gate = Gate {
        phase: RwLock::new(Phase::Quiet),
    };
    let stop = AtomicBool::new(false);
    let (gate, stop) = (&gate, &stop);
    thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut buffer = [0; BLOCK];
            repeat(gate, stop, Random::new(1), bytes, |offset| {
                device.read_at(&mut buffer, offset)
            })
        });
        let writer = scope.spawn(move || {
            let buffer = [7; BLOCK];
            repeat(gate, stop, Random::new(2), bytes, |offset| {
                device.write_at(&buffer, offset, Persistence::Cached)
            })
        });
        let done = work(gate);
        stop.store(true, Ordering::Relaxed);
        let panicked = |_| anyhow!("a thread panicked");
        let reads = reader.join().map_err(panicked)?;
        let writes = writer.join().map_err(panicked)?;
        let times = Times {
            reads: reads?,
            writes: writes?,
        };
        Ok((done?, times))
    })
}

fn repeat(
    gate: &Gate,
    stop: &AtomicBool,
    mut random: Random,
    bytes: u64,
    mut request: impl FnMut(u64) -> extant_space::Result<()>,
) -> Result<Vec<Duration>> {
    let blocks = bytes / BLOCK as u64;
    let mut times = Vec::new();
    loop {
        let block = (random.fraction() * blocks as f64) as u64;
        let phase = gate.phase.read();
        let start = Instant::now();
        request(block * BLOCK as u64)?;
        let elapsed = start.elapsed();
        if *phase == Phase::Counted {
            times.push(elapsed);
        }
        drop(phase);
        if stop.load(Ordering::Relaxed) {
            return Ok(times);
        }
        thread::sleep(THINK_TIME);
    }
}

#[cfg(test)]
mod tests {
    use extant_blockdev::{MemoryDevice, OperationKind, Statistics};

    use super::*;

    /// Runs traffic until there are requests in `phase`; the counted requests, and those before.
    fn traffic_in(phase: Phase) -> (Times, [u64; 2], [u64; 2]) {
        let device = Statistics::new(MemoryDevice::new(1 << 20));
        let counts = || {
            let snapshot = device.snapshot();
            [OperationKind::Read, OperationKind::Write].map(|kind| snapshot.of(kind).count())
        };
        let (before, times) = beside(&device, 1 << 20, |gate| {
            gate.begin(phase);
            let before = counts();
            while counts()
                .iter()
                .zip(before)
                .any(|(now, then)| *now < then + 3)
            {
                thread::yield_now();
            }
            Ok(before)
        })
        .unwrap();
        (times, before, counts())
    }

    #[test]
    fn requests_of_the_counted_phase_are_counted() {
        let (times, before, after) = traffic_in(Phase::Counted);
        for (counted, (before, after)) in [&times.reads, &times.writes]
            .into_iter()
            .zip(before.into_iter().zip(after))
        {
            // `before` may miss requests between the gate and the first check.
            assert!((after - before..=after).contains(&(counted.len() as u64)));
        }
    }

    #[test]
    fn requests_of_the_quiet_phase_are_not() {
        let (times, ..) = traffic_in(Phase::Quiet);
        assert!(times.reads.is_empty() && times.writes.is_empty());
    }

    #[test]
    fn failure_of_the_traffic_is_an_error() {
        let device = MemoryDevice::new(1 << 20);
        assert!(beside(&device, 1 << 50, |_| Ok(())).is_err());
    }
}

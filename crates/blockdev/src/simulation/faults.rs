//! A device that injects faults by rules.
//!
//! Every request is matched with the rules in their order. A rule counts its matching requests, and
//! decides by that number and the seed alone: a single-threaded run is reproducible. The first rule
//! that fires determines the fault; delays are added.
//!
//! Omitted effects never reach the device below, and wrong ones reach it as ordinary requests.

mod rule;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use extant_space::{ByteRange, Error, Extent, LayerRange, LayerVisitor, Result};
use fastrand::Rng;
use parking_lot::RwLock;

use super::seed::random;
use super::tear::torn;
use crate::{Device, Geometry, Operation, Persistence, RangeStatus, Request};
use rule::ActiveRule;
pub use rule::{Done, Fault, FaultRule, When};

/// Whether delays take time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The caller sleeps.
    Real,
    /// Delays only add up, see [`FaultyDevice::delayed`].
    Virtual,
}

/// A device that injects faults into the requests to the device below.
pub struct FaultyDevice<D> {
    inner: D,
    seed: u64,
    clock: Clock,
    rules: RwLock<Arc<[ActiveRule]>>,
    delayed_nanoseconds: AtomicU64,
}

/// A fault that applies, and its random value.
struct Strike {
    fault: Fault,
    random: Rng,
}

impl<D: Device> FaultyDevice<D> {
    /// Faults by `rules`, whose random decisions follow from `seed`. Delays take time.
    pub fn new(inner: D, seed: u64, rules: Vec<FaultRule>) -> Self {
        Self::with_clock(inner, seed, rules, Clock::Real)
    }

    /// As [`new`](Self::new), with a clock of choice.
    pub fn with_clock(inner: D, seed: u64, rules: Vec<FaultRule>, clock: Clock) -> Self {
        Self {
            inner,
            seed,
            clock,
            rules: RwLock::new(activate(rules)),
            delayed_nanoseconds: AtomicU64::new(0),
        }
    }

    /// The device below.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Other rules from now on; their counts begin at 0.
    pub fn set_rules(&self, rules: Vec<FaultRule>) {
        *self.rules.write() = activate(rules);
    }

    /// Number of applied faults of each rule, in the order of the rules.
    pub fn strikes(&self) -> Vec<u64> {
        self.rules().iter().map(ActiveRule::strikes).collect()
    }

    /// All delays so far, those that took time and those that did not.
    pub fn delayed(&self) -> Duration {
        Duration::from_nanos(self.delayed_nanoseconds.load(Ordering::Relaxed))
    }

    fn rules(&self) -> Arc<[ActiveRule]> {
        let rules = self.rules.read();
        rules.clone()
    }

    /// Outcome of an operation, and its delay.
    fn judge(&self, rules: &[ActiveRule], operation: &Operation<'_>) -> (Option<Strike>, Duration) {
        let mut strike = None;
        let mut delay = Duration::ZERO;
        for (number, rule) in rules.iter().enumerate() {
            let Some(count) = rule.counts(operation) else {
                continue;
            };
            let mut random = random(self.seed, &[number as u64, count]);
            if !rule.decides(count, &mut random) {
                continue;
            }
            match rule.fault() {
                Fault::Delay { least, most } => {
                    let nanoseconds = |duration: &Duration| duration.as_nanos() as u64;
                    let drawn = random.u64(nanoseconds(least)..=nanoseconds(most));
                    delay += Duration::from_nanos(drawn);
                    rule.struck();
                }
                fault if strike.is_none() => {
                    let fault = fault.clone();
                    strike = Some(Strike { fault, random });
                    rule.struck();
                }
                _ => {}
            }
        }
        (strike, delay)
    }

    fn wait(&self, delay: Duration) {
        if delay.is_zero() {
            return;
        }
        let nanoseconds = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        self.delayed_nanoseconds
            .fetch_add(nanoseconds, Ordering::Relaxed);
        if self.clock == Clock::Real {
            thread::sleep(delay);
        }
    }

    fn execute(&self, operation: &mut Operation<'_>, strike: Strike) -> Result<()> {
        let Strike { fault, mut random } = strike;
        match fault {
            Fault::Fail { kind, done } => {
                match done {
                    Done::Nothing => {}
                    Done::Part => self.do_part(operation, None, &mut random)?,
                    Done::All => self.pass(operation)?,
                }
                let error = Error::new(kind).detail("injected fault");
                Err(match operation.range() {
                    Some(range) => error.in_range(range),
                    None => error,
                })
            }
            Fault::Lose => Ok(()),
            Fault::Tear { atomic_bytes } => self.do_part(operation, atomic_bytes, &mut random),
            Fault::Misdirect => self.misdirect(operation, &mut random),
            Fault::FlipBits(bits) => {
                self.pass(operation)?;
                if let Operation::Read { into, .. } = operation {
                    flip(into, bits, &mut random);
                }
                Ok(())
            }
            Fault::Delay { .. } => unreachable!("a delay is no strike"),
        }
    }

    fn pass(&self, operation: &mut Operation<'_>) -> Result<()> {
        self.inner.run(reborrow(operation))
    }

    /// Does some units of a change and leaves out others; only data can be cut inside a block. A
    /// read is done and a flush is not.
    fn do_part(
        &self,
        operation: &mut Operation<'_>,
        atomic_bytes: Option<u32>,
        random: &mut Rng,
    ) -> Result<()> {
        let block = self.inner.geometry().logical_block;
        let mut parts = |range, unit: u32| torn(range, u64::from(unit), random).into_iter();
        match operation {
            Operation::Read { .. } => self.pass(operation),
            Operation::Flush => Ok(()),
            Operation::Write {
                offset,
                from,
                persistence,
            } => {
                let data = from.concat();
                let range = ByteRange::new(*offset, *offset + data.len() as u64);
                let unit = atomic_bytes.unwrap_or(block).min(block);
                parts(range, unit).try_for_each(|part| {
                    let inside = (part.start() - *offset) as usize..(part.end() - *offset) as usize;
                    self.overlay(&data[inside], part, *persistence)
                })
            }
            Operation::WriteZeroes(range, zeroing) => {
                parts(*range, block).try_for_each(|part| self.inner.write_zeroes(part, *zeroing))
            }
            Operation::Discard(range) => {
                parts(*range, block).try_for_each(|part| self.inner.discard(part))
            }
            Operation::Assign(range) => {
                parts(*range, block).try_for_each(|part| self.inner.run(Operation::Assign(part)))
            }
        }
    }

    /// Writes a part that may begin or end inside a block.
    fn overlay(&self, data: &[u8], part: ByteRange, persistence: Persistence) -> Result<()> {
        let block = u64::from(self.inner.geometry().logical_block);
        let start = part.start() / block * block;
        let end = part.end().next_multiple_of(block);
        if (start, end) == (part.start(), part.end()) {
            return self.inner.write_at(data, start, persistence);
        }
        let mut blocks = vec![0; (end - start) as usize];
        self.inner.read_at(&mut blocks, start)?;
        blocks[(part.start() - start) as usize..][..data.len()].copy_from_slice(data);
        self.inner.write_at(&blocks, start, persistence)
    }

    /// Another place, in whole blocks; the same range where the device has no other.
    fn misdirect(&self, operation: &mut Operation<'_>, random: &mut Rng) -> Result<()> {
        let geometry = self.inner.geometry();
        let range = operation.range().expect("reads and writes have a range");
        let block = u64::from(geometry.logical_block);
        let places = (geometry.size - range.len()) / block;
        if places == 0 {
            return self.pass(operation);
        }
        let drawn = random.u64(..places) * block;
        let place = if drawn < range.start() {
            drawn
        } else {
            drawn + block
        };
        match operation {
            Operation::Read { offset, .. } | Operation::Write { offset, .. } => *offset = place,
            _ => unreachable!("only reads and writes are misdirected"),
        }
        let result = self.pass(operation);
        if let Operation::Read { offset, .. } | Operation::Write { offset, .. } = operation {
            *offset = range.start();
        }
        result
    }
}

fn activate(rules: Vec<FaultRule>) -> Arc<[ActiveRule]> {
    rules.into_iter().map(ActiveRule::new).collect()
}

fn reborrow<'s>(operation: &'s mut Operation<'_>) -> Operation<'s> {
    match operation {
        Operation::Read { offset, into } => Operation::Read {
            offset: *offset,
            into: into.iter_mut().map(|part| &mut **part).collect(),
        },
        Operation::Write {
            offset,
            from,
            persistence,
        } => Operation::Write {
            offset: *offset,
            from: from.iter().copied().collect(),
            persistence: *persistence,
        },
        Operation::Flush => Operation::Flush,
        Operation::Discard(range) => Operation::Discard(*range),
        Operation::WriteZeroes(range, zeroing) => Operation::WriteZeroes(*range, *zeroing),
        Operation::Assign(range) => Operation::Assign(*range),
    }
}

fn flip(into: &mut [&mut [u8]], bits: u32, random: &mut Rng) {
    let length: usize = into.iter().map(|part| part.len()).sum();
    for _ in 0..bits {
        let mut at = random.usize(..length);
        for part in into.iter_mut() {
            if at < part.len() {
                part[at] ^= 1 << random.u8(..8);
                break;
            }
            at -= part.len();
        }
    }
}

impl<D: Device> Device for FaultyDevice<D> {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        let rules = self.rules();
        let geometry = self.inner.geometry();
        let mut delay = Duration::ZERO;
        let strikes: Vec<Option<Strike>> = requests
            .iter()
            .map(|request| {
                // Rules do not apply to requests that the device refuses, nor to empty ones.
                let length = request.operation.start_and_length();
                let is_nothing = length.is_some_and(|(_, length)| length == 0);
                if is_nothing || geometry.admit(&request.operation).is_err() {
                    return None;
                }
                let (strike, late) = self.judge(&rules, &request.operation);
                // Requests of a batch are late together.
                delay = delay.max(late);
                strike
            })
            .collect();
        self.wait(delay);
        if strikes.iter().all(Option::is_none) {
            return self.inner.submit(requests);
        }
        let (mut clean, mut struck) = (Vec::new(), Vec::new());
        for (request, strike) in requests.iter_mut().zip(strikes) {
            match strike {
                None => clean.push(request),
                Some(strike) => struck.push((request, strike)),
            }
        }
        let mut passed: Vec<Request<'_>> = clean
            .iter_mut()
            .map(|request| Request::new(reborrow(&mut request.operation)))
            .collect();
        self.inner.submit(&mut passed);
        let results: Vec<Result<()>> = passed.into_iter().map(Request::into_result).collect();
        for (request, result) in clean.into_iter().zip(results) {
            request.complete(result);
        }
        for (request, strike) in struck {
            let result = self.execute(&mut request.operation, strike);
            request.complete(result);
        }
    }

    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()> {
        self.inner.status(range, visit)
    }

    fn extents(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        self.inner.extents(range, visit)
    }

    fn visit_layers(
        &self,
        at: LayerRange,
        visit: &mut LayerVisitor<'_>,
    ) -> Result<ControlFlow<()>> {
        self.inner.visit_layers(at, visit)
    }
}

//! A disk in memory with a volatile cache, whose power can be cut.
//!
//! Changes are recorded and applied under one lock, so that the log has them in the order in which
//! they took effect. The completion of a batch is recorded when the batch returns, in a second
//! step: only from then on could the caller have relied on it, and a flush that another thread
//! submits in between does not cover it. Reads take no lock.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use extant_space::{ByteRange, Error, ErrorKind, Extent, LayerRange, LayerVisitor, Result};
use parking_lot::{Mutex, MutexGuard};

use super::cache::VolatileCache;
use super::change::Change;
use super::crash::{CrashState, StateSpace};
use super::log::{Event, WriteLog};
use crate::split::submit_within;
use crate::{
    Device, Features, Geometry, MemoryDevice, Operation, Persistence, RangeStatus, Request,
};

/// Whether writes wait in a cache for a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheMode {
    /// Changes that were not flushed may be lost.
    Volatile,
    /// Completed changes are durable, and a flush does nothing.
    WriteThrough,
}

/// Volatile changes that survive a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survivors {
    /// A selection by the seed.
    Seeded(u64),
    /// Everything.
    All,
    /// Nothing.
    None,
}

/// A device that records its requests and can lose its power.
///
/// See the [module](crate::simulation) for the state after a power cut. The log holds all data
/// written since the device was made, [`restart`](Self::restart)ed or [`settle`](Self::settle)d.
pub struct CrashDevice {
    live: MemoryDevice,
    geometry: Geometry,
    mode: CacheMode,
    powered: AtomicBool,
    recorder: Mutex<Recorder>,
}

struct Recorder {
    log: WriteLog,
    cache: VolatileCache,
    batches: u64,
    /// Power cuts so far: a batch that began before one does not complete after it.
    cuts: u64,
    /// Changes that are still done before the power fails.
    changes_left: Option<u64>,
}

/// A batch on its way.
struct Ticket {
    batch: u64,
    cuts: u64,
    is_recorded: bool,
}

impl CrashDevice {
    /// A device with a volatile cache and the content of `base`, all of it durable.
    pub fn new(base: MemoryDevice) -> Self {
        Self::with_cache(base, CacheMode::Volatile)
    }

    /// A device with the content of `base`, all of it durable.
    pub fn with_cache(base: MemoryDevice, mode: CacheMode) -> Self {
        let mut geometry = base.geometry();
        if mode == CacheMode::Volatile {
            geometry.features |= Features::VOLATILE_CACHE;
        }
        let recorder = Mutex::new(Recorder::new(&base));
        Self {
            live: base,
            geometry,
            mode,
            powered: AtomicBool::new(true),
            recorder,
        }
    }

    /// Puts a name into the log: completions until now are certain.
    pub fn mark(&self, name: impl AsRef<str>) {
        self.recorder().push(Event::Mark(name.as_ref().into()));
    }

    /// Cuts the power now. Every request fails with `Io` until [`restart`](Self::restart).
    pub fn power_cut(&self) {
        let mut recorder = self.recorder();
        self.cut(&mut recorder);
    }

    /// Cuts the power when `changes` more changes (writes, zeroes, discards, assigns) are done: the
    /// next one is caught on its way, and may survive in whole, in part or not at all.
    pub fn power_cut_after(&self, changes: u64) {
        self.recorder().changes_left = Some(changes);
    }

    /// Whether requests are served.
    pub fn is_powered(&self) -> bool {
        self.powered.load(Ordering::Acquire)
    }

    /// Turns the power on again, cutting it first if it was on. The surviving data is durable now,
    /// and the log starts again from there; take the old one before.
    pub fn restart(&self, survivors: Survivors) -> CrashState {
        let mut recorder = self.recorder();
        self.cut(&mut recorder);
        let (seed, index) = match survivors {
            Survivors::None => (0, 0),
            Survivors::All => (0, 1),
            Survivors::Seeded(seed) => (seed, 2),
        };
        let mark = recorder.log.last_mark();
        let space = StateSpace::samples(&recorder.cache, recorder.log.len(), seed);
        let state = space.state(&recorder.cache, index, mark);
        self.live.restore(&state.image);
        let cuts = recorder.cuts;
        *recorder = Recorder::new(&self.live);
        recorder.cuts = cuts;
        self.powered.store(true, Ordering::Release);
        state
    }

    /// Makes everything done so far durable and discards its history: the log starts again from
    /// here.
    ///
    /// # Panics
    /// When requests are in flight.
    pub fn settle(&self) {
        let mut recorder = self.recorder();
        assert!(recorder.cache.is_idle(), "requests are in flight");
        let (cuts, changes_left) = (recorder.cuts, recorder.changes_left);
        *recorder = Recorder::new(&self.live);
        (recorder.cuts, recorder.changes_left) = (cuts, changes_left);
    }

    /// Events so far; the data is shared, not copied.
    pub fn log(&self) -> WriteLog {
        self.recorder().log.clone()
    }

    /// All events.
    pub fn into_log(self) -> WriteLog {
        let recorder = self.recorder.into_inner();
        recorder.log
    }

    /// A copy of the present content of the device.
    pub fn snapshot(&self) -> MemoryDevice {
        // Under the lock: no change that the log does not have.
        let _recorder = self.recorder();
        self.live.snapshot()
    }

    fn cut(&self, recorder: &mut Recorder) {
        self.powered.store(false, Ordering::Release);
        recorder.changes_left = None;
        recorder.cuts += 1;
    }

    fn recorder(&self) -> MutexGuard<'_, Recorder> {
        self.recorder.lock()
    }

    /// Does and records all changes, and records flushes.
    fn begin(&self, requests: &mut [Request<'_>]) -> Ticket {
        let mut recorder = self.recorder();
        recorder.batches += 1;
        let mut ticket = Ticket {
            batch: recorder.batches,
            cuts: recorder.cuts,
            is_recorded: false,
        };
        for request in requests {
            let result = match Change::of(&request.operation) {
                _ if !self.is_powered() => Err(no_power()),
                Some((change, persistence)) => {
                    self.change(&mut recorder, &mut ticket, change, persistence)
                }
                None if matches!(request.operation, Operation::Flush) => {
                    ticket.is_recorded = true;
                    let batch = ticket.batch;
                    recorder.push(Event::Flush { batch });
                    Ok(())
                }
                None => continue,
            };
            request.complete(result);
        }
        ticket
    }

    fn change(
        &self,
        recorder: &mut Recorder,
        ticket: &mut Ticket,
        change: Change,
        persistence: Persistence,
    ) -> Result<()> {
        // With a limit a change may fail in the middle, and is then undone: the log has whole
        // changes only.
        let before = self.live.options().capacity.map(|_| self.live.snapshot());
        if let Err(error) = change.apply(change.range(), &self.live) {
            self.live
                .restore(&before.expect("only a device with a limit has no space"));
            return Err(error);
        }
        ticket.is_recorded = true;
        recorder.push(Event::Change {
            batch: ticket.batch,
            change,
            persistence: match self.mode {
                CacheMode::Volatile => persistence,
                CacheMode::WriteThrough => Persistence::Fua,
            },
        });
        match &mut recorder.changes_left {
            Some(0) => {
                self.cut(recorder);
                Err(no_power())
            }
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// The caller is about to be notified that the batch is done, unless the power failed
    /// meanwhile.
    fn complete(&self, ticket: &Ticket, requests: &mut [Request<'_>]) {
        let mut recorder = self.recorder();
        if recorder.cuts == ticket.cuts {
            if ticket.is_recorded {
                let batch = ticket.batch;
                recorder.push(Event::Completed { batch });
            }
            return;
        }
        for request in requests.iter_mut().filter(|request| !is_read(request)) {
            request.complete(Err(no_power()));
        }
    }
}

fn is_read(request: &Request<'_>) -> bool {
    matches!(request.operation, Operation::Read { .. })
}

fn no_power() -> Error {
    Error::new(ErrorKind::Io).detail("the power is off")
}

impl Recorder {
    fn new(base: &MemoryDevice) -> Self {
        Self {
            log: WriteLog::new(base.snapshot_unlimited()),
            cache: VolatileCache::new(base.snapshot_unlimited()),
            batches: 0,
            cuts: 0,
            changes_left: None,
        }
    }

    fn push(&mut self, event: Event) {
        self.cache.observe(self.log.len(), &event);
        self.log.push(event);
    }
}

impl Device for CrashDevice {
    fn geometry(&self) -> Geometry {
        self.geometry.clone()
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        submit_within(&self.geometry, requests, |requests| {
            let ticket = (!requests.iter().all(is_read)).then(|| self.begin(requests));
            for request in requests.iter_mut().filter(|request| is_read(request)) {
                let result = if self.is_powered() {
                    self.live.execute(&mut request.operation)
                } else {
                    Err(no_power())
                };
                request.complete(result);
            }
            if let Some(ticket) = ticket {
                self.complete(&ticket, requests);
            }
        });
    }

    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()> {
        if self.is_powered() {
            self.live.status(range, visit)
        } else {
            Err(no_power().during("status").in_range(range))
        }
    }

    fn extents(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        if self.is_powered() {
            self.live.extents(range, visit)
        } else {
            Err(no_power().during("status").in_range(range))
        }
    }

    fn visit_layers(
        &self,
        at: LayerRange,
        visit: &mut LayerVisitor<'_>,
    ) -> Result<ControlFlow<()>> {
        self.live.visit_layers(at, visit)
    }
}

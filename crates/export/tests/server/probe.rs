//! A device in memory that notes what it is asked for, fails on demand, and holds requests until it is let go.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};

use extant_blockdev::{Device, Geometry, MemoryDevice, Operation, RangeStatus, Request};
use extant_space::{ByteRange, Error, ErrorKind, Result};

pub struct Probe {
    inner: MemoryDevice,
    size: AtomicU64,
    seen: Mutex<Vec<String>>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Operations of this name wait.
    held: Option<&'static str>,
    waiting: usize,
    /// Operations that touch this byte fail.
    failure: Option<(u64, ErrorKind)>,
    panics: bool,
}

impl Probe {
    pub fn new(size: u64) -> Self {
        Self {
            inner: MemoryDevice::new(size),
            size: AtomicU64::new(size),
            seen: Mutex::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// What was asked for since the last time, reads aside.
    pub fn take_seen(&self) -> Vec<String> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }

    pub fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Relaxed);
    }

    /// Operations of this name wait until [`release`](Self::release).
    pub fn hold(&self, name: &'static str) {
        self.state.lock().unwrap().held = Some(name);
    }

    pub fn release(&self) {
        self.state.lock().unwrap().held = None;
        self.changed.notify_all();
    }

    pub fn wait_for_held(&self) {
        let state = self.state.lock().unwrap();
        drop(
            self.changed
                .wait_while(state, |state| state.waiting == 0)
                .unwrap(),
        );
    }

    pub fn fail_at(&self, byte: u64, kind: ErrorKind) {
        self.state.lock().unwrap().failure = Some((byte, kind));
    }

    pub fn panic_next(&self) {
        self.state.lock().unwrap().panics = true;
    }

    fn judge(&self, operation: &Operation<'_>) -> Result<()> {
        if !matches!(operation, Operation::Read { .. }) {
            let seen = match operation {
                Operation::Write { persistence, .. } => format!("write {persistence:?}"),
                Operation::WriteZeroes(_, zeroing) => format!(
                    "zeroes {:?} {:?} {:?}",
                    zeroing.unmap, zeroing.speed, zeroing.persistence
                ),
                other => other.name().to_owned(),
            };
            self.seen.lock().unwrap().push(seen);
        }
        let mut state = self.state.lock().unwrap();
        if std::mem::take(&mut state.panics) {
            // Others go on with the state.
            drop(state);
            panic!("as the test wants");
        }
        while state.held == Some(operation.name()) {
            state.waiting += 1;
            self.changed.notify_all();
            state = self.changed.wait(state).unwrap();
            state.waiting -= 1;
        }
        match (state.failure, operation.range()) {
            (Some((byte, kind)), Some(range)) if range.start() <= byte && byte < range.end() => {
                let place = ByteRange::new(byte, byte + 1);
                Err(Error::new(kind).at("/secret/path").in_range(place))
            }
            (Some((u64::MAX, kind)), _) => Err(Error::new(kind)),
            _ => Ok(()),
        }
    }
}

impl Device for Probe {
    fn geometry(&self) -> Geometry {
        Geometry {
            size: self.size.load(Ordering::Relaxed),
            ..self.inner.geometry()
        }
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        for request in requests.iter_mut() {
            match self.judge(&request.operation) {
                Ok(()) => self.inner.submit(std::slice::from_mut(request)),
                Err(error) => request.complete(Err(error)),
            }
        }
    }

    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()> {
        self.inner.status(range, visit)
    }
}

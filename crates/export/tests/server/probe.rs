//! A device in memory that records its requests, fails on demand, and holds requests until the test
//! releases them.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::Duration;

use extant_blockdev::{
    Device, Geometry, MemoryDevice, Operation, RangeStatus, Request, Transfer, TransferStream,
};
use extant_space::{ByteRange, Error, ErrorKind, Result};

pub struct Probe {
    inner: MemoryDevice,
    takes: Takes,
    /// Transfers of streams so far.
    streamed: AtomicUsize,
    size: AtomicU64,
    seen: Mutex<Vec<String>>,
    state: Mutex<State>,
    changed: Condvar,
}

/// How the device can be asked for reads and writes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    Batches,
    /// Streams as well. Of transfers that arrived together the last ends first.
    Streams,
    /// Streams as well, whose transfers end as they are taken.
    StreamsAtOnce,
    /// Streams of this kind that the device ends after a few transfers.
    ShortStreams,
}

pub const ALL: [Takes; 4] = [
    Takes::Batches,
    Takes::Streams,
    Takes::StreamsAtOnce,
    Takes::ShortStreams,
];
/// Transfers of a short one.
const SHORT_STREAM_TRANSFERS: usize = 3;

#[derive(Default)]
struct State {
    /// Operations of this name wait.
    held: Option<&'static str>,
    /// Transfers of streams that begin here stay in flight.
    kept: Option<u64>,
    waiting: usize,
    /// Operations that touch this byte fail.
    failure: Option<(u64, ErrorKind)>,
    panics: bool,
}

impl Probe {
    pub fn new(size: u64, takes: Takes) -> Self {
        Self {
            inner: MemoryDevice::new(size),
            takes,
            streamed: AtomicUsize::new(0),
            size: AtomicU64::new(size),
            seen: Mutex::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Requests since the last call, without reads.
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

    /// Transfers of streams that begin at `offset` stay in flight until [`release`](Self::release).
    pub fn hold_transfers_at(&self, offset: u64) {
        self.state.lock().unwrap().kept = Some(offset);
    }

    /// Number of reads and writes in streams.
    pub fn streamed(&self) -> usize {
        self.streamed.load(Ordering::Relaxed)
    }

    pub fn release(&self) {
        let mut state = self.state.lock().unwrap();
        state.held = None;
        state.kept = None;
        drop(state);
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

    fn check_fault(&self, operation: &Operation<'_>) -> Result<()> {
        if !matches!(operation, Operation::Read { .. }) {
            let seen = match operation {
                Operation::Write { persistence, .. } => format!("write {persistence:?}"),
                Operation::WriteZeroes(_, zeroing) => format!(
                    "zeroes {:?} {:?} {:?}",
                    zeroing.space, zeroing.speed, zeroing.persistence
                ),
                other => other.name().to_owned(),
            };
            self.seen.lock().unwrap().push(seen);
        }
        let mut state = self.state.lock().unwrap();
        if std::mem::take(&mut state.panics) {
            // The panic must not poison the state.
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
            match self.check_fault(&request.operation) {
                Ok(()) => self.inner.submit(std::slice::from_mut(request)),
                Err(error) => request.complete(Err(error)),
            }
        }
    }

    fn run_stream(&self, stream: &mut dyn TransferStream) -> bool {
        if self.takes == Takes::Batches {
            return false;
        }
        let end_one = |stream: &mut dyn TransferStream, mut transfer: Transfer| {
            self.streamed.fetch_add(1, Ordering::Relaxed);
            let permitted = self.check_fault(&transfer.operation());
            let result = permitted.and_then(|()| self.inner.run(transfer.operation()));
            stream.ended(transfer, result);
        };
        let is_kept =
            |transfer: &Transfer| Some(transfer.offset) == self.state.lock().unwrap().kept;
        let mut left = match self.takes {
            Takes::ShortStreams => SHORT_STREAM_TRANSFERS,
            _ => usize::MAX,
        };
        let mut in_flight = Vec::new();
        loop {
            while left > 0
                && let Some(transfer) = stream.next()
            {
                left -= 1;
                if self.takes != Takes::Streams && !is_kept(&transfer) {
                    end_one(stream, transfer)
                } else {
                    in_flight.push(transfer)
                }
            }
            if in_flight.is_empty() {
                return true;
            }
            let (stay, mut end): (Vec<_>, Vec<_>) = in_flight.into_iter().partition(is_kept);
            in_flight = stay;
            if end.is_empty() {
                // For the client, or the test.
                thread::sleep(Duration::from_micros(100));
            }
            while let Some(transfer) = end.pop() {
                end_one(stream, transfer);
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

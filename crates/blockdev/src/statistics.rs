//! Counters and histograms of the requests to a device.
//!
//! Model: counters are sharded, a thread uses its own shard, and reading adds them up; so an
//! operation writes no cache line that other threads write (if there are not more threads than
//! shards) and the wrapper costs two clock reads and a few uncontended additions.
//!
//! The latency of a request is the time of its batch, since a batch returns as a whole; that of a
//! transfer of a stream is its own.

mod histogram;
mod snapshot;
mod stream;

use std::cell::Cell;
use std::fs::File;
use std::ops::ControlFlow;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use crossbeam_utils::CachePadded;
use extant_space::{ByteRange, Extent, LayerRange, LayerVisitor, Result};

use crate::{Device, Geometry, OperationKind, RangeStatus, Request, TransferStream};
pub use histogram::Histogram;
use histogram::Recorder;
pub use snapshot::{OperationStatistics, StatisticsSnapshot};
use stream::Counted;

/// Shards are created on a thread's first access; more threads than this share.
const SHARDS: usize = 64;

/// A device that counts the requests to the device below.
pub struct Statistics<D> {
    inner: D,
    shards: Box<[CachePadded<OnceLock<Box<Shard>>>]>,
}

#[derive(Default)]
struct Shard {
    kinds: [Counters; OperationKind::ALL.len()],
}

/// The counters of one kind of operation.
#[derive(Default)]
struct Counters {
    errors: AtomicU64,
    bytes: AtomicU64,
    latency: Recorder,
    size: Recorder,
}

impl<D: Device> Statistics<D> {
    /// Counts, from zero, the requests to `inner`.
    pub fn new(inner: D) -> Self {
        Self {
            inner,
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
        }
    }

    /// The device below.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Counts so far. Requests that complete meanwhile may be seen in part.
    pub fn snapshot(&self) -> StatisticsSnapshot {
        let mut sum = StatisticsSnapshot::default();
        for shard in self.shards.iter().filter_map(|shard| shard.get()) {
            for (counters, sum) in shard.kinds.iter().zip(&mut sum.operations) {
                sum.errors += counters.errors.load(Ordering::Relaxed);
                sum.bytes += counters.bytes.load(Ordering::Relaxed);
                counters.latency.add_to(&mut sum.latency);
                counters.size.add_to(&mut sum.size);
            }
        }
        sum
    }

    fn shard(&self) -> &Shard {
        self.shards[thread_number() % SHARDS].get_or_init(Box::default)
    }
}

impl<D: Device> Device for Statistics<D> {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn refresh(&self) -> Result<u64> {
        self.inner.refresh()
    }

    fn grow(&self, size: u64) -> Result<()> {
        self.inner.grow(size)
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        let started = Instant::now();
        self.inner.submit(requests);
        let nanoseconds = nanoseconds_between(started, Instant::now());
        let shard = self.shard();
        for request in requests {
            let operation = &request.operation;
            let bytes = operation.start_and_length().map(|(_, length)| length);
            let failed = matches!(request.result(), Some(Err(_)));
            shard.count(OperationKind::of(operation), bytes, nanoseconds, failed);
        }
    }

    fn run_stream(&self, stream: &mut dyn TransferStream) -> bool {
        let mut counted = Counted::new(self.shard(), stream);
        self.inner.run_stream(&mut counted)
    }

    fn shared_memory_alignment(&self) -> Option<usize> {
        self.inner.shared_memory_alignment()
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

    fn open_store(&self) -> Result<Option<File>> {
        self.inner.open_store()
    }
}

impl Shard {
    fn count(&self, kind: OperationKind, bytes: Option<u64>, nanoseconds: u64, failed: bool) {
        let counters = &self.kinds[kind as usize];
        counters.latency.record(nanoseconds);
        match bytes {
            _ if failed => {
                counters.errors.fetch_add(1, Ordering::Relaxed);
            }
            Some(bytes) => {
                counters.bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            None => {}
        }
        if let Some(bytes) = bytes {
            counters.size.record(bytes);
        }
    }
}

fn nanoseconds_between(start: Instant, end: Instant) -> u64 {
    u64::try_from((end - start).as_nanos()).unwrap_or(u64::MAX)
}

/// The number of this thread, counted from 0 in the order of their first operation.
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    NUMBER.with(|number| {
        if number.get() == usize::MAX {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

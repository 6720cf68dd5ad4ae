//! A device held to a rate.
//!
//! Model: each limit is a bucket of tokens, kept as the time at which it would be empty of debt
//! (the virtual scheduling of ATM's generic cell rate algorithm). A batch takes its tokens in one
//! atomic step and waits for its time outside of any lock, so batches start in the order of their
//! arrival, and one that is larger than the bucket starts at once and delays the following ones.
//!
//! Bytes are charged for reads and writes, operations for everything but flushes, which are free:
//! they carry no data of their own, and delaying one delays all its waiters.

use std::fs::File;
use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

use extant_space::{ByteRange, Extent, LayerRange, LayerVisitor, Result, TokenBucket};

use crate::{Device, Geometry, Operation, RangeStatus, Request};

/// The limits of a throttled device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThrottleOptions {
    /// Bytes read and written in a second.
    pub bytes_per_second: Option<NonZeroU64>,
    /// Requests in a second, flushes not counted.
    pub operations_per_second: Option<NonZeroU64>,
    /// Tokens of so much time can be saved up and then used at once.
    pub burst: Duration,
    /// Additional delay of every batch.
    pub latency: Duration,
}

impl Default for ThrottleOptions {
    /// No limit; bursts of a tenth of a second.
    fn default() -> Self {
        Self {
            bytes_per_second: None,
            operations_per_second: None,
            burst: Duration::from_millis(100),
            latency: Duration::ZERO,
        }
    }
}

/// Tokens that arrive at a rate.
struct Limit {
    rate: NonZeroU64,
    bucket: TokenBucket,
}

/// A device that passes requests on at a limited rate.
pub struct Throttle<D> {
    inner: D,
    bytes: Option<Limit>,
    operations: Option<Limit>,
    latency: Duration,
    started: Instant,
}

impl<D: Device> Throttle<D> {
    /// Limits the requests to `inner`. The buckets are full at first.
    pub fn new(inner: D, options: &ThrottleOptions) -> Self {
        let bucket = |rate: Option<NonZeroU64>| {
            rate.map(|rate| Limit {
                rate,
                bucket: TokenBucket::full(options.burst),
            })
        };
        Self {
            inner,
            bytes: bucket(options.bytes_per_second),
            operations: bucket(options.operations_per_second),
            latency: options.latency,
            started: Instant::now(),
        }
    }

    /// The device below.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Takes the tokens of a batch that arrives at `now`, counted from the start; returns how long
    /// it waits.
    fn charge(&self, requests: &[Request<'_>], now: Duration) -> Duration {
        let (mut bytes, mut operations) = (0, 0);
        for request in requests {
            operations += u64::from(!matches!(request.operation, Operation::Flush));
            if let Operation::Read { .. } | Operation::Write { .. } = request.operation {
                let length = request.operation.start_and_length();
                bytes += length.map_or(0, |(_, length)| length);
            }
        }
        let wait = |limit: &Option<Limit>, tokens| match limit {
            Some(limit) => limit.bucket.take(tokens, limit.rate, now),
            None => Duration::ZERO,
        };
        let wait = wait(&self.bytes, bytes).max(wait(&self.operations, operations));
        wait + self.latency
    }
}

impl<D: Device> Device for Throttle<D> {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn refresh(&self) -> Result<u64> {
        self.inner.refresh()
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        let wait = self.charge(requests, self.started.elapsed());
        if !wait.is_zero() {
            thread::sleep(wait);
        }
        self.inner.submit(requests);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryDevice, Persistence};

    fn throttled(bytes: u64, operations: u64) -> Throttle<MemoryDevice> {
        let options = ThrottleOptions {
            bytes_per_second: NonZeroU64::new(bytes),
            operations_per_second: NonZeroU64::new(operations),
            burst: Duration::ZERO,
            latency: Duration::from_secs(1),
        };
        Throttle::new(MemoryDevice::new(1 << 20), &options)
    }

    #[test]
    fn batch_is_charged_for_all_its_bytes_and_waits_for_the_slower_limit() {
        let device = throttled(1024, 4);
        let (mut into, from) = ([0; 512], [0; 1536]);
        let mut batch = [
            Request::read(0, &mut into),
            Request::write(512, &from, Persistence::Cached),
            Request::new(Operation::Assign(ByteRange::new(0, 1 << 20))),
            Request::new(Operation::Flush),
        ];
        let second = Duration::from_secs(1);
        // Latency alone; then 2048 bytes at 1024 a second, not 3 operations at 4 a second.
        assert_eq!(device.charge(&batch, Duration::ZERO), second);
        assert_eq!(device.charge(&batch, Duration::ZERO), 3 * second);
        let assigns = &mut batch[2..3];
        let device = throttled(1024, 4);
        assert_eq!(device.charge(assigns, Duration::ZERO), second);
        assert_eq!(device.charge(assigns, Duration::ZERO), second + second / 4);
    }

    #[test]
    fn flush_takes_no_tokens() {
        let device = throttled(1, 1);
        let flush = [Request::new(Operation::Flush)];
        for _ in 0..1000 {
            assert_eq!(
                device.charge(&flush, Duration::ZERO),
                Duration::from_secs(1)
            );
        }
    }
}

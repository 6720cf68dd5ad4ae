//! Requests and calls that a cancel leaves alone.
//!
//! A request has memory of its own, and a call that waits runs on a thread of its own, so that the
//! caller can return before the cluster answers. The image stays open until they have ended.

use std::mem::ManuallyDrop;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use extant_space::thread::spawn;
use extant_space::{ByteRange, CancelToken, Result};

use crate::image::Image;
use crate::sys::{Aio, Flights, Memory};

/// Interval between two checks for a cancel.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Most bytes of one request without data. librbd takes less than 1 GiB on some paths.
pub(crate) const RANGE_BYTES_MAX: u64 = 512 << 20;
/// Interval at which a thread without other work wakes up.
const WAIT: Duration = Duration::from_secs(1);

/// Runs one request.
pub(crate) fn request(
    image: &Arc<Image>,
    aio: Aio,
    memory: Memory,
    cancel: &CancelToken,
) -> Result<Memory> {
    cancel.check()?;
    let flights = Flights::new();
    flights.start(image.handle(), 0, aio, memory);
    loop {
        flights.wait(CHECK_INTERVAL);
        if let Some(ended) = flights.take().pop() {
            let memory = ended.memory;
            return ended
                .result
                .map(|()| memory)
                .map_err(|error| image.explain(error));
        }
        if let Err(cancelled) = cancel.check() {
            leave(image, flights);
            return Err(cancelled);
        }
    }
}

/// Runs a call that waits for the cluster.
pub(crate) fn call<T: Send + 'static>(
    image: &Arc<Image>,
    cancel: &CancelToken,
    call: impl FnOnce(&Image) -> Result<T> + Send + 'static,
) -> Result<T> {
    let (ended, result) = mpsc::channel();
    let image = Arc::clone(image);
    spawn("rbd call", move || {
        let result = call(&image);
        // Before the result: the caller may close the image at once.
        drop(image);
        let _ = ended.send(result);
    })?;
    loop {
        cancel.check()?;
        match result.recv_timeout(CHECK_INTERVAL) {
            Ok(result) => return result,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => panic!("the call has panicked"),
        }
    }
}

/// Leaves requests alone.
pub(crate) fn leave(image: &Arc<Image>, flights: Arc<Flights>) {
    if flights.in_flight() == 0 {
        return;
    }
    // Stays open where no thread can be started: its close would wait for the cluster.
    let image = ManuallyDrop::new(Arc::clone(image));
    let _ = spawn("rbd leave", move || {
        while flights.in_flight() > 0 {
            flights.wait(WAIT);
            drop(flights.take());
        }
        drop(ManuallyDrop::into_inner(image));
    });
}

impl Image {
    /// Writes all of `bytes` at `offset`; durable after the next flush.
    ///
    /// # Errors
    /// `Cancelled`, after which the write may still happen; those of the cluster.
    pub fn write(self: &Arc<Self>, bytes: &[u8], offset: u64, cancel: &CancelToken) -> Result<()> {
        let memory = Memory::Bytes(bytes.to_vec());
        request(self, Aio::Write { offset }, memory, cancel)
            .map(drop)
            .map_err(|error| error.during("write").at(self.place()))
    }

    /// Makes durable what was written.
    ///
    /// # Errors
    /// `Cancelled`; those of the cluster.
    pub fn flush(self: &Arc<Self>, cancel: &CancelToken) -> Result<()> {
        request(self, Aio::Flush, Memory::None, cancel)
            .map(drop)
            .map_err(|error| error.during("flush").at(self.place()))
    }

    /// Reads `length` bytes at `offset`; fewer at the end of the image.
    ///
    /// # Errors
    /// `Cancelled`; those of the cluster.
    pub fn read(
        self: &Arc<Self>,
        offset: u64,
        length: usize,
        cancel: &CancelToken,
    ) -> Result<Vec<u8>> {
        let length = length.min(self.size()?.saturating_sub(offset) as usize);
        if length == 0 {
            return Ok(Vec::new());
        }
        let memory = Memory::Bytes(vec![0; length]);
        let read = request(self, Aio::Read { offset }, memory, cancel)
            .map_err(|error| error.during("read").at(self.place()))?;
        match read {
            Memory::Bytes(bytes) => Ok(bytes),
            _ => unreachable!("the request's own memory"),
        }
    }

    /// The range reads as zeros, and whole objects in it have no space.
    ///
    /// # Errors
    /// `Cancelled`, after which it may still happen; those of the cluster.
    pub fn punch_hole(self: &Arc<Self>, range: ByteRange, cancel: &CancelToken) -> Result<()> {
        for range in range.chunks(RANGE_BYTES_MAX) {
            let zeroes = Aio::Zeroes {
                range,
                thick: false,
            };
            request(self, zeroes, Memory::None, cancel)
                .map_err(|error| error.during("punch hole").at(self.place()))?;
        }
        Ok(())
    }
}

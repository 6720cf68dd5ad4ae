//! Requests and calls that a cancel leaves alone.
//!
//! A request has memory of its own, and a call that waits runs on a thread of its own, so that the
//! caller can return before the cluster answers. The image stays open until they have ended.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use extant_space::{CancelToken, Result};

use crate::image::Image;
use crate::sys::{Aio, Flights, Memory};

/// Interval between two checks for a cancel.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Interval at which a thread without other work wakes up.
const WAIT: Duration = Duration::from_secs(1);

/// Runs one request.
pub(crate) fn request(
    image: &Arc<Image>,
    aio: Aio,
    memory: Memory,
    cancel: &CancelToken,
) -> Result<()> {
    cancel.check()?;
    let flights = Flights::new();
    flights.start(image.handle(), 0, aio, memory);
    loop {
        flights.wait(CHECK_INTERVAL);
        if let Some(ended) = flights.take().pop() {
            return ended.result.map_err(|error| image.explain(error));
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
    thread::spawn(move || {
        let result = call(&image);
        // Before the result: the caller may close the image at once.
        drop(image);
        let _ = ended.send(result);
    });
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
    let image = Arc::clone(image);
    thread::spawn(move || {
        while flights.in_flight() > 0 {
            flights.wait(WAIT);
            drop(flights.take());
        }
        drop(image);
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
            .map_err(|error| error.during("write").at(self.place()))
    }

    /// Makes durable what was written.
    ///
    /// # Errors
    /// `Cancelled`; those of the cluster.
    pub fn flush(self: &Arc<Self>, cancel: &CancelToken) -> Result<()> {
        request(self, Aio::Flush, Memory::None, cancel)
            .map_err(|error| error.during("flush").at(self.place()))
    }
}

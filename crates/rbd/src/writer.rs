//! Writes of a copy: many are in flight, each with memory of its own.
//!
//! The error of a write comes with a later call, at the latest with
//! [`finish`](ImageWriter::finish).
//! Writes that are in flight together have no order, so they must not overlap. A cancel does not
//! wait for the cluster: what is in flight is left alone.

use std::sync::Arc;

use extant_space::{CancelToken, Error, Result};

use crate::cancellable::{self, CHECK_INTERVAL};
use crate::image::Image;
use crate::sys::{Aio, Flights, Memory};

/// Bytes in flight.
const IN_FLIGHT_BYTES: u64 = 64 << 20;

/// The writes of one copy.
pub struct ImageWriter {
    image: Arc<Image>,
    flights: Arc<Flights>,
    in_flight_bytes: u64,
    /// Memory of complete writes, for the next ones.
    spare: Vec<Vec<u8>>,
    failed: Option<Error>,
}

impl ImageWriter {
    /// A writer for an image that is [open for changes](crate::RbdAccess::ReadWrite).
    pub fn new(image: &Arc<Image>) -> Self {
        Self {
            image: Arc::clone(image),
            flights: Flights::new(),
            in_flight_bytes: 0,
            spare: Vec::new(),
            failed: None,
        }
    }

    /// Starts to write all of `bytes` at `offset`, and waits while too many are in flight.
    ///
    /// # Errors
    /// `Cancelled`; those of this and of earlier writes.
    pub fn write(&mut self, bytes: &[u8], offset: u64, cancel: &CancelToken) -> Result<()> {
        while self.in_flight_bytes >= IN_FLIGHT_BYTES {
            cancel.check()?;
            self.collect()?;
        }
        self.in_flight_bytes += bytes.len() as u64;
        // The tag is the number of bytes.
        let (tag, aio) = (bytes.len(), Aio::Write { offset });
        let mut own = self.spare.pop().unwrap_or_default();
        own.clear();
        own.extend_from_slice(bytes);
        self.flights
            .start(self.image.handle(), tag, aio, Memory::Bytes(own));
        Ok(())
    }

    /// Waits for all writes. They are durable after the next [flush](Image::flush).
    ///
    /// # Errors
    /// `Cancelled`; those of the writes.
    pub fn finish(&mut self, cancel: &CancelToken) -> Result<()> {
        while self.in_flight_bytes > 0 {
            cancel.check()?;
            self.collect()?;
        }
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn collect(&mut self) -> Result<()> {
        self.flights.wait(CHECK_INTERVAL);
        for ended in self.flights.take() {
            self.in_flight_bytes -= ended.tag as u64;
            if let Memory::Bytes(bytes) = ended.memory {
                self.spare.push(bytes);
            }
            if let Err(error) = ended.result {
                let error = self.image.explain(error.during("write"));
                self.failed.get_or_insert(error);
            }
        }
        self.failed.clone().map_or(Ok(()), Err)
    }
}

impl Drop for ImageWriter {
    fn drop(&mut self) {
        cancellable::leave(&self.image, Arc::clone(&self.flights));
    }
}

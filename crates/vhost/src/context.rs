//! A ring with its volume and observer: results of requests, and requests that move no data.

use std::sync::Arc;

use extant_blockdev::{Device, Operation, Request as DeviceRequest};
use extant_space::{Error, ErrorKind, Result};
use vm_memory::{Bytes, GuestAddressSpace};

use crate::events::{Event, Observer};
use crate::request::{Action, Broken, Request, Status};
use crate::ring::Ring;
use crate::volume::Volume;

/// A ring and what its requests need.
pub(crate) struct Context {
    pub ring: Ring,
    pub volume: Arc<Volume>,
    pub queue: usize,
    /// Every change is flushed before it is completed: the driver knows of no cache.
    pub is_write_through: bool,
    pub observer: Option<Observer>,
}

impl Context {
    /// Completes a request; one that cannot be completed breaks the ring.
    pub(crate) fn complete(&self, request: &Request, status: Status) {
        if let Err(reason) = self.ring.complete(request, status) {
            self.break_down(reason);
        }
    }

    /// Answers a request that needs no device.
    pub(crate) fn answer(&self, request: &Request) {
        let status = match request.action {
            Action::Refuse(status) => status,
            _ => match self.write_serial(request) {
                Some(()) => Status::Done,
                None => Status::Failed,
            },
        };
        self.complete(request, status);
    }

    /// The serial number, and zeros after it.
    fn write_serial(&self, request: &Request) -> Option<()> {
        let mut serial = self.volume.serial().to_vec();
        // Bounds what a guest can ask for.
        let length = usize::try_from(request.length)
            .ok()
            .filter(|&length| length <= 512)?;
        serial.resize(length, 0);
        let memory = self.ring.memory().memory();
        request.copy(0, length, |address, range| {
            memory.write_slice(&serial[range], address).ok()
        })
    }

    /// Runs a request that moves no data, and completes it.
    pub(crate) fn run_slow(&self, request: &Request) {
        let operations: Vec<_> = match &request.action {
            Action::Discard(ranges) => ranges
                .iter()
                .map(|&range| Operation::Discard(range))
                .collect(),
            Action::WriteZeroes(ranges) => ranges
                .iter()
                .map(|&(range, zeroing)| Operation::WriteZeroes(range, zeroing))
                .collect(),
            _ => vec![Operation::Flush],
        };
        let mut requests: Vec<_> = operations.into_iter().map(DeviceRequest::new).collect();
        self.volume.device().submit(&mut requests);
        let results = requests.into_iter().map(DeviceRequest::into_result);
        let mut result: Result<()> = results.collect();
        if self.is_write_through && request.action != Action::Flush {
            result = result.and_then(|()| self.volume.device().flush());
        }
        if let Err(error) = &result {
            self.report(error);
        }
        self.complete(request, status_of(&result));
    }

    pub(crate) fn report(&self, error: &Error) {
        let volume = self.volume.name();
        self.notify(&Event::Failed { volume, error });
    }

    pub(crate) fn break_down(&self, reason: Broken) {
        if self.ring.break_down() {
            self.notify(&Event::Broken {
                volume: self.volume.name(),
                queue: self.queue,
                reason,
            });
        }
    }

    fn notify(&self, event: &Event<'_>) {
        event.trace();
        if let Some(observer) = &self.observer {
            observer(event);
        }
    }
}

/// The kind of an error, as the guest learns it.
fn status_of(result: &Result<()>) -> Status {
    match result.as_ref().map_err(Error::kind) {
        Ok(()) => Status::Done,
        Err(ErrorKind::Unsupported) => Status::Unsupported,
        Err(_) => Status::Failed,
    }
}

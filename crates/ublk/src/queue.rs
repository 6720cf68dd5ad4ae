//! The thread of a queue: fetches requests, runs them on the device, returns their results.
//!
//! Two or more reads and writes at a time run as a stream of the device: each completes on its own,
//! and later ones start meanwhile. Everything else runs as a batch: a single request, because a
//! plain call has the lower latency, and flushes, discards, zeros and durable writes. A request of
//! such a kind ends the stream, when the transfers in flight have completed.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use extant_blockdev::{Device, DiscardPolicy, Request, Transfer, TransferStream};
use extant_space::{Error, Result};

use crate::protocol::Descriptor;
use crate::request;
use crate::sys::{CommandQueue, Fetched};

/// Called for each request that failed.
pub type FailureObserver = Arc<dyn Fn(&Error) + Send + Sync>;

/// Most requests of one batch.
const BATCH_MAX: usize = 64;

/// The state of a queue's thread.
pub(crate) struct QueueWorker {
    commands: CommandQueue,
    device: Arc<dyn Device>,
    discard: DiscardPolicy,
    on_failure: Option<FailureObserver>,
    /// Requests that have arrived and not been started.
    arrived: VecDeque<Fetched>,
}

impl QueueWorker {
    /// Fetches requests of a queue, whose thread this becomes.
    pub(crate) fn new(
        character_device: Arc<File>,
        (queue, depth, buffer_bytes): (u16, u16, usize),
        device: Arc<dyn Device>,
        discard: DiscardPolicy,
        on_failure: Option<FailureObserver>,
    ) -> Result<Self> {
        let commands = CommandQueue::new(character_device, queue, depth, buffer_bytes);
        Ok(Self {
            commands: commands.map_err(|error| Error::from(error).during("serve a queue"))?,
            device,
            discard,
            on_failure,
            arrived: VecDeque::new(),
        })
    }

    /// Serves requests until the disk is stopped.
    pub(crate) fn run(mut self) -> Result<()> {
        let failed = |error| Error::from(error).during("exchange requests with the ublk driver");
        loop {
            if self.arrived.is_empty() {
                if self.commands.is_finished() {
                    return Ok(());
                }
                self.commands.wait(&mut self.arrived).map_err(failed)?;
            }
            if self.arrived.len() > 1 && self.front_is_transfer() {
                self.run_stream().map_err(failed)?;
            }
            self.run_batch().map_err(failed)?;
        }
    }

    fn front_is_transfer(&self) -> bool {
        let front = self.arrived.front();
        front.is_some_and(|fetched| fetched.descriptor.transfer_kind().is_some())
    }

    /// Runs transfers until one of another kind is the next, or none is in flight.
    fn run_stream(&mut self) -> std::io::Result<()> {
        let device = Arc::clone(&self.device);
        let in_flight = Vec::new();
        let mut stream = Stream {
            worker: self,
            in_flight,
            failure: None,
        };
        device.run_stream(&mut stream);
        stream.failure.map_or(Ok(()), Err)
    }

    fn run_batch(&mut self) -> std::io::Result<()> {
        let count = self.arrived.len().min(BATCH_MAX);
        let mut batch: Vec<Fetched> = self.arrived.drain(..count).collect();
        let mut requests = Vec::with_capacity(count);
        let mut is_known = Vec::with_capacity(count);
        for fetched in &mut batch {
            let memory = fetched.buffer.as_mut_slice();
            let operation = fetched.descriptor.operation(memory, self.discard);
            is_known.push(operation.is_some());
            requests.extend(operation.map(Request::new));
        }
        if !requests.is_empty() {
            self.device.submit(&mut requests);
        }
        let results: Vec<_> = requests.into_iter().map(Request::into_result).collect();
        let mut results = results.into_iter();
        for (fetched, is_known) in batch.into_iter().zip(is_known) {
            let code = if is_known {
                let result = results.next().expect("a result for each request");
                self.code(&fetched.descriptor, &result)
            } else {
                request::refused()
            };
            self.commands.commit(fetched.tag, fetched.buffer, code)?;
        }
        Ok(())
    }

    fn code(&self, descriptor: &Descriptor, result: &Result<()>) -> i32 {
        if let (Err(error), Some(observer)) = (result, &self.on_failure) {
            observer(error);
        }
        descriptor.result(result)
    }
}

/// One run of a stream.
struct Stream<'w> {
    worker: &'w mut QueueWorker,
    in_flight: Vec<(u16, Descriptor)>,
    /// The commands cannot be exchanged; the thread ends.
    failure: Option<std::io::Error>,
}

impl TransferStream for Stream<'_> {
    fn next(&mut self) -> Option<Transfer> {
        let worker = &mut *self.worker;
        if self.failure.is_some() {
            return None;
        }
        if worker.arrived.is_empty() || !worker.front_is_transfer() {
            // It submits the results of transfers as well.
            if let Err(error) = worker.commands.poll(&mut worker.arrived) {
                self.failure = Some(error);
                return None;
            }
        }
        let kind = worker.arrived.front()?.descriptor.transfer_kind()?;
        let fetched = worker.arrived.pop_front()?;
        self.in_flight.push((fetched.tag, fetched.descriptor));
        let descriptor = fetched.descriptor;
        Some(descriptor.transfer(kind, fetched.tag, fetched.buffer))
    }

    fn ended(&mut self, transfer: Transfer, result: Result<()>) {
        let tag = transfer.tag as u16;
        let of_tag = |(in_flight, _): &(u16, Descriptor)| *in_flight == tag;
        let at = self.in_flight.iter().position(of_tag);
        let (_, descriptor) = self
            .in_flight
            .swap_remove(at.expect("a transfer in flight"));
        let code = self.worker.code(&descriptor, &result);
        let buffer = transfer.memory.into_own().expect("that of the request");
        let committed = self.worker.commands.commit(tag, buffer, code);
        if let Err(error) = committed {
            self.failure.get_or_insert(error);
        }
    }

    fn input(&self) -> Option<BorrowedFd<'_>> {
        Some(self.worker.commands.readable())
    }
}

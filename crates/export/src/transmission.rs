//! The transmission phase of one connection: requests in, replies out.
//!
//! Model: leader/followers over at most `WORKERS_MAX` threads (docs/internals/nbd.md). The leader
//! owns the receiver and drains the socket into one batch, which becomes one submission to the
//! device and one write of replies.
//! - Before the leader runs a slow batch, it promotes a follower, which receives the next batch.
//! - It runs a fast batch itself: waking a follower would take longer than the batch.
//! - A synchronous client (queue depth 1) is served by one thread that never promotes. The leader
//!   detects one by an empty socket before it sends a reply.
//! - For a pipelined client, small reads and writes run as a stream where the device supports
//!   streams (`pipeline.rs`).
//!
//! Flow control: a worker owns the memory of one batch and the slots of one stream. Requests that
//! are larger than a batch share one buffer of the connection. While all workers are busy, no
//! thread receives, and TCP or socket back-pressure stops the client.
//!
//! Lock order: receiver, large buffer, sender.

mod batch;
mod block_status;
mod command;
mod pipeline;
mod receiver;
mod replies;

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, Scope};
use std::time::Instant;

use extant_space::{Error, ErrorKind, Result, event};
use extant_sys::buffer::AlignedBuffer;
use parking_lot::{Mutex, MutexGuard};

use crate::handshake::Agreement;
use batch::Batch;
use command::{Class, Command};
use extant_nbd::stream::Stream;
use extant_nbd::wire::error::NbdError;
use pipeline::{Pipeline, Slots};
use receiver::{Received, Receiver};
use replies::Replies;

/// Worker threads of one connection.
const WORKERS_MAX: usize = 4;
/// The leader runs a batch that is expected to take less without promoting a follower: a wake-up
/// costs about as much.
const INLINE_NANOSECONDS_MAX: u64 = 20_000;

/// Parameters of one connection in the transmission phase.
pub(crate) struct Transmission<'a> {
    pub stream: &'a Stream,
    pub agreement: &'a Agreement,
    /// Bytes of the largest read or write.
    pub request_max: u32,
    /// Set on shutdown: further requests are refused.
    pub is_stopping: &'a AtomicBool,
    /// Receives the errors of requests that failed on the device.
    pub report: &'a (dyn Fn(&Error) + Sync),
}

/// Serves requests until the client disconnects.
///
/// # Errors
/// `InvalidArgument` when the client violates the protocol, and errors of the socket.
pub(crate) fn serve(transmission: &Transmission<'_>) -> Result<()> {
    let session = Session {
        transmission,
        receiver: Mutex::new(Receiver::new(transmission.agreement.style)),
        sender: Mutex::new(()),
        large: Mutex::new(None),
        workers: AtomicUsize::new(1),
        waiting: AtomicUsize::new(0),
        in_flight: AtomicUsize::new(0),
        batch_nanoseconds: AtomicU64::new(INLINE_NANOSECONDS_MAX),
        failure: Mutex::new(None),
    };
    thread::scope(|scope| session.run_worker(scope));
    let failure = session.failure.into_inner();
    match failure {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

impl Transmission<'_> {
    /// Adds the reply to `command` and reports an error to the observer. `data` is the command's.
    fn reply(&self, replies: &mut Replies, command: &Command, data: &[u8], result: Result<()>) {
        match result {
            Ok(()) => replies.done(command, data),
            Err(error) => {
                (self.report)(&error);
                replies.failed(command, NbdError::of(&error), &error);
            }
        }
    }
}

struct Session<'a> {
    transmission: &'a Transmission<'a>,
    receiver: Mutex<Receiver>,
    sender: Mutex<()>,
    /// For a request that is larger than the memory of a batch.
    large: Mutex<Option<AlignedBuffer>>,
    workers: AtomicUsize,
    /// Followers: workers that wait for the receiver.
    waiting: AtomicUsize,
    /// Batches and streams of workers that gave up the leadership.
    in_flight: AtomicUsize,
    /// Moving average of the duration of a transfer batch.
    batch_nanoseconds: AtomicU64,
    /// Why the connection ended, unless the client disconnected.
    failure: Mutex<Option<Error>>,
}

impl Session<'_> {
    fn run_worker<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        let _abort = AbortOnPanic(self);
        let mut batch = match Batch::new(&self.large) {
            Ok(batch) => batch,
            Err(source) => return self.fail(failed("get memory", source)),
        };
        let mut replies = Replies::default();
        let mut slots = Slots::default();
        let promote = || self.promote_follower(scope);
        let mut receiver = self.lead();
        loop {
            if !receiver.is_synchronous() {
                let memory = (&mut slots, &mut replies);
                let pipeline = Pipeline::new(self, receiver, &promote, memory);
                receiver = pipeline.run().unwrap_or_else(|| self.lead());
            }
            let is_synchronous = match receiver.fill(&mut batch, self.transmission) {
                Ok(Received::AfterWait) => self.in_flight.load(Ordering::Relaxed) == 0,
                Ok(Received::Immediately) => false,
                Ok(Received::EndOfStream) => return,
                // The other workers find the end of the stream after their replies.
                Err(error) => return self.record_failure(error),
            };
            let is_synchronous = is_synchronous && batch.commands().len() == 1;
            if is_synchronous && batch.class() == Class::Transfer {
                self.execute(&mut batch, &mut replies);
                // Before the reply: input that is buffered now was sent without waiting for it.
                receiver.check_queue_depth(self.transmission.stream);
                self.reply(&mut batch, &replies);
                continue;
            }
            if batch.commands().len() > 1 {
                receiver.set_pipelined();
            }
            if self.is_fast(&batch) {
                self.execute(&mut batch, &mut replies);
                self.reply(&mut batch, &replies);
                continue;
            }
            self.begin_in_flight();
            drop(receiver);
            self.promote_follower(scope);
            self.execute(&mut batch, &mut replies);
            // Before the reply, so that the next request of a synchronous client finds it at 0.
            self.end_in_flight();
            self.reply(&mut batch, &replies);
            receiver = self.lead();
        }
    }

    /// Counts a batch or stream that runs without the leadership.
    fn begin_in_flight(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    fn end_in_flight(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    fn lead(&self) -> MutexGuard<'_, Receiver> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let receiver = self.receiver.lock();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        receiver
    }

    /// Ensures that a follower receives the next batch; starts a worker if none waits.
    fn promote_follower<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            return;
        }
        let one_more = |workers| (workers < WORKERS_MAX).then_some(workers + 1);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        if self.workers.fetch_update(set, fetch, one_more).is_err() {
            return;
        }
        // If the thread cannot be started, this worker receives again after its batch.
        let _ = thread::Builder::new()
            .name("nbd worker".to_owned())
            .spawn_scoped(scope, || self.run_worker(scope));
    }

    fn is_fast(&self, batch: &Batch<'_>) -> bool {
        batch.class() == Class::Transfer
            && self.batch_nanoseconds.load(Ordering::Relaxed) < INLINE_NANOSECONDS_MAX
    }

    fn execute(&self, batch: &mut Batch<'_>, replies: &mut Replies) {
        let started = Instant::now();
        batch.execute(self.transmission, replies);
        event!(
            TRACE,
            "requests",
            export = self.transmission.agreement.export.name(),
            count = batch.commands().len(),
            duration_us = started.elapsed().as_micros() as u64
        );
        if batch.class() == Class::Transfer {
            // A lost update of two concurrent workers does no harm.
            let before = self.batch_nanoseconds.load(Ordering::Relaxed);
            let taken = started.elapsed().as_nanos() as u64;
            self.batch_nanoseconds
                .store((7 * before + taken) / 8, Ordering::Relaxed);
        }
    }

    fn reply(&self, batch: &mut Batch<'_>, replies: &Replies) {
        let memory = batch.memory();
        self.send(replies, |range| &memory[range.clone()]);
        batch.release();
    }

    fn send<'m>(&self, replies: &Replies, bytes: impl Fn(&Range<usize>) -> &'m [u8]) {
        let sender = self.sender.lock();
        let sent = replies.send(self.transmission.stream, bytes);
        drop(sender);
        if let Err(source) = sent {
            self.fail(failed("reply", source));
        }
    }

    /// Ends the connection: every worker's next receive or send fails.
    fn fail(&self, error: Error) {
        self.record_failure(error);
        self.transmission.stream.abort();
    }

    /// Keeps the first error as the cause.
    fn record_failure(&self, error: Error) {
        let mut failure = self.failure.lock();
        failure.get_or_insert(error);
    }
}

/// Ends the other workers of a connection when one panics.
struct AbortOnPanic<'a>(&'a Session<'a>);

impl Drop for AbortOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.transmission.stream.abort();
        }
    }
}

fn failed(operation: &'static str, source: io::Error) -> Error {
    Error::from(source).during(operation)
}

fn against_protocol(detail: &'static str) -> Error {
    Error::new(ErrorKind::InvalidArgument)
        .detail(detail)
        .during("receive a request")
}

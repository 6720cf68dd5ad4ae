//! The transmission phase of one connection: requests in, replies out.
//!
//! Model: a few threads take turns at reading. Who reads takes all that the socket has, as one batch, which becomes one
//! submission to the device and one write of replies. What is slow, or may be, is run after the reading was handed on,
//! so that the next batch is gathered and started meanwhile; what is fast is run at once, as waking another thread
//! would take longer than the work. A client that waits for each reply is served by one thread that never hands on: whether it
//! waits shows before each reply, when nothing more is there. Of one that does not, small reads and writes are run as a stream
//! where the device takes one (`pipeline.rs`).
//!
//! Bounds: a thread holds one batch, in memory of its own, and the transfers of one stream; larger requests share one buffer of the connection and wait
//! for each other. When all threads are at work nobody reads, and the client waits.
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
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, Scope};
use std::time::Instant;

use extant_space::{Error, ErrorKind, Result};
use extant_sys::buffer::AlignedBuffer;

use crate::handshake::Agreement;
use crate::stream::Stream;
use crate::wire::error::NbdError;
use batch::Batch;
use command::{Class, Command};
use pipeline::{Pipeline, Slots};
use receiver::{Arrival, Receiver};
use replies::Replies;

/// Threads of one connection.
const WORKERS_MAX: usize = 4;
/// Work that is expected to take less is not worth a wake-up.
const HAND_ON_NANOSECONDS: u64 = 20_000;

/// What a connection is served with.
pub(crate) struct Transmission<'a> {
    pub stream: &'a Stream,
    pub agreement: &'a Agreement,
    /// Bytes of the largest read or write.
    pub request_max: u32,
    /// Set when requests are no longer to be taken.
    pub is_stopping: &'a AtomicBool,
    /// Is told of requests that failed on the device.
    pub report: &'a (dyn Fn(&Error) + Sync),
}

/// Serves requests until the client leaves.
///
/// # Errors
/// `InvalidArgument` when it sends what is no request, and those of the socket.
pub(crate) fn serve(transmission: &Transmission<'_>) -> Result<()> {
    let session = Session {
        transmission,
        receiver: Mutex::new(Receiver::new(transmission.agreement.style)),
        sender: Mutex::new(()),
        large: Mutex::new(None),
        workers: AtomicUsize::new(1),
        waiting: AtomicUsize::new(0),
        in_flight: AtomicUsize::new(0),
        batch_nanoseconds: AtomicU64::new(HAND_ON_NANOSECONDS),
        failure: Mutex::new(None),
    };
    thread::scope(|scope| session.work(scope));
    let failure = session.failure.into_inner();
    match failure.unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

impl Transmission<'_> {
    /// Adds the reply to `command`; whoever runs the server is told of an error.
    fn reply(&self, replies: &mut Replies, command: &Command, result: Result<()>) {
        match result {
            Ok(()) => replies.done(command),
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
    /// Workers that wait for the receiver.
    waiting: AtomicUsize,
    /// Batches, and streams, that are run while another worker may read.
    in_flight: AtomicUsize,
    /// What a batch of reads and writes has taken of late, on the mean.
    batch_nanoseconds: AtomicU64,
    /// Why the connection ended, if the client did not want it.
    failure: Mutex<Option<Error>>,
}

impl Session<'_> {
    fn work<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        let _abort = AbortOnPanic(self);
        let mut batch = match Batch::new(&self.large) {
            Ok(batch) => batch,
            Err(source) => return self.fail(failed("get memory", source)),
        };
        let mut replies = Replies::default();
        let mut slots = Slots::default();
        let hand_on = || self.recruit(scope);
        let mut receiver = self.receive();
        loop {
            if !receiver.is_alone() {
                let memory = (&mut slots, &mut replies);
                let pipeline = Pipeline::new(self, receiver, &hand_on, memory);
                receiver = pipeline.run().unwrap_or_else(|| self.receive());
            }
            let is_alone = match receiver.fill(&mut batch, self.transmission) {
                Ok(Arrival::AfterWait) => self.in_flight.load(Ordering::Relaxed) == 0,
                Ok(Arrival::AtOnce) => false,
                Ok(Arrival::End) => return,
                // The others find the end as well, after their replies.
                Err(error) => return self.note(error),
            };
            let is_alone = is_alone && batch.commands().len() == 1;
            if is_alone && batch.class() == Class::Transfer {
                self.execute(&mut batch, &mut replies);
                // Before the client hears of it: what is there now, it has sent without waiting.
                receiver.look_whether_alone(self.transmission.stream);
                self.reply(&mut batch, &replies);
                continue;
            }
            if batch.commands().len() > 1 {
                receiver.is_not_alone();
            }
            if self.is_fast(&batch) {
                self.execute(&mut batch, &mut replies);
                self.reply(&mut batch, &replies);
                continue;
            }
            self.enter();
            drop(receiver);
            self.recruit(scope);
            self.execute(&mut batch, &mut replies);
            // A client that waited for the reply is alone again when it has it.
            self.leave();
            self.reply(&mut batch, &replies);
            receiver = self.receive();
        }
    }

    /// Something goes on while another worker may read.
    fn enter(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    fn leave(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    fn receive(&self) -> MutexGuard<'_, Receiver> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let receiver = self.receiver.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        receiver
    }

    /// Finds somebody to read on.
    fn recruit<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            return;
        }
        let one_more = |workers| (workers < WORKERS_MAX).then_some(workers + 1);
        let (set, look) = (Ordering::Relaxed, Ordering::Relaxed);
        if self.workers.fetch_update(set, look, one_more).is_err() {
            return;
        }
        // Without another thread reading goes on when this one is done.
        let _ = thread::Builder::new()
            .name("nbd worker".to_owned())
            .spawn_scoped(scope, || self.work(scope));
    }

    fn is_fast(&self, batch: &Batch<'_>) -> bool {
        batch.class() == Class::Transfer
            && self.batch_nanoseconds.load(Ordering::Relaxed) < HAND_ON_NANOSECONDS
    }

    fn execute(&self, batch: &mut Batch<'_>, replies: &mut Replies) {
        let started = Instant::now();
        batch.execute(self.transmission, replies);
        if batch.class() == Class::Transfer {
            // Of two threads that do so at a time, either is right enough.
            let before = self.batch_nanoseconds.load(Ordering::Relaxed);
            let taken = started.elapsed().as_nanos() as u64;
            self.batch_nanoseconds
                .store((7 * before + taken) / 8, Ordering::Relaxed);
        }
    }

    fn reply(&self, batch: &mut Batch<'_>, replies: &Replies) {
        let memory = batch.memory();
        self.send(replies, |place| &memory[place.clone()]);
        batch.release();
    }

    fn send<'m>(&self, replies: &Replies, bytes: impl Fn(&Range<usize>) -> &'m [u8]) {
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = replies.send(self.transmission.stream, bytes);
        drop(sender);
        if let Err(source) = sent {
            self.fail(failed("reply", source));
        }
    }

    /// Ends the connection; whoever reads or writes finds the end.
    fn fail(&self, error: Error) {
        self.note(error);
        self.transmission.stream.abort();
    }

    /// The first error is the reason of the end.
    fn note(&self, error: Error) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(error);
    }
}

/// Lets the other workers of a connection end when one panics.
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

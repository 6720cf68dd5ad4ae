//! One connection: requests in flight, and the thread that receives their replies.
//!
//! Any thread sends; the receiver thread delivers each result to the batch that the request is of.
//! It always receives, so that a server that blocks on its replies cannot block a sender for good.
//! When the connection ends, for whatever reason, every request in flight is delivered as lost.
//!
//! Lock order: sender, pending, replies of a batch.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use extant_blockdev::WriteBuffers;
use extant_space::thread::spawn;
use extant_space::{Error, ErrorKind, Result};
use parking_lot::{Condvar, Mutex};

use crate::handshake::{Agreement, violation};
use crate::reply::{Expected, Input, Outcome, Partial};
use crate::stream::Stream;
use crate::wire::reply::{ReplyHeader, ReplyStyle};
use crate::wire::request::{RequestHeader, command, command_flag};

/// Time limit for saying goodbye to a server that does not receive.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);

/// A request, without its identifier.
#[derive(Clone, Debug)]
pub(crate) struct Job<'a> {
    pub command: u16,
    pub flags: u16,
    pub offset: u64,
    pub length: u64,
    /// The data of a write.
    pub from: WriteBuffers<'a>,
}

impl Job<'_> {
    /// Bytes of data, in either direction.
    pub(crate) fn data_bytes(&self) -> u64 {
        match self.command {
            command::READ | command::WRITE => self.length,
            _ => 0,
        }
    }
}

/// The results of one batch.
#[derive(Default)]
pub(crate) struct Replies {
    arrived: Mutex<Vec<(usize, Outcome)>>,
    changed: Condvar,
}

impl Replies {
    fn deliver(&self, at: usize, outcome: Outcome) {
        self.arrived.lock().push((at, outcome));
        self.changed.notify_one();
    }

    /// Waits for results; returns all that have arrived.
    pub(crate) fn wait(&self) -> Vec<(usize, Outcome)> {
        let mut arrived = self.arrived.lock();
        while arrived.is_empty() {
            self.changed.wait(&mut arrived);
        }
        std::mem::take(&mut *arrived)
    }
}

pub(crate) struct Connection {
    stream: Stream,
    pub agreement: Agreement,
    sender: Mutex<()>,
    pending: Mutex<Pending>,
    in_flight: AtomicUsize,
    silence: Duration,
    /// Called at the end, with the reason; the first call counts.
    on_end: Box<dyn Fn(&Error) + Send + Sync>,
}

struct Pending {
    next_cookie: u64,
    requests: HashMap<u64, InFlight>,
    /// Of the last reply, or the first request after none.
    active: Instant,
    /// A reply is being received, whose request is not among `requests`.
    is_receiving: bool,
    has_ended: bool,
}

struct InFlight {
    replies: Arc<Replies>,
    at: usize,
    partial: Partial,
}

impl Connection {
    /// Takes over a stream that is in transmission, and starts its receiver.
    pub(crate) fn start(
        stream: Stream,
        agreement: Agreement,
        silence: Duration,
        on_end: Box<dyn Fn(&Error) + Send + Sync>,
    ) -> Result<(Arc<Self>, JoinHandle<()>)> {
        stream.set_timeouts(Some(silence)).map_err(Error::from)?;
        let connection = Arc::new(Self {
            stream,
            agreement,
            sender: Mutex::new(()),
            pending: Mutex::new(Pending {
                next_cookie: 1,
                requests: HashMap::new(),
                active: Instant::now(),
                is_receiving: false,
                has_ended: false,
            }),
            in_flight: AtomicUsize::new(0),
            silence,
            on_end,
        });
        let receiver = connection.clone();
        let thread = spawn("nbd receiver", move || receiver.receive())?;
        Ok((connection, thread))
    }

    /// Requests without a reply.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Sends requests at once. Each has its outcome delivered to `replies`, under its number.
    pub(crate) fn send(&self, jobs: &[(usize, &Job<'_>)], replies: &Arc<Replies>) {
        let style = self.agreement.style;
        let sender = self.sender.lock();
        let Some(first_cookie) = self.register(jobs, replies) else {
            drop(sender);
            jobs.iter()
                .for_each(|(at, _)| replies.deliver(*at, Outcome::Lost));
            return;
        };
        let mut headers = Vec::with_capacity(jobs.len() * RequestHeader::size(style));
        for ((_, job), cookie) in jobs.iter().zip(first_cookie..) {
            let mut flags = job.flags;
            if style == ReplyStyle::Extended && job.command == command::WRITE {
                flags |= command_flag::PAYLOAD_LEN;
            }
            let header = RequestHeader {
                flags,
                command: job.command,
                cookie,
                offset: job.offset,
                length: job.length,
            };
            header.encode(style, &mut headers);
        }
        let mut parts = Vec::with_capacity(2 * jobs.len());
        let headers = headers.chunks_exact(RequestHeader::size(style));
        for ((_, job), header) in jobs.iter().zip(headers) {
            parts.push(IoSlice::new(header));
            parts.extend(job.from.iter().map(|part| IoSlice::new(part)));
        }
        // Data after its header is all or nothing: a failed send ends the connection.
        if let Err(error) = self.stream.write(&mut parts) {
            drop(sender);
            self.end(&broken(&error));
        }
    }

    /// Registers requests; returns the first of their consecutive identifiers, or `None` when the
    /// connection has ended.
    fn register(&self, jobs: &[(usize, &Job<'_>)], replies: &Arc<Replies>) -> Option<u64> {
        let mut pending = self.pending.lock();
        if pending.has_ended {
            return None;
        }
        if pending.requests.is_empty() {
            pending.active = Instant::now();
        }
        let first = pending.next_cookie;
        pending.next_cookie += jobs.len() as u64;
        for ((at, job), cookie) in jobs.iter().zip(first..) {
            let in_flight = InFlight {
                replies: replies.clone(),
                at: *at,
                partial: Partial::new(Expected {
                    command: job.command,
                    offset: job.offset,
                    length: job.length,
                }),
            };
            pending.requests.insert(cookie, in_flight);
        }
        self.in_flight.fetch_add(jobs.len(), Ordering::Relaxed);
        Some(first)
    }

    /// The receiver thread.
    fn receive(&self) {
        // A panic must not leave requests without a result.
        let _end = EndOnDrop(self);
        let is_patient = || {
            let pending = self.pending.lock();
            let is_idle = pending.requests.is_empty() && !pending.is_receiving;
            is_idle || pending.active.elapsed() < self.silence
        };
        let mut input = Input::new(&self.stream, &is_patient);
        // Delivered after the end is known: a batch must not send again on this connection.
        let mut current = DeliverOnDrop(None);
        loop {
            if let Err(error) = self.receive_reply(&mut input, &mut current) {
                return self.end(&error);
            }
        }
    }

    fn receive_reply(&self, input: &mut Input<'_>, current: &mut DeliverOnDrop) -> Result<()> {
        let style = self.agreement.style;
        let header = input.read_header(style)?;
        let (ReplyHeader::Simple { cookie, .. } | ReplyHeader::Chunk { cookie, .. }) = header;
        let mut pending = self.pending.lock();
        pending.active = Instant::now();
        pending.is_receiving = true;
        let request = pending.requests.remove(&cookie);
        drop(pending);
        let request = request.ok_or_else(|| {
            violation(format!(
                "a reply to request {cookie}, which is not in flight"
            ))
        })?;
        let contexts = &self.agreement.contexts;
        let in_flight = current.0.insert(request);
        let is_complete = in_flight.partial.receive(&header, style, contexts, input)?;
        let request = current.0.take().expect("it was inserted");
        let mut pending = self.pending.lock();
        pending.is_receiving = false;
        if !is_complete {
            pending.requests.insert(cookie, request);
            return Ok(());
        }
        drop(pending);
        let InFlight {
            replies,
            at,
            partial,
        } = request;
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        let error = match partial.finish(contexts) {
            Ok(Outcome::Lost) => Error::new(ErrorKind::Io).detail("the server is shutting down"),
            Ok(outcome) => {
                replies.deliver(at, outcome);
                return Ok(());
            }
            Err(error) => error,
        };
        (self.on_end)(&error);
        replies.deliver(at, Outcome::Lost);
        Err(error)
    }

    /// Ends the connection for a reason; the first one counts.
    fn end(&self, reason: &Error) {
        (self.on_end)(reason);
        self.stream.abort();
        let mut pending = self.pending.lock();
        pending.has_ended = true;
        let requests = std::mem::take(&mut pending.requests);
        drop(pending);
        for request in requests.into_values() {
            request.replies.deliver(request.at, Outcome::Lost);
        }
    }

    /// Makes the receiver end the connection.
    pub(crate) fn abort(&self) {
        self.stream.abort();
    }

    /// Says goodbye, and ends the connection.
    pub(crate) fn disconnect(&self) {
        let _sender = self.sender.lock();
        let _ = self.stream.set_timeouts(Some(GOODBYE_TIMEOUT));
        let mut header = Vec::new();
        let disconnect = RequestHeader {
            flags: 0,
            command: command::DISC,
            cookie: 0,
            offset: 0,
            length: 0,
        };
        disconnect.encode(self.agreement.style, &mut header);
        // The server may have disconnected.
        let _ = self.stream.write(&mut [IoSlice::new(&header)]);
        self.stream.close();
    }
}

/// A request whose reply is being received: lost, unless it is taken out.
struct DeliverOnDrop(Option<InFlight>);

impl Drop for DeliverOnDrop {
    fn drop(&mut self) {
        if let Some(request) = self.0.take() {
            request.replies.deliver(request.at, Outcome::Lost);
        }
    }
}

struct EndOnDrop<'a>(&'a Connection);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0
                .end(&Error::new(ErrorKind::Io).detail("the receiver has panicked"));
        }
    }
}

fn broken(error: &io::Error) -> Error {
    let why = match error.kind() {
        io::ErrorKind::TimedOut => "the server does not receive".to_owned(),
        _ => error.to_string(),
    };
    Error::new(ErrorKind::Io).detail(format!("the connection is lost: {why}"))
}

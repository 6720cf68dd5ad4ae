//! The connections of a device: batches on them, and their replacement when one is lost.
//!
//! A *session* is a set of connections that the client takes for those to one run of the server. If
//! one connection ends, the whole session does: the server may have been started again, and what is
//! repeated then must not run beside newer changes. The thread that finds its session ended makes
//! the next one, while others wait for it; docs/internals/nbd.md has the states.
//!
//! A violation of the protocol is final: no session follows, and every request fails with it.
//!
//! Lock order: recovery, unflushed, state.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use extant_blockdev::WriteBuffers;
use extant_space::{Error, ErrorKind, Result};
use parking_lot::Mutex;

use crate::connection::{Connection, Job, Replies};
use crate::dial::dial;
use crate::handshake::{self, Agreement, Wishes};
use crate::options::{NbdAccess, NbdOptions, NbdReconnect, NbdTimeouts};
use crate::reply::{Outcome, Payload};
use crate::stream::Stream;
use crate::tls::ClientTls;
use crate::unflushed::{Change, Unflushed};
use crate::uri::NbdUri;
use crate::wire::negotiation::transmission_flag as flag;
use crate::wire::request::command;

/// Requests and bytes of data that one batch keeps in flight.
const REQUESTS_MAX: usize = 64;
const DATA_BYTES_MAX: u64 = 16 << 20;
/// Pauses between attempts to reconnect.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Sessions that may end while a request is in flight: the request itself may be the reason.
const LOSSES_MAX: u32 = 5;
/// Time limit for connections after the first: a server that takes one client leaves others in its
/// queue.
const EXTRA_TIMEOUT: Duration = Duration::from_secs(1);

/// Connections that end together.
struct Session {
    epoch: u64,
    connections: Vec<Arc<Connection>>,
    receivers: Mutex<Vec<JoinHandle<()>>>,
    end: Arc<SessionEnd>,
}

/// The end of a session, shared by its connections.
#[derive(Default)]
struct SessionEnd {
    reason: OnceLock<Error>,
    connections: Mutex<Vec<Weak<Connection>>>,
}

impl SessionEnd {
    fn end(&self, reason: &Error) {
        let _ = self.reason.set(reason.clone());
        for connection in &*self.connections.lock() {
            if let Some(connection) = connection.upgrade() {
                connection.abort();
            }
        }
    }
}

impl Session {
    fn has_ended(&self) -> bool {
        self.end.reason.get().is_some()
    }

    /// Sends on the connection with the fewest requests in flight.
    fn send(&self, jobs: &[(usize, &Job<'_>)], replies: &Arc<Replies>) {
        let connection = self.connections.iter().min_by_key(|one| one.in_flight());
        let connection = connection.expect("a session has a connection");
        connection.send(jobs, replies);
    }

    fn join(&self) {
        for receiver in self.receivers.lock().drain(..) {
            // A panic has ended the connection like any other reason.
            let _ = receiver.join();
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.has_ended() {
            // The end of one must not abort the others before they say goodbye.
            self.end.connections.lock().clear();
            for connection in &self.connections {
                connection.disconnect();
            }
        }
        self.join();
    }
}

enum State {
    Connected(Arc<Session>),
    Failed(Error),
}

/// The connections to one export.
pub(crate) struct Sessions {
    uri: NbdUri,
    options: NbdOptions,
    tls: Option<ClientTls>,
    /// Of the first session; the later ones have the same.
    agreement: Agreement,
    state: Mutex<State>,
    recovery: Mutex<()>,
    unflushed: Mutex<Unflushed>,
}

impl Sessions {
    /// The first session.
    pub(crate) fn connect(uri: &NbdUri, options: NbdOptions) -> Result<Self> {
        let tls = uri.tls().map(|tls| ClientTls::new(tls, uri.transport()));
        let tls = tls.transpose().map_err(|error| error.at(uri.to_string()))?;
        let mut unflushed = Unflushed::default();
        let (epoch, _) = unflushed.begin_epoch();
        let opener = Opener {
            uri,
            options: &options,
            tls: tls.as_ref(),
        };
        let session = opener.open(epoch, |_| Ok(()));
        let session = session.map_err(|error| error.at(uri.to_string()))?;
        Ok(Self {
            agreement: session.connections[0].agreement.clone(),
            state: Mutex::new(State::Connected(Arc::new(session))),
            uri: uri.clone(),
            tls,
            options,
            recovery: Mutex::new(()),
            unflushed: Mutex::new(unflushed),
        })
    }

    pub(crate) fn agreement(&self) -> &Agreement {
        &self.agreement
    }

    pub(crate) fn uri(&self) -> &NbdUri {
        &self.uri
    }

    /// Asks the server for the size, on a connection of its own.
    pub(crate) fn query_size(&self) -> Result<u64> {
        let opener = self.opener();
        let NbdTimeouts {
            mut connect,
            mut handshake,
            ..
        } = self.options.timeouts;
        if self.agreement.flags & flag::CAN_MULTI_CONN == 0 {
            connect = connect.min(EXTRA_TIMEOUT);
            handshake = handshake.min(EXTRA_TIMEOUT);
        }
        let mut stream = opener.dial(connect)?;
        handshake::query_size(&mut stream, &opener.wishes(handshake))
    }

    fn opener(&self) -> Opener<'_> {
        Opener {
            uri: &self.uri,
            options: &self.options,
            tls: self.tls.as_ref(),
        }
    }

    /// More is remembered than the options permit: a flush is due.
    pub(crate) fn needs_flush(&self) -> bool {
        match self.options.reconnect {
            NbdReconnect::Never => false,
            NbdReconnect::Retry {
                unflushed_bytes_max,
                ..
            } => self.unflushed.lock().bytes() > unflushed_bytes_max,
        }
    }

    /// Runs one request.
    pub(crate) fn run_one(&self, job: &Job<'_>) -> Result<Payload> {
        let mut outcome = None;
        self.run(std::slice::from_ref(job), &mut |_, result| {
            outcome = Some(result);
            Ok(())
        });
        outcome.expect("every request has a result")
    }

    /// Sends a flush; the changes that were acknowledged before are forgotten when it succeeds.
    pub(crate) fn flush(&self) -> Result<()> {
        let mark = self.unflushed.lock().mark();
        let flush = Job {
            command: command::FLUSH,
            flags: 0,
            offset: 0,
            length: 0,
            from: WriteBuffers::new(),
        };
        self.run_one(&flush)?;
        self.unflushed.lock().flushed(mark);
        Ok(())
    }

    /// Runs `jobs` concurrently, each until it has a result: `done` gets it, with the number of the
    /// job. An error of `done` fails all that is not sent.
    pub(crate) fn run(
        &self,
        jobs: &[Job<'_>],
        done: &mut dyn FnMut(usize, Result<Payload>) -> Result<()>,
    ) {
        let mut batch = Batch {
            sessions: self,
            jobs,
            waiting: (0..jobs.len()).collect(),
            losses: Vec::new(),
            in_flight: 0,
            data_bytes: 0,
            replies: Arc::default(),
        };
        let Err(error) = batch.run(done) else {
            return;
        };
        for at in batch.waiting {
            let _ = done(at, Err(Error::caused_by(error.clone())));
        }
    }

    fn current(&self) -> Result<Arc<Session>> {
        match &*self.state.lock() {
            State::Connected(session) => Ok(session.clone()),
            State::Failed(error) => Err(error.clone()),
        }
    }

    /// The change is remembered, or need not be. False: it has to be made again.
    fn remember(&self, session: &Session, job: &Job<'_>) -> bool {
        let is_kept = self.options.reconnect != NbdReconnect::Never
            && self.agreement.flags & flag::SEND_FLUSH != 0;
        match job.command {
            command::READ | command::FLUSH | command::BLOCK_STATUS | command::TRIM => true,
            _ if is_kept => self.unflushed.lock().remember(session.epoch, job),
            // Without a flush there is no durability to keep, but the session must be this one.
            _ => session.epoch == self.unflushed.lock().epoch(),
        }
    }

    /// The session after `ended`.
    fn recover(&self, ended: &Arc<Session>) -> Result<Arc<Session>> {
        let _recovery = self.recovery.lock();
        let current = self.current()?;
        if !Arc::ptr_eq(&current, ended) {
            return Ok(current);
        }
        drop(current);
        let reason = ended.end.reason.get().expect("the session has ended");
        let recovered = match self.options.reconnect {
            NbdReconnect::Retry { give_up_after, .. } if !is_final(reason) => {
                self.reconnect(ended, give_up_after)
            }
            _ => Err(reason.clone()),
        };
        let mut state = self.state.lock();
        let recovered = recovered.map(Arc::new).map_err(|error| {
            if self.options.access == NbdAccess::ReadOnly {
                return error;
            }
            error.advice("what was written since the last flush is in doubt; open the device again")
        });
        *state = match &recovered {
            Ok(session) => State::Connected(session.clone()),
            Err(error) => State::Failed(error.clone()),
        };
        recovered
    }

    fn reconnect(&self, ended: &Session, give_up_after: Duration) -> Result<Session> {
        // Nothing of the old session is remembered from here on, and nothing of it runs any more.
        let (epoch, changes) = self.unflushed.lock().begin_epoch();
        ended.join();
        let deadline = Instant::now() + give_up_after;
        let mut pause = PAUSE_MIN;
        loop {
            let session = self.opener().open(epoch, |first| {
                self.check_same(&first.agreement)?;
                repeat(first, &changes)
            });
            let error = match session {
                Ok(session) => return Ok(session),
                Err(error) => error,
            };
            if is_final(&error) || Instant::now() + pause >= deadline {
                return Err(error);
            }
            thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// The geometry and the features of the device stay what they were.
    fn check_same(&self, agreement: &Agreement) -> Result<()> {
        let first = &self.agreement;
        let has = |agreement: &Agreement| {
            let contexts = &agreement.contexts;
            [contexts.allocation, contexts.state, contexts.assign].map(|id| id.is_some())
        };
        let is_same = agreement.size >= first.size
            && agreement.flags == first.flags
            && agreement.blocks == first.blocks
            && agreement.style == first.style
            && has(agreement) == has(first);
        if is_same {
            return Ok(());
        }
        Err(Error::new(ErrorKind::InvalidArgument)
            .detail("after a reconnect the export has another size, other flags or block sizes"))
    }
}

/// Parameters for opening a session.
struct Opener<'a> {
    uri: &'a NbdUri,
    options: &'a NbdOptions,
    tls: Option<&'a ClientTls>,
}

impl Opener<'_> {
    fn dial(&self, timeout: Duration) -> Result<Stream> {
        let socket = dial(self.uri.transport(), timeout);
        let stream = Stream::new(Arc::new(socket.map_err(|source| {
            let detail = source.to_string();
            Error::from(source).detail(detail).during("connect")
        })?));
        stream
            .set_timeouts(Some(self.options.timeouts.handshake))
            .map_err(Error::from)?;
        Ok(stream)
    }

    fn wishes(&self, timeout: Duration) -> Wishes<'_> {
        Wishes {
            export: self.uri.export(),
            tls: self.tls,
            assign: self.options.assign,
            deadline: Instant::now() + timeout,
        }
    }

    /// Opens the first connection, prepares the export by it, and opens the others.
    fn open(&self, epoch: u64, prepare: impl FnOnce(&Connection) -> Result<()>) -> Result<Session> {
        let timeouts = &self.options.timeouts;
        let mut session = Session {
            epoch,
            connections: Vec::new(),
            receivers: Mutex::default(),
            end: Arc::default(),
        };
        self.add(&mut session, timeouts.connect, timeouts.handshake)?;
        prepare(&session.connections[0])?;
        let permits_more = session.connections[0].agreement.flags & flag::CAN_MULTI_CONN != 0;
        for _ in 1..self.options.connections {
            // One is enough to work with.
            let timeout = timeouts.handshake.min(EXTRA_TIMEOUT);
            if !permits_more || self.add(&mut session, timeout, timeout).is_err() {
                break;
            }
        }
        Ok(session)
    }

    fn add(&self, session: &mut Session, connect: Duration, handshake: Duration) -> Result<()> {
        let mut stream = self.dial(connect)?;
        let agreement = handshake::negotiate(&mut stream, &self.wishes(handshake))?;
        if let Some(first) = session.connections.first()
            && first.agreement != agreement
        {
            return Err(handshake::violation("an export that differs by connection"));
        }
        let end = session.end.clone();
        let on_end = move |reason: &Error| end.end(reason);
        let silence = self.options.timeouts.silence;
        let (connection, receiver) =
            Connection::start(stream, agreement, silence, Box::new(on_end))?;
        let weak = Arc::downgrade(&connection);
        session.end.connections.lock().push(weak);
        session.connections.push(connection);
        session.receivers.lock().push(receiver);
        if session.has_ended() {
            // It ended before the new connection was known to it.
            session.end.end(&ended());
        }
        Ok(())
    }
}

/// Makes the changes again, in their order where they overlap.
fn repeat(connection: &Connection, changes: &[Arc<Change>]) -> Result<()> {
    let mut rest = changes;
    while !rest.is_empty() {
        let mut count = 0;
        let mut data_bytes = 0;
        while let Some(next) = rest.get(count).filter(|_| count < REQUESTS_MAX) {
            let overlaps = |other: &Arc<Change>| other.range().intersection(next.range()).is_some();
            data_bytes += next.job().data_bytes();
            if count > 0 && data_bytes > DATA_BYTES_MAX || rest[..count].iter().any(overlaps) {
                break;
            }
            count += 1;
        }
        let (now, later) = rest.split_at(count);
        let jobs: Vec<_> = now.iter().map(|change| change.job()).collect();
        let jobs: Vec<_> = jobs.iter().enumerate().collect();
        let replies = Arc::default();
        connection.send(&jobs, &replies);
        let mut left = count;
        let mut result = Ok(());
        while left > 0 {
            for (at, outcome) in replies.wait() {
                left -= 1;
                let failed = match outcome {
                    Outcome::Done(_) => continue,
                    Outcome::Lost => ended(),
                    Outcome::Failed(error) => {
                        let detail = format!(
                            "a change since the last flush could not be repeated after a \
                             reconnect: {error}"
                        );
                        let error = Error::new(error.kind()).detail(detail);
                        error.in_range(now[at].range())
                    }
                };
                result = result.and(Err(failed));
            }
        }
        result?;
        rest = later;
    }
    Ok(())
}

fn ended() -> Error {
    Error::new(ErrorKind::Io).detail("the connection is lost: the server disconnected")
}

/// Another attempt is of no use. Only violations of the protocol and another export have the kind.
fn is_final(error: &Error) -> bool {
    error.kind() == ErrorKind::InvalidArgument
}

/// Jobs of one thread on their way.
struct Batch<'b, 'j> {
    sessions: &'b Sessions,
    jobs: &'b [Job<'j>],
    waiting: VecDeque<usize>,
    /// Sessions that ended while a job was in flight; empty before the first.
    losses: Vec<u32>,
    in_flight: usize,
    data_bytes: u64,
    replies: Arc<Replies>,
}

impl Batch<'_, '_> {
    /// On an error, the jobs that are not sent are in `waiting`, and none is in flight.
    fn run(&mut self, done: &mut dyn FnMut(usize, Result<Payload>) -> Result<()>) -> Result<()> {
        let mut session = self.sessions.current()?;
        let mut failure = Ok(());
        loop {
            if failure.is_ok() && !session.has_ended() {
                self.send(&session);
            }
            if self.in_flight == 0 {
                if failure.is_err() || self.waiting.is_empty() {
                    return failure;
                }
                session = self.sessions.recover(&session)?;
                continue;
            }
            for (at, outcome) in self.replies.wait() {
                let job = &self.jobs[at];
                self.in_flight -= 1;
                self.data_bytes -= job.data_bytes();
                let result = match outcome {
                    Outcome::Done(payload) if self.sessions.remember(&session, job) => Ok(payload),
                    Outcome::Failed(error) => Err(error),
                    Outcome::Done(_) | Outcome::Lost => match self.count_loss(at, &session) {
                        Ok(()) => {
                            self.waiting.push_back(at);
                            continue;
                        }
                        Err(error) => Err(error),
                    },
                };
                if let Err(error) = done(at, result) {
                    failure = failure.and(Err(error));
                }
            }
        }
    }

    fn send(&mut self, session: &Session) {
        let mut now = Vec::new();
        while let Some(&at) = self.waiting.front() {
            let job = &self.jobs[at];
            let data_bytes = self.data_bytes + job.data_bytes();
            let is_full = self.in_flight == REQUESTS_MAX || data_bytes > DATA_BYTES_MAX;
            if is_full && self.in_flight > 0 {
                break;
            }
            self.waiting.pop_front();
            self.in_flight += 1;
            self.data_bytes = data_bytes;
            now.push((at, job));
        }
        // In parts, one for each connection.
        let part = now.len().div_ceil(session.connections.len()).max(1);
        for part in now.chunks(part) {
            session.send(part, &self.replies);
        }
    }

    fn count_loss(&mut self, at: usize, session: &Session) -> Result<()> {
        self.losses.resize(self.jobs.len(), 0);
        self.losses[at] += 1;
        if self.losses[at] < LOSSES_MAX {
            return Ok(());
        }
        let reason = session.end.reason.get().cloned().unwrap_or_else(ended);
        Err(reason.advice(format!("{LOSSES_MAX} connections ended during the request")))
    }
}

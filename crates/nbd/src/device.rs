//! A block device on the export of an NBD server.

use std::fmt;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_blockdev::{
    Device, Features, Geometry, Operation, Persistence, RangeStatus, ReadBuffers, Request, Speed,
    WriteBuffers, ZeroedSpace, Zeroing, submit_within,
};
use extant_space::{
    ByteRange, Error, ErrorKind, Extent, ExtentFlags, ExtentState, LayerRange, LayerVisitor, Result,
};
use parking_lot::Mutex;

use crate::connection::Job;
use crate::exclusion::Writer;
use crate::limits::{self, ZEROES_BYTES_MAX, zeroes};
use crate::options::{NbdAccess, NbdOptions};
use crate::reply::{Payload, StatusRun};
use crate::session::Sessions;
use crate::uri::NbdUri;
use crate::wire::negotiation::transmission_flag as flag;
use crate::wire::request::{command, command_flag};
use crate::wire::status;

/// Most bytes of one request for a status.
const STATUS_BYTES_MAX: u64 = 1 << 30;

/// The export of an NBD server.
///
/// A lost connection is replaced, and what was not flushed is repeated, as the options say. A
/// failed flush stays: every later one fails with the same error.
pub struct NbdDevice {
    name: PathBuf,
    _writer: Option<Writer>,
    sessions: Sessions,
    geometry: Geometry,
    size: AtomicU64,
    /// Flushes that were asked for; those with a number below `flushed` are served.
    flush_requests: AtomicU64,
    flushes: Mutex<Flushes>,
}

#[derive(Default)]
struct Flushes {
    served: u64,
    failed: Option<Error>,
}

impl NbdDevice {
    /// Connects to the export.
    ///
    /// # Errors
    /// With the URI as the path: `NotFound` without that export or server, `ReadOnly` for a
    /// read-only export that is to be written, `InUse` if another client of this host writes to
    /// it, `PermissionDenied` if TLS or the server denies it, `Unsupported` for a server before
    /// fixed newstyle, `InvalidArgument` for one that violates the protocol, and errors of the
    /// socket.
    pub fn connect(uri: &NbdUri, options: NbdOptions) -> Result<Self> {
        let uri = &uri.clone().with_absolute_socket();
        let access = options.access;
        let writer = (access == NbdAccess::ReadWrite).then(|| Writer::of(uri));
        let writer = writer
            .transpose()
            .map_err(|error| error.at(uri.to_string()))?;
        let sessions = Sessions::connect(uri, options)?;
        let agreement = sessions.agreement();
        if access == NbdAccess::ReadWrite && agreement.flags & flag::READ_ONLY != 0 {
            return Err(Error::new(ErrorKind::ReadOnly)
                .detail("the export is read-only")
                .at(uri.to_string()));
        }
        let geometry = limits::geometry(agreement, access);
        Ok(Self {
            name: uri.to_string().into(),
            _writer: writer,
            size: AtomicU64::new(geometry.size),
            geometry,
            sessions,
            flush_requests: AtomicU64::new(0),
            flushes: Mutex::default(),
        })
    }

    /// Whether a process of this host has the export open for changes.
    pub fn has_writer(uri: &NbdUri) -> bool {
        let found = Writer::of(&uri.clone().with_absolute_socket());
        found.is_err_and(|error| error.kind() == ErrorKind::InUse)
    }

    /// The export.
    pub fn uri(&self) -> &NbdUri {
        self.sessions.uri()
    }

    fn has(&self, flag: u16) -> bool {
        self.sessions.agreement().flags & flag != 0
    }

    fn execute(&self, requests: &mut [Request<'_>]) {
        let results = self.run_plan(requests);
        for (request, result) in requests.iter_mut().zip(results) {
            request.complete(result.map_err(|error| error.at(&self.name)));
        }
    }

    /// The result of each request.
    fn run_plan(&self, requests: &mut [Request<'_>]) -> Vec<Result<()>> {
        let mut results: Vec<Result<()>> = requests.iter().map(|_| Ok(())).collect();
        let mut plan = Plan {
            device: self,
            jobs: Vec::new(),
            parts: Vec::new(),
            flushes: Vec::new(),
        };
        for (owner, request) in requests.iter_mut().enumerate() {
            results[owner] = plan.add(owner, &mut request.operation);
        }
        let Plan {
            jobs,
            mut parts,
            flushes,
            ..
        } = plan;
        self.sessions.run(&jobs, &mut |at, result| {
            let part = &mut parts[at];
            let result = result.map(|payload| part.fill(&payload));
            let job = &jobs[at];
            let result = result.map_err(|error| error.in_range(range_of(job)));
            let owner = &mut results[part.owner];
            *owner = std::mem::replace(owner, Ok(())).and(result);
            if self.sessions.needs_flush() {
                self.flush_now()?;
            }
            Ok(())
        });
        if !flushes.is_empty() && self.has(flag::SEND_FLUSH) {
            let flushed = self.flush_now();
            for owner in flushes {
                let result = flushed.clone().map_err(Error::caused_by);
                results[owner] = std::mem::replace(&mut results[owner], Ok(())).and(result);
            }
        }
        results
    }

    /// Flushes what was acknowledged before the call; calls that wait are served together.
    fn flush_now(&self) -> Result<()> {
        let number = self.flush_requests.fetch_add(1, Ordering::SeqCst);
        let mut flushes = self.flushes.lock();
        if let Some(error) = &flushes.failed {
            return Err(error.clone());
        }
        if number < flushes.served {
            return Ok(());
        }
        let served = self.flush_requests.load(Ordering::SeqCst);
        // One at a time: of two that overlap, one could get the error that is the other's.
        if let Err(error) = self.sessions.flush() {
            let advice = "what was written since the last flush is in doubt; open the device again";
            flushes.failed = Some(error.clone().advice(advice));
            return Err(error.advice(advice));
        }
        flushes.served = served;
        Ok(())
    }

    /// Visits the status of `range` in one metadata context.
    fn visit_status(
        &self,
        range: ByteRange,
        context: impl Fn(Payload) -> Option<Vec<StatusRun>>,
        visit: &mut dyn FnMut(ByteRange, u64) -> ControlFlow<()>,
    ) -> Result<()> {
        let fail = |error: Error| error.during("status").in_range(range).at(&self.name);
        let mut at = range.start();
        while at < range.end() {
            let length = (range.end() - at).min(STATUS_BYTES_MAX);
            let ask = Job {
                command: command::BLOCK_STATUS,
                flags: 0,
                offset: at,
                length,
                from: WriteBuffers::new(),
            };
            let payload = self.sessions.run_one(&ask).map_err(fail)?;
            let runs = context(payload).expect("the context was agreed on");
            let end = at + length;
            for run in runs {
                // The last one may be longer than the requested access.
                let part = ByteRange::new(at, at.saturating_add(run.length).min(end));
                if part.is_empty() {
                    break;
                }
                if visit(part, run.flags).is_break() {
                    return Ok(());
                }
                at = part.end();
            }
        }
        Ok(())
    }
}

/// A part of a request that is one job.
struct Part<'a, 'r> {
    owner: usize,
    into: Option<&'r mut ReadBuffers<'a>>,
}

impl Part<'_, '_> {
    fn fill(&mut self, payload: &Payload) {
        let mut rest = &payload.data[..];
        for part in self.into.iter_mut().flat_map(|into| into.iter_mut()) {
            let (now, later) = rest.split_at(part.len());
            part.copy_from_slice(now);
            rest = later;
        }
    }
}

/// The jobs of a batch.
struct Plan<'a, 'r> {
    device: &'r NbdDevice,
    jobs: Vec<Job<'r>>,
    /// Of each job.
    parts: Vec<Part<'a, 'r>>,
    /// Requests that a flush afterwards completes.
    flushes: Vec<usize>,
}

impl<'a, 'r> Plan<'a, 'r> {
    fn add(&mut self, owner: usize, operation: &'r mut Operation<'a>) -> Result<()> {
        let has = |flag| self.device.has(flag);
        match operation {
            Operation::Read { offset, into } => {
                let length = into.iter().map(|part| part.len() as u64).sum();
                self.push_into(owner, command::READ, 0, (*offset, length), Some(into));
            }
            Operation::Write {
                offset,
                from,
                persistence,
            } => {
                let flags = self.persist(owner, *persistence);
                self.push_write(owner, flags, *offset, from.iter().copied().collect());
            }
            Operation::Flush => self.flushes.push(owner),
            Operation::Discard(range) => {
                if has(flag::SEND_TRIM) {
                    self.push(owner, command::TRIM, 0, *range);
                }
            }
            Operation::WriteZeroes(range, zeroing) => {
                return self.add_zeroes(owner, *range, *zeroing);
            }
            Operation::Assign(range) => {
                if self.device.sessions.agreement().contexts.assign.is_none() {
                    return Err(unsupported("the server assigns no space"));
                }
                self.push(owner, command::EXTANT_ASSIGN, 0, *range);
            }
        }
        Ok(())
    }

    fn add_zeroes(&mut self, owner: usize, range: ByteRange, zeroing: Zeroing) -> Result<()> {
        let has = |flag| self.device.has(flag);
        let has_extension = self.device.sessions.agreement().contexts.assign.is_some();
        let command = match zeroing.space {
            ZeroedSpace::Written if has_extension => Some(command::EXTANT_WRITE_ZEROES),
            ZeroedSpace::Written => None,
            ZeroedSpace::MayUnmap | ZeroedSpace::Allocated => {
                has(flag::SEND_WRITE_ZEROES).then_some(command::WRITE_ZEROES)
            }
        };
        let is_fast = zeroing.speed == Speed::OnlyIfFast;
        match command {
            Some(command) if !is_fast || has(flag::SEND_FAST_ZERO) => {
                let mut flags = self.persist(owner, zeroing.persistence);
                if is_fast {
                    flags |= command_flag::FAST_ZERO;
                }
                if zeroing.space == ZeroedSpace::Allocated {
                    flags |= command_flag::NO_HOLE;
                }
                self.push(owner, command, flags, range);
            }
            _ if is_fast => return Err(unsupported("zeros would have to be sent as data")),
            _ => {
                let flags = self.persist(owner, zeroing.persistence);
                let most = limits::maximum(self.device.sessions.agreement()).min(ZEROES_BYTES_MAX);
                let block = u64::from(self.device.geometry.logical_block);
                for piece in range.chunks(most / block * block) {
                    self.push_write(owner, flags, piece.start(), zeroes(piece.len()));
                }
            }
        }
        Ok(())
    }

    /// The flags of a request, which a flush completes if the server has no FUA.
    fn persist(&mut self, owner: usize, persistence: Persistence) -> u16 {
        match persistence {
            Persistence::Cached => 0,
            Persistence::Fua if self.device.has(flag::SEND_FUA) => command_flag::FUA,
            Persistence::Fua => {
                self.flushes.push(owner);
                0
            }
        }
    }

    fn push(&mut self, owner: usize, command: u16, flags: u16, range: ByteRange) {
        self.push_into(owner, command, flags, (range.start(), range.len()), None);
    }

    fn push_into(
        &mut self,
        owner: usize,
        command: u16,
        flags: u16,
        (offset, length): (u64, u64),
        into: Option<&'r mut ReadBuffers<'a>>,
    ) {
        self.jobs.push(Job {
            command,
            flags,
            offset,
            length,
            from: WriteBuffers::new(),
        });
        self.parts.push(Part { owner, into });
    }

    fn push_write(&mut self, owner: usize, flags: u16, offset: u64, from: WriteBuffers<'r>) {
        self.jobs.push(Job {
            command: command::WRITE,
            flags,
            offset,
            length: from.iter().map(|part| part.len() as u64).sum(),
            from,
        });
        self.parts.push(Part { owner, into: None });
    }
}

fn range_of(job: &Job<'_>) -> ByteRange {
    ByteRange::new(job.offset, job.offset + job.length)
}

fn unsupported(detail: &str) -> Error {
    Error::new(ErrorKind::Unsupported).detail(detail)
}

impl Device for NbdDevice {
    fn geometry(&self) -> Geometry {
        Geometry {
            size: self.size.load(Ordering::Relaxed),
            ..self.geometry.clone()
        }
    }

    /// Asks the server on a connection of its own.
    fn refresh(&self) -> Result<u64> {
        let size = self.sessions.query_size();
        let size = size.map_err(|error| error.during("size").at(&self.name))?;
        let block = u64::from(self.geometry.logical_block);
        let size = size / block * block;
        self.size.store(size, Ordering::Relaxed);
        Ok(size)
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        submit_within(&self.geometry(), requests, |requests| {
            self.execute(requests)
        });
    }

    /// By `base:allocation`.
    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()> {
        let admitted = self.geometry().admit_status(range);
        admitted.map_err(|error| error.at(&self.name))?;
        if !self.geometry.features.contains(Features::STATUS) {
            if !range.is_empty() {
                let _ = visit(range, RangeStatus::Data);
            }
            return Ok(());
        }
        self.visit_status(range, |payload| payload.allocation, &mut |part, flags| {
            let reads_zeros = flags & u64::from(status::NBD_STATE_ZERO) != 0;
            let is_hole = flags & u64::from(status::NBD_STATE_HOLE) != 0;
            let state = match (reads_zeros, is_hole) {
                (true, true) => RangeStatus::Hole,
                (true, false) => RangeStatus::Zero,
                // A hole with undefined contents is data for all who must not lose any.
                (false, _) => RangeStatus::Data,
            };
            visit(part, state)
        })
    }

    /// By `extant:state`, else by `base:allocation`.
    fn extents(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        if !self.geometry.features.contains(Features::EXTENTS) {
            return self.status(range, &mut |logical, status| {
                visit(Extent {
                    logical,
                    physical: None,
                    state: match status {
                        RangeStatus::Hole => ExtentState::Hole,
                        RangeStatus::Zero => ExtentState::Unwritten,
                        RangeStatus::Data => ExtentState::Written,
                    },
                    flags: ExtentFlags::empty(),
                })
            });
        }
        let admitted = self.geometry().admit_status(range);
        admitted.map_err(|error| error.at(&self.name))?;
        self.visit_status(range, |payload| payload.state, &mut |logical, flags| {
            let (state, flags) = status::extent_state(flags);
            visit(Extent {
                logical,
                physical: None,
                state,
                flags,
            })
        })
    }

    /// One layer, the map of the server by `extant:state`; the protocol carries none below it.
    fn visit_layers(
        &self,
        at: LayerRange,
        visit: &mut LayerVisitor<'_>,
    ) -> Result<ControlFlow<()>> {
        let mut flow = ControlFlow::Continue(());
        if self.geometry.features.contains(Features::EXTENTS) {
            let name = self.name.to_string_lossy();
            self.extents(at.range, &mut |extent| {
                flow = visit(&at.extent(&name, extent));
                flow
            })?;
        }
        Ok(flow)
    }
}

impl fmt::Debug for NbdDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.size.load(Ordering::Relaxed);
        write!(f, "NbdDevice({}, {size} bytes)", self.name.display())
    }
}

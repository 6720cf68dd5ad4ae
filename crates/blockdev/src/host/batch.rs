//! State machine of a batch: the next call, and the consequences of a call's result.
//!
//! Model: requests wait as jobs; a job becomes a call with a *flight* that records the purpose of
//! the call; the end of a call completes its owner (a request of the batch), or leads to another
//! call: the rest of a short one, or the next method after a refusal.
//!
//! Order: assigns run one at a time and in their order, since concurrent ones would wait for the
//! same inode and interleave their extents; everything else runs concurrently. One sync serves all
//! flushes. A second one, after all else, serves the zeros that must be durable and were not
//! written as data.

mod space;
mod transfer;

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};

use extant_space::trace::{Level, Timer};
use extant_space::{ByteRange, Error, Result, ended};
use extant_sys::call::{Call, ReadParts, WriteParts};
use extant_sys::queue::CallQueue;

use super::HostDevice;
use super::limits::TRANSFER;
use super::offload::OffloadMethod;
use super::opened_file::FileKind;
use super::syncs::{InFlight, Success};
use crate::foreground::{AssignThrottle, ForegroundRequest};
use crate::{Operation, Persistence};
use space::Purpose;

/// Pending work of a request that has no call yet.
enum Job<'s> {
    Read {
        offset: u64,
        parts: ReadParts<'s>,
    },
    Write {
        offset: u64,
        parts: WriteParts<'s>,
        persistence: Persistence,
    },
    Space {
        range: ByteRange,
        methods: &'static [OffloadMethod],
        purpose: Purpose,
    },
    /// Zeros as data.
    Zeroes {
        range: ByteRange,
        persistence: Persistence,
    },
}

/// Purpose of a call in flight.
enum Flight<'s> {
    Transfer {
        owner: usize,
        range: ByteRange,
        /// Destination of the data of a read through a bounce buffer.
        bounced: Option<ReadParts<'s>>,
    },
    Space {
        owner: usize,
        range: ByteRange,
        method: OffloadMethod,
        /// The methods after it.
        rest: &'static [OffloadMethod],
        purpose: Purpose,
    },
    Sync {
        owners: Vec<usize>,
    },
}

/// A call in flight, registered with the tracker of syncs.
struct Flying<'s> {
    flight: Flight<'s>,
    /// Assigns are no visits.
    _request: Option<ForegroundRequest<'s>>,
    /// Of syncs and durable writes.
    sync: Option<InFlight<'s>>,
    /// Of syncs and changes of space.
    timer: Timer,
}

/// Requests of one batch, each known by its number.
pub(super) struct Batch<'s> {
    device: &'s HostDevice,
    waiting: VecDeque<(usize, Job<'s>)>,
    assigns: VecDeque<(usize, ByteRange)>,
    is_assigning: bool,
    /// Of the assigns, if there are any.
    throttle: Option<AssignThrottle<'s>>,
    flushes: Vec<usize>,
    /// Zeroed, not yet durable, and to be.
    unsynced: Vec<usize>,
    /// Calls to be made again, or for their rest.
    again: Vec<(Flight<'s>, Call<'s>)>,
    flights: Vec<Option<Flying<'s>>>,
    /// Owners of successful syncs and durable writes that overlap unfinished ones, and the last of
    /// those.
    unsettled: Vec<usize>,
    settled_by: Option<Success>,
    free: Vec<usize>,
    results: Vec<Result<()>>,
}

impl<'s> Batch<'s> {
    pub(super) fn new(device: &'s HostDevice) -> Self {
        Self {
            device,
            waiting: VecDeque::new(),
            assigns: VecDeque::new(),
            is_assigning: false,
            throttle: None,
            flushes: Vec::new(),
            unsynced: Vec::new(),
            again: Vec::new(),
            flights: Vec::new(),
            unsettled: Vec::new(),
            settled_by: None,
            free: Vec::new(),
            results: Vec::new(),
        }
    }

    /// Adds the next request, which was admitted and fits the limits.
    pub(super) fn add(&mut self, operation: &'s mut Operation<'_>) {
        let owner = self.results.len();
        self.results.push(Ok(()));
        let methods = OffloadMethod::of(operation, self.device.kind);
        let job = match operation {
            Operation::Flush => return self.flushes.push(owner),
            Operation::Assign(range) => {
                let foreground = &self.device.foreground;
                self.throttle
                    .get_or_insert_with(|| foreground.begin_assign());
                return self.assigns.push_back((owner, *range));
            }
            Operation::Read { offset, into } => Job::Read {
                offset: *offset,
                parts: into
                    .iter_mut()
                    .filter(|part| !part.is_empty())
                    .map(|part| IoSliceMut::new(part))
                    .collect(),
            },
            Operation::Write {
                offset,
                from,
                persistence,
            } => Job::Write {
                offset: *offset,
                parts: from
                    .iter()
                    .filter(|part| !part.is_empty())
                    .map(|part| IoSlice::new(part))
                    .collect(),
                persistence: *persistence,
            },
            Operation::Discard(range) => Job::Space {
                range: *range,
                methods,
                purpose: Purpose::Discard,
            },
            Operation::WriteZeroes(range, zeroing) => Job::Space {
                range: *range,
                methods,
                purpose: Purpose::Zero(*zeroing),
            },
        };
        self.waiting.push_back((owner, job));
    }

    /// It probably needs one call only.
    pub(super) fn is_single_call(&self) -> bool {
        let is_transfer = |job: &Job<'_>| matches!(job, Job::Read { .. } | Job::Write { .. });
        match (self.waiting.len(), self.assigns.len(), self.flushes.len()) {
            (1, 0, 0) => is_transfer(&self.waiting[0].1),
            // Its pieces are made one after the other. A ring has a thread of the kernel make each
            // of them.
            (0, 1, 0) => true,
            (0, 0, flushes) => flushes > 0,
            _ => false,
        }
    }

    /// It is of nothing but direct writes to a file.
    pub(super) fn writes_directly(&self) -> bool {
        self.device.kind == FileKind::File
            && self.device.direct.is_some()
            && self.assigns.is_empty()
            && self.flushes.is_empty()
            && self
                .waiting
                .iter()
                .all(|(_, job)| matches!(job, Job::Write { .. }))
    }

    /// Number of concurrent calls.
    pub(super) fn calls_at_most(&self) -> usize {
        let calls_of = |job: &Job<'_>| match job {
            // Without a way it is written as data.
            Job::Space {
                range,
                methods,
                purpose: Purpose::Zero(zeroing),
            } if self
                .first_method(methods, Purpose::Zero(*zeroing))
                .is_none() =>
            {
                range.len().div_ceil(TRANSFER as u64) as usize
            }
            _ => 1,
        };
        let waiting: usize = self.waiting.iter().map(|(_, job)| calls_of(job)).sum();
        waiting + usize::from(!self.assigns.is_empty()) + usize::from(!self.flushes.is_empty())
    }

    /// The result of each request, in the order of addition.
    pub(super) fn into_results(mut self) -> Vec<Result<()>> {
        let is_done = self.waiting.is_empty() && self.again.is_empty() && !self.is_flying();
        assert!(is_done, "a batch ends when nothing waits");
        if let Some(success) = self.settled_by
            && let Err(errno) = self.device.syncs.settle(success)
        {
            for owner in std::mem::take(&mut self.unsettled) {
                self.fail(owner, HostDevice::sync_error(errno));
            }
        }
        self.results
    }

    fn fail(&mut self, owner: usize, error: Error) {
        let result = &mut self.results[owner];
        if result.is_ok() {
            *result = Err(error);
        }
    }

    fn fly(&mut self, flight: Flight<'s>, call: Call<'s>) -> (usize, Call<'s>) {
        let tag = self.free.pop().unwrap_or_else(|| {
            self.flights.push(None);
            self.flights.len() - 1
        });
        let is_assign = matches!(
            flight,
            Flight::Space {
                purpose: Purpose::Assign,
                ..
            }
        );
        let request = (!is_assign).then(|| self.device.foreground.begin_request());
        let tells = self.device.tells_of_write_back(&call);
        self.flights[tag] = Some(Flying {
            flight,
            _request: request,
            sync: tells.then(|| self.device.syncs.begin()),
            timer: Timer::start(Level::DEBUG),
        });
        (tag, call)
    }

    /// A sync or durable write of `owners` succeeded, and overlapping ones may not have ended.
    fn succeeded(&mut self, owners: &[usize]) {
        let syncs = &self.device.syncs;
        let success = syncs.success();
        if !syncs.is_settled(success) {
            self.unsettled.extend(owners);
            self.settled_by = self.settled_by.max(Some(success));
        } else if let Err(errno) = syncs.settle(success) {
            for owner in owners {
                self.fail(*owner, HostDevice::sync_error(errno));
            }
        }
    }

    fn is_flying(&self) -> bool {
        self.free.len() < self.flights.len()
    }

    /// The next piece of the assigns; the rest of a failed one is not tried.
    fn next_assign(&mut self) -> Option<(Flight<'s>, Call<'s>)> {
        let is_alone = self.waiting.is_empty() && !self.is_flying();
        while let Some((owner, mut rest)) = self.assigns.pop_front() {
            if self.results[owner].is_err() {
                continue;
            }
            let throttle = self.throttle.as_mut().expect("assigns have a throttle");
            // Visits of this batch cannot end meanwhile.
            if is_alone {
                throttle.yield_to_foreground();
            }
            let piece = throttle.take_chunk(&mut rest);
            if !rest.is_empty() {
                self.assigns.push_front((owner, rest));
            }
            let methods = OffloadMethod::of(&Operation::Assign(piece), self.device.kind);
            let started = self.change_space(owner, piece, methods, Purpose::Assign);
            if started.is_some() {
                return started;
            }
        }
        None
    }

    /// The call for a job; none when the job is over, or has become another.
    fn start(&mut self, owner: usize, job: Job<'s>) -> Option<(Flight<'s>, Call<'s>)> {
        let result = match job {
            Job::Read { offset, parts } => self.read(owner, offset, parts),
            Job::Write {
                offset,
                parts,
                persistence,
            } => self.write(owner, offset, parts, persistence),
            Job::Space {
                range,
                methods,
                purpose,
            } => return self.change_space(owner, range, methods, purpose),
            Job::Zeroes { range, persistence } => {
                return self.write_zeroes(owner, range, persistence);
            }
        };
        result
            .map_err(|source| {
                let error = Error::from(source).detail("no memory to align the data in");
                self.fail(owner, error);
            })
            .ok()
    }
}

impl<'s> CallQueue<'s> for Batch<'s> {
    fn next(&mut self) -> Option<(usize, Call<'s>)> {
        if let Some((flight, call)) = self.again.pop() {
            return Some(self.fly(flight, call));
        }
        if !self.is_assigning
            && let Some((flight, call)) = self.next_assign()
        {
            self.is_assigning = true;
            return Some(self.fly(flight, call));
        }
        while let Some((owner, job)) = self.waiting.pop_front() {
            if let Some((flight, call)) = self.start(owner, job) {
                return Some(self.fly(flight, call));
            }
        }
        let mut owners = std::mem::take(&mut self.flushes);
        if owners.is_empty() && !self.is_flying() {
            owners = std::mem::take(&mut self.unsynced);
        }
        (!owners.is_empty()).then(|| self.fly(Flight::Sync { owners }, Call::SyncData))
    }

    fn ended(&mut self, tag: usize, call: Call<'s>, result: io::Result<usize>) {
        let Flying {
            flight,
            _request,
            sync,
            timer,
        } = self.flights[tag]
            .take()
            .expect("a call that was handed out");
        self.free.push(tag);
        if let (Some(_), Err(error)) = (&sync, &result)
            && (matches!(flight, Flight::Sync { .. }) || error.raw_os_error() == Some(libc::EIO))
            && !is_interrupted(error)
        {
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            self.device.syncs.fail(errno);
        }
        let is_sync = sync.is_some();
        drop(sync);
        if let Err(error) = &result
            && is_interrupted(error)
        {
            return self.again.push((flight, call));
        }
        match flight {
            Flight::Transfer {
                owner,
                range,
                bounced,
            } => {
                if is_sync && result.is_ok() {
                    self.succeeded(&[owner]);
                }
                self.transferred((owner, range, bounced), call, result);
            }
            Flight::Space {
                owner,
                range,
                method,
                rest,
                purpose,
            } => {
                ended!(
                    timer,
                    result,
                    DEBUG,
                    purpose.name(),
                    path = %self.device.path.display(),
                    method = ?method,
                    start_bytes = range.start(),
                    length_bytes = range.len()
                );
                self.changed_space((owner, range, method), rest, purpose, result);
            }
            // All owners get the first failure.
            Flight::Sync { owners } => {
                ended!(timer, result, DEBUG, "flush", path = %self.device.path.display());
                self.succeeded(&owners);
            }
        }
    }
}

pub(super) fn is_interrupted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN))
}

#[cfg(test)]
mod tests;

//! The plan of a batch: requests to the file below, and the guest requests that they belong to.
//!
//! Adjacent parts are merged, also across requests: small sequential requests of a client become
//! large ones.

use std::mem;

use extant_blockdev::{Device, Operation, Persistence, ReadBuffers, Request, WriteBuffers};
use extant_space::{Error, Result};
use smallvec::{SmallVec, smallvec};

/// Joined parts have no more bytes, and no more buffers.
const JOINED_BYTES_MAX: u64 = 1 << 20;
const JOINED_BUFFERS_MAX: usize = 64;

/// Cuts the buffers of a read.
pub(super) struct ReadCursor<'s> {
    rest: Box<dyn Iterator<Item = &'s mut [u8]> + 's>,
    part: &'s mut [u8],
}

impl<'s> ReadCursor<'s> {
    pub(super) fn new(into: &'s mut ReadBuffers<'_>) -> Self {
        let mut rest = into.iter_mut().map(|part| &mut **part);
        let part = rest.next().unwrap_or_default();
        let rest = Box::new(rest);
        Self { rest, part }
    }

    /// The next `length` bytes, which there are.
    pub(super) fn take(&mut self, length: u64) -> ReadBuffers<'s> {
        let mut taken = ReadBuffers::new();
        let mut left = length as usize;
        while left > 0 {
            if self.part.is_empty() {
                self.part = self.rest.next().expect("as many bytes as the request has");
                continue;
            }
            let most = left.min(self.part.len());
            let (now, later) = mem::take(&mut self.part).split_at_mut(most);
            left -= now.len();
            taken.push(now);
            self.part = later;
        }
        taken
    }
}

/// Cuts the buffers of a write.
pub(super) struct WriteCursor<'s> {
    rest: std::slice::Iter<'s, &'s [u8]>,
    part: &'s [u8],
}

impl<'s> WriteCursor<'s> {
    pub(super) fn new(from: &'s [&'s [u8]]) -> Self {
        let mut rest = from.iter();
        let part = rest.next().copied().unwrap_or_default();
        Self { rest, part }
    }

    /// The next `length` bytes, which there are.
    pub(super) fn take(&mut self, length: u64) -> WriteBuffers<'s> {
        let mut taken = WriteBuffers::new();
        let mut left = length as usize;
        while left > 0 {
            if self.part.is_empty() {
                self.part = self.rest.next().expect("as many bytes as the request has");
                continue;
            }
            let (now, later) = self.part.split_at(left.min(self.part.len()));
            left -= now.len();
            taken.push(now);
            self.part = later;
        }
        taken
    }
}

type Owners = SmallVec<[usize; 2]>;

/// DeviceRequests for one device, in the order of arrival.
#[derive(Default)]
pub(super) struct DeviceRequests<'s> {
    requests: Vec<Request<'s>>,
    /// The waiter of each request.
    owners: Vec<Owners>,
    /// The end of the last one, and its bytes.
    end: u64,
    last_bytes: u64,
}

impl<'s> DeviceRequests<'s> {
    pub(super) fn read(&mut self, owner: usize, offset: u64, length: u64, parts: ReadBuffers<'s>) {
        if self.joins(offset, length, parts.len())
            && let Some(Operation::Read { into, .. }) = self.last()
        {
            into.extend(parts);
            return self.join(owner, length);
        }
        let into = parts;
        self.push(owner, offset, length, Operation::Read { offset, into });
    }

    pub(super) fn write(
        &mut self,
        owner: usize,
        offset: u64,
        length: u64,
        parts: WriteBuffers<'s>,
        persistence: Persistence,
    ) {
        if self.joins(offset, length, parts.len())
            && let Some(Operation::Write {
                from,
                persistence: same,
                ..
            }) = self.last()
            && *same == persistence
        {
            from.extend(parts);
            return self.join(owner, length);
        }
        let from = parts;
        self.push(
            owner,
            offset,
            length,
            Operation::Write {
                offset,
                from,
                persistence,
            },
        );
    }

    /// Anything else, which is never joined.
    pub(super) fn other(&mut self, owner: usize, operation: Operation<'s>) {
        self.push(owner, u64::MAX, 0, operation);
    }

    /// Runs all of them on `device`; calls `note` for every failure.
    pub(super) fn run(self, device: &(impl Device + ?Sized), note: &mut dyn FnMut(usize, Error)) {
        let Self {
            mut requests,
            owners,
            ..
        } = self;
        if requests.is_empty() {
            return;
        }
        device.submit(&mut requests);
        for (request, owners) in requests.into_iter().zip(owners) {
            if let Err(error) = request.into_result() {
                match &owners[..] {
                    [owner] => note(*owner, error),
                    several => several.iter().for_each(|owner| note(*owner, again(&error))),
                }
            }
        }
    }

    fn joins(&self, offset: u64, length: u64, buffers: usize) -> bool {
        let Some(last) = self.requests.last() else {
            return false;
        };
        let there = match &last.operation {
            Operation::Read { into, .. } => into.len(),
            Operation::Write { from, .. } => from.len(),
            _ => return false,
        };
        self.end == offset
            && self.last_bytes + length <= JOINED_BYTES_MAX
            && there + buffers <= JOINED_BUFFERS_MAX
    }

    fn last(&mut self) -> Option<&mut Operation<'s>> {
        self.requests
            .last_mut()
            .map(|request| &mut request.operation)
    }

    fn join(&mut self, owner: usize, length: u64) {
        self.end += length;
        self.last_bytes += length;
        let owners = self.owners.last_mut().expect("one for each request");
        if owners.last() != Some(&owner) {
            owners.push(owner);
        }
    }

    fn push(&mut self, owner: usize, offset: u64, length: u64, operation: Operation<'s>) {
        self.end = offset.saturating_add(length);
        self.last_bytes = length;
        self.requests.push(Request::new(operation));
        self.owners.push(smallvec![owner]);
    }
}

/// The same error for another request.
pub(super) fn again(error: &Error) -> Error {
    Error::caused_by(error.clone())
}

/// Notes for each request of a batch whether a part of it has failed.
pub(super) fn first_error(results: &mut [Result<()>], owner: usize, error: Error) {
    if results[owner].is_ok() {
        results[owner] = Err(error);
    }
}

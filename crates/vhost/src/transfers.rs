//! The requests of a ring, as a stream of transfers of its device.
//!
//! A read or write becomes transfers of at most 1 MiB. A device that takes shared memory moves
//! their data from and to the guest's memory; else, and where that is not aligned for the device,
//! they have buffers of their own and the data is copied (docs/internals/vhost.md, "Memory"). The
//! number of transfers and buffers bounds the memory of a queue: requests wait in the ring while
//! all are in use.
//!
//! Other requests are slow. One that arrives alone runs at once; else it is passed to a thread, so
//! that transfers do not wait for it.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use extant_blockdev::{Transfer, TransferKind, TransferMemory, TransferStream};
use extant_space::Result;
use extant_sys::buffer::AlignedBuffer;
use extant_sys::polling::Polling;
use extant_sys::shared::SharedMemory;
use smallvec::SmallVec;
use vm_memory::{Bytes, GuestAddressSpace};

use crate::context::Context;
use crate::request::{Action, Broken, Request, Status};

/// Buffers of a queue: many small ones and a few large ones. Pages are allocated on first use.
const SMALL_BYTES: usize = 32 << 10;
const SMALL_COUNT: usize = 256;
const LARGE_BYTES: usize = 1 << 20;
const LARGE_COUNT: usize = 8;
/// Transfers with the guest's memory at a time.
const SHARED_COUNT: usize = 256;
/// Completions of transfers that ended as they were started, such as reads of holes, until the
/// driver is called.
const UNSIGNALLED_MAX: u32 = 32;
/// The device is asked to watch for kicks while transfers are in flight if the next one is expected
/// to take longer to end: a kick costs both sides a system call.
const WATCH_AFTER: Duration = Duration::from_micros(30);
/// Checks of the ring between two yields of the processor, each of which is a system call: about a
/// microsecond.
const CHECKS_PER_YIELD: u32 = 16;

/// Passes slow requests to other threads.
pub(crate) type Delegate<'a> = &'a dyn Fn(Request);

pub(crate) struct Transfers<'a> {
    context: &'a Context,
    delegate: Delegate<'a>,
    slots: Vec<Slot>,
    /// By kind of slot: those that are free, and how many there are.
    free: [Vec<usize>; 3],
    counts: [usize; 3],
    /// Of the memory that transfers may share with the guest, as the device says.
    shared_alignment: Option<usize>,
    active: Vec<Option<Active>>,
    free_active: Vec<usize>,
    /// The request whose transfers are being started.
    current: Option<usize>,
    in_flight: usize,
    /// The transfer that the last call of `next` returned.
    latest: Option<usize>,
    /// Some ended asynchronously: the driver is called before the next one is started.
    is_signal_due: bool,
    unsignalled: u32,
    polling: Polling,
    /// Moving average of the time of a transfer, by those of which the time is taken: one at a
    /// time.
    latency: Duration,
    timed: Option<(usize, Instant)>,
    /// The driver was asked to kick.
    is_armed: bool,
}

/// The memory of a transfer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SlotKind {
    Small,
    Large,
    /// The guest's.
    Shared,
}

impl SlotKind {
    fn count_max(self) -> usize {
        match self {
            Self::Small => SMALL_COUNT,
            Self::Large => LARGE_COUNT,
            Self::Shared => SHARED_COUNT,
        }
    }

    /// Most bytes of a transfer.
    fn capacity(self) -> usize {
        match self {
            Self::Small => SMALL_BYTES,
            Self::Large | Self::Shared => LARGE_BYTES,
        }
    }
}

/// A buffer, and the transfer that uses it.
struct Slot {
    kind: SlotKind,
    /// `None` while it is in flight, and of memory that is the guest's.
    buffer: Option<AlignedBuffer>,
    active: usize,
    /// First byte of the request's data.
    start: u64,
}

/// A read or write in flight.
struct Active {
    request: Request,
    kind: TransferKind,
    offset: u64,
    /// Bytes of which the transfers were started.
    started: u64,
    in_flight: usize,
    has_failed: bool,
}

impl<'a> Transfers<'a> {
    pub(crate) fn new(context: &'a Context, delegate: Delegate<'a>) -> Self {
        Self {
            context,
            delegate,
            slots: Vec::new(),
            free: Default::default(),
            counts: [0; 3],
            shared_alignment: None,
            active: Vec::new(),
            free_active: Vec::new(),
            current: None,
            in_flight: 0,
            latest: None,
            is_signal_due: false,
            unsignalled: 0,
            polling: Polling::default(),
            latency: Duration::ZERO,
            timed: None,
            is_armed: false,
        }
    }

    /// Transfers share memory with the guest at this alignment; `None`: they do not.
    pub(crate) fn share_memory(&mut self, alignment: Option<usize>) {
        self.shared_alignment = alignment;
    }

    /// Starts a request that was taken from the ring.
    fn begin(&mut self, request: Request) {
        let (kind, offset) = match request.action {
            Action::Read(offset) => (TransferKind::Read, offset),
            Action::Write(offset) => (TransferKind::Write, offset),
            Action::Refuse(_) | Action::Identify => return self.answer(request),
            _ => return self.run_slow(request),
        };
        let active = Active {
            request,
            kind,
            offset,
            started: 0,
            in_flight: 0,
            has_failed: false,
        };
        let at = match self.free_active.pop() {
            Some(at) => {
                self.active[at] = Some(active);
                at
            }
            None => {
                self.active.push(Some(active));
                self.active.len() - 1
            }
        };
        self.current = Some(at);
    }

    fn answer(&mut self, request: Request) {
        self.context.answer(&request);
        self.unsignalled += 1;
    }

    fn run_slow(&mut self, request: Request) {
        if self.in_flight == 0 && !self.context.ring.has_next() {
            self.context.run_slow(&request);
            self.unsignalled += 1;
        } else {
            (self.delegate)(request);
        }
    }

    /// The next transfer of the current request: none if all were started, or no buffer is free.
    fn start(&mut self) -> Option<Transfer> {
        let at = self.current?;
        let active = self.active[at].as_ref().expect("the current one");
        let left = active.request.length - active.started;
        if left == 0 || active.has_failed {
            self.current = None;
            self.finish(at);
            return None;
        }
        let length = left.min(LARGE_BYTES as u64) as usize;
        let (slot, length, memory) = match self.shared(at, length) {
            Some(shared) => {
                let slot = self.reserve(SlotKind::Shared)?;
                (slot, length, TransferMemory::Shared(shared))
            }
            None => {
                let kind = if length > SMALL_BYTES {
                    SlotKind::Large
                } else {
                    SlotKind::Small
                };
                let slot = self.reserve(kind)?;
                let buffer = self.slots[slot].buffer.take();
                let mut buffer = buffer.expect("the slot is free");
                if self
                    .copy_written(at, &mut buffer.as_mut_slice()[..length])
                    .is_none()
                {
                    self.release(slot, Some(buffer));
                    self.active[at]
                        .as_mut()
                        .expect("the current one")
                        .has_failed = true;
                    return self.start();
                }
                (slot, length, buffer.into())
            }
        };
        let active = self.active[at].as_mut().expect("the current one");
        let start = active.started;
        active.started += length as u64;
        active.in_flight += 1;
        let transfer = Transfer {
            tag: slot,
            kind: active.kind,
            offset: active.offset + start,
            length,
            memory,
        };
        let slot = &mut self.slots[slot];
        slot.active = at;
        slot.start = start;
        self.timed
            .get_or_insert_with(|| (transfer.tag, Instant::now()));
        self.in_flight += 1;
        if active.started == active.request.length {
            self.current = None;
        }
        Some(transfer)
    }

    /// The next `length` bytes of a request, if a transfer may name the memory they are in.
    fn shared(&self, at: usize, length: usize) -> Option<SharedMemory> {
        let alignment = self.shared_alignment?;
        let active = self.active[at].as_ref().expect("the current one");
        let mut ranges = SmallVec::<[_; 1]>::new();
        active
            .request
            .copy(active.started, length, |address, range| {
                ranges.push((address, range.len()));
                Some(())
            })?;
        let memory = self.context.ring.memory().memory().into_inner();
        SharedMemory::new(memory, ranges).filter(|shared| shared.is_aligned(alignment))
    }

    /// Copies the next bytes of a write; of a read there are none.
    fn copy_written(&self, at: usize, bytes: &mut [u8]) -> Option<()> {
        let active = self.active[at].as_ref().expect("the current one");
        if active.kind == TransferKind::Read {
            return Some(());
        }
        let memory = self.context.ring.memory().memory();
        active
            .request
            .copy(active.started, bytes.len(), |address, range| {
                memory.read_slice(&mut bytes[range], address).ok()
            })
    }

    /// Completes a request if none of its transfers is in flight or still to be started.
    fn finish(&mut self, at: usize) {
        let active = self.active[at].as_ref().expect("it is in flight");
        if active.in_flight > 0 || self.current == Some(at) {
            return;
        }
        let active = self.active[at].take().expect("checked above");
        self.free_active.push(at);
        let request = active.request;
        if active.has_failed {
            self.context.complete(&request, Status::Failed);
        } else if active.kind == TransferKind::Write && self.context.is_write_through {
            // The driver does not know of a cache that it would have to flush.
            return self.run_slow(Request {
                action: Action::Flush,
                ..request
            });
        } else {
            self.context.complete(&request, Status::Done);
        }
        self.unsignalled += 1;
    }

    fn reserve(&mut self, kind: SlotKind) -> Option<usize> {
        if let Some(slot) = self.free[kind as usize].pop() {
            return Some(slot);
        }
        let count = &mut self.counts[kind as usize];
        if *count == kind.count_max() {
            return None;
        }
        let buffer = match kind {
            SlotKind::Shared => None,
            // Without memory for another buffer, one of those in flight is waited for.
            _ => Some(AlignedBuffer::new(kind.capacity()).ok()?),
        };
        *count += 1;
        self.slots.push(Slot {
            kind,
            buffer,
            active: 0,
            start: 0,
        });
        Some(self.slots.len() - 1)
    }

    fn release(&mut self, slot: usize, buffer: Option<AlignedBuffer>) {
        self.slots[slot].buffer = buffer;
        self.free[self.slots[slot].kind as usize].push(slot);
    }

    fn signal(&mut self) {
        self.context.ring.signal();
        self.is_signal_due = false;
        self.unsignalled = 0;
    }

    /// Waits until there is a request, or the ring is stopped: nothing is in flight.
    fn wait(&mut self) {
        let ring = &self.context.ring;
        let found = self.polling.poll(|| {
            for _ in 0..CHECKS_PER_YIELD {
                if ring.is_stopping() || ring.has_next() {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            Err(std::io::ErrorKind::WouldBlock.into())
        });
        if found.is_some() || ring.arm() {
            return;
        }
        if !ring.is_stopping() {
            let started = Instant::now();
            let waited = ring.wait();
            self.polling.adapt(started.elapsed());
            self.check(waited);
        }
        ring.disarm();
    }

    fn check(&self, result: std::result::Result<(), Broken>) {
        if let Err(reason) = result {
            self.context.break_down(reason);
        }
    }
}

impl TransferStream for Transfers<'_> {
    /// Blocks only while nothing is in flight.
    fn next(&mut self) -> Option<Transfer> {
        self.latest = None;
        if std::mem::take(&mut self.is_armed) {
            self.check(self.context.ring.clear_events());
            self.context.ring.disarm();
        }
        if self.is_signal_due || self.unsignalled >= UNSIGNALLED_MAX {
            self.signal();
        }
        loop {
            if let Some(transfer) = self.start() {
                self.latest = Some(transfer.tag);
                return Some(transfer);
            }
            let context = self.context;
            if let (Some(at), 0) = (self.current, self.in_flight) {
                // Without memory for a single buffer.
                self.active[at].as_mut().expect("current").has_failed = true;
                continue;
            }
            if self.current.is_none() && !context.ring.is_stopping() {
                match context.ring.take(&context.volume) {
                    Ok(Some(request)) => {
                        self.begin(request);
                        continue;
                    }
                    Ok(None) => {}
                    Err(reason) => context.break_down(reason),
                }
            }
            self.signal();
            if self.in_flight > 0 {
                let is_slow = self.latency > WATCH_AFTER * self.in_flight as u32;
                if self.current.is_none() && is_slow && !context.ring.is_stopping() {
                    if context.ring.arm() {
                        context.ring.disarm();
                        continue;
                    }
                    self.is_armed = true;
                }
                return None;
            }
            if context.ring.is_stopping() {
                return None;
            }
            self.wait();
        }
    }

    fn ended(&mut self, transfer: Transfer, result: Result<()>) {
        let slot = &self.slots[transfer.tag];
        let (at, start) = (slot.active, slot.start);
        if let Some((_, started)) = self.timed.take_if(|(tag, _)| *tag == transfer.tag) {
            self.latency = (7 * self.latency + started.elapsed()) / 8;
        }
        let active = self.active[at].as_mut().expect("it is in flight");
        active.in_flight -= 1;
        self.in_flight -= 1;
        let buffer = transfer.memory.into_own();
        let copied = match (&result, &buffer) {
            (Ok(()), Some(buffer)) if active.kind == TransferKind::Read => {
                let memory = self.context.ring.memory().memory();
                let bytes = buffer.as_slice();
                active
                    .request
                    .copy(start, transfer.length, |address, range| {
                        memory.write_slice(&bytes[range], address).ok()
                    })
            }
            _ => Some(()),
        };
        if let Err(error) = result {
            self.context.report(&error);
            active.has_failed = true;
        }
        active.has_failed |= copied.is_none();
        self.release(transfer.tag, buffer);
        self.is_signal_due |= self.latest != Some(transfer.tag);
        self.finish(at);
    }

    fn input(&self) -> Option<BorrowedFd<'_>> {
        self.is_armed.then(|| self.context.ring.events())
    }
}

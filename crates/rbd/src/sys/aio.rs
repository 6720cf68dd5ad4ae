//! Requests in flight.
//!
//! Model: a request is a box that librbd's callback gets back. The box holds the memory of the
//! request and the list of its parts, which librbd reads until the request has ended, and the
//! [`Flights`] that receive the result. So requests with memory of their own outlive the caller
//! that gives up waiting. Requests on borrowed memory are waited for ([`ImageHandle::run`]).
//!
//! The callback runs on a thread of librbd: it stores the result and wakes the waiter, no more.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use extant_space::{ByteRange, Error, ErrorKind, Result};
use extant_sys::buffer::AlignedBuffer;
use libc::{c_int, iovec};
use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};
use smallvec::SmallVec;

use super::image::ImageHandle;
use super::library::{Handle, Rbd};
use super::text::check;

/// `RBD_WRITE_ZEROES_FLAG_THICK_PROVISION`.
const THICK: c_int = 1;
/// Interval at which a close searches for requests in flight.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

type Parts = SmallVec<[iovec; 1]>;

/// A request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Aio {
    Read { offset: u64 },
    Write { offset: u64 },
    Discard(ByteRange),
    Zeroes { range: ByteRange, thick: bool },
    Flush,
}

/// The memory of a request of its own.
#[derive(Debug)]
pub(crate) enum Memory {
    None,
    /// The first bytes of a buffer.
    Owned(AlignedBuffer, usize),
    /// All bytes.
    Bytes(Vec<u8>),
    /// The first bytes of a buffer that is only read.
    Shared(Arc<AlignedBuffer>, usize),
}

/// A request on borrowed memory.
pub(crate) enum Piece<'p, 'b> {
    Read(u64, &'p mut [&'b mut [u8]]),
    Write(u64, &'p [&'b [u8]]),
    Other(Aio),
}

/// A request that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) tag: usize,
    pub(crate) memory: Memory,
    pub(crate) result: Result<()>,
}

/// Requests in flight together, and their results.
pub(crate) struct Flights {
    state: Mutex<State>,
    changed: Condvar,
    /// Becomes readable when a request has ended.
    event: Option<OwnedFd>,
}

#[derive(Default)]
struct State {
    in_flight: usize,
    ended: Vec<Ended>,
}

struct Flight {
    rbd: &'static Rbd,
    flights: Arc<Flights>,
    image_in_flight: Arc<AtomicUsize>,
    tag: usize,
    /// Bytes that a read returns.
    length: Option<usize>,
    parts: Parts,
    memory: Memory,
}

impl Flights {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            event: None,
        })
    }

    /// With a descriptor that can be polled.
    pub(crate) fn with_event() -> io::Result<Arc<Self>> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            event: Some(event),
        }))
    }

    /// Readable while results wait to be taken.
    pub(crate) fn event(&self) -> Option<BorrowedFd<'_>> {
        self.event.as_ref().map(AsFd::as_fd)
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.state.lock().in_flight
    }

    /// The results since the last call.
    pub(crate) fn take(&self) -> Vec<Ended> {
        if let Some(event) = &self.event {
            // Empty if nothing has ended since.
            let _ = rustix::io::read(event, &mut [0; 8]);
        }
        std::mem::take(&mut self.state.lock().ended)
    }

    /// Waits until a result can be taken, until nothing is in flight, or for `timeout`.
    pub(crate) fn wait(&self, timeout: Duration) {
        let until = Instant::now() + timeout;
        let mut state = self.state.lock();
        while state.ended.is_empty() && state.in_flight > 0 {
            if self.changed.wait_until(&mut state, until).timed_out() {
                return;
            }
        }
    }

    /// Starts a request with memory of its own.
    pub(crate) fn start(
        self: &Arc<Self>,
        image: &ImageHandle,
        tag: usize,
        aio: Aio,
        memory: Memory,
    ) {
        let mut memory = memory;
        let parts: Parts = match &mut memory {
            Memory::None => Parts::new(),
            Memory::Owned(buffer, length) => {
                let bytes = &mut buffer.as_mut_slice()[..*length];
                Parts::from_iter([part(bytes.as_mut_ptr(), bytes.len())])
            }
            Memory::Bytes(bytes) => Parts::from_iter([part(bytes.as_mut_ptr(), bytes.len())]),
            Memory::Shared(buffer, length) => {
                assert!(
                    !matches!(aio, Aio::Read { .. }),
                    "a read changes its memory"
                );
                let bytes = &buffer.as_slice()[..*length];
                Parts::from_iter([part(bytes.as_ptr().cast_mut(), bytes.len())])
            }
        };
        // SAFETY: the parts are in `memory`, which the request keeps until it has ended; it does
        // not move then: it is on the heap, or a mapping of its own.
        unsafe { self.start_parts(image, tag, aio, parts, memory) };
    }

    /// # Safety
    /// The parts are valid until the request has ended, for writing if it is a read.
    unsafe fn start_parts(
        self: &Arc<Self>,
        image: &ImageHandle,
        tag: usize,
        aio: Aio,
        parts: Parts,
        memory: Memory,
    ) {
        let rbd = image.rbd();
        let length = parts.iter().map(|part| part.iov_len).sum();
        let flight = Box::new(Flight {
            rbd,
            flights: Arc::clone(self),
            image_in_flight: Arc::clone(&image.in_flight),
            tag,
            length: matches!(aio, Aio::Read { .. }).then_some(length),
            parts,
            memory,
        });
        self.state.lock().in_flight += 1;
        image.in_flight.fetch_add(1, Ordering::AcqRel);
        let (list, count) = (flight.parts.as_ptr(), flight.parts.len() as c_int);
        let argument = Box::into_raw(flight);
        let mut completion: Handle = ptr::null_mut();
        // SAFETY: image and completion are valid, and list and parts by the contract of this
        // function. The box is given to the callback, or taken back if the call has refused the
        // request and so does not call it.
        unsafe {
            let made =
                (rbd.rbd_aio_create_completion)(argument.cast(), completed, &raw mut completion);
            if made < 0 {
                return Box::from_raw(argument).end(check(made).map(drop));
            }
            let started = match aio {
                Aio::Read { offset } => {
                    (rbd.rbd_aio_readv)(image.raw, list, count, offset, completion)
                }
                Aio::Write { offset } => {
                    (rbd.rbd_aio_writev)(image.raw, list, count, offset, completion)
                }
                Aio::Discard(range) => {
                    (rbd.rbd_aio_discard)(image.raw, range.start(), range.len(), completion)
                }
                Aio::Zeroes { range, thick } => {
                    let flags = if thick { THICK } else { 0 };
                    let bytes = range.len() as usize;
                    (rbd.rbd_aio_write_zeroes)(
                        image.raw,
                        range.start(),
                        bytes,
                        completion,
                        flags,
                        0,
                    )
                }
                Aio::Flush => (rbd.rbd_aio_flush)(image.raw, completion),
            };
            if started < 0 {
                (rbd.rbd_aio_release)(completion);
                Box::from_raw(argument).end(check(started).map(drop));
            }
        }
    }
}

impl Flight {
    fn end(self, result: Result<()>) {
        let Self {
            flights,
            image_in_flight,
            tag,
            memory,
            ..
        } = self;
        {
            let mut state = flights.state.lock();
            state.in_flight -= 1;
            state.ended.push(Ended {
                tag,
                memory,
                result,
            });
            flights.changed.notify_all();
        }
        if let Some(event) = &flights.event {
            // Full only if it is readable already.
            let _ = rustix::io::write(event, &1u64.to_ne_bytes());
        }
        image_in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

/// librbd's callback.
unsafe extern "C" fn completed(completion: Handle, argument: *mut c_void) {
    // SAFETY: the box of `start_parts`, given to this callback alone, once.
    let flight = unsafe { Box::from_raw(argument.cast::<Flight>()) };
    // SAFETY: the completion is valid, and released once, here.
    let value = unsafe {
        let value = (flight.rbd.rbd_aio_get_return_value)(completion);
        (flight.rbd.rbd_aio_release)(completion);
        value
    };
    let result = match flight.length {
        _ if value < 0 => Err(Error::from_errno(-value as i32)),
        Some(length) if value as usize != length => {
            Err(Error::new(ErrorKind::Io).detail(format!("{value} bytes read of {length}")))
        }
        _ => Ok(()),
    };
    flight.end(result);
}

impl ImageHandle {
    /// Runs requests on borrowed memory, at most `depth` of them at a time.
    pub(crate) fn run(&self, pieces: &mut [Piece<'_, '_>], depth: usize) -> Vec<Result<()>> {
        let batch = Batch(Flights::new());
        let mut results: Vec<Result<()>> = pieces.iter().map(|_| Ok(())).collect();
        for (tag, piece) in pieces.iter_mut().enumerate() {
            while batch.0.in_flight() >= depth {
                batch.0.wait(Duration::MAX / 4);
                batch.collect(&mut results);
            }
            let (aio, parts) = piece.parts();
            // SAFETY: the pieces are borrowed until this function returns, which is after the end
            // of all requests, by the drop of `batch` also in a panic.
            unsafe { batch.0.start_parts(self, tag, aio, parts, Memory::None) };
        }
        batch.wait_for_all();
        batch.collect(&mut results);
        results
    }
}

impl Piece<'_, '_> {
    fn parts(&mut self) -> (Aio, Parts) {
        match self {
            Self::Read(offset, into) => {
                let parts = into.iter_mut();
                let parts = parts.map(|bytes| part(bytes.as_mut_ptr(), bytes.len()));
                (Aio::Read { offset: *offset }, parts.collect())
            }
            Self::Write(offset, from) => {
                let parts = from.iter();
                let parts = parts.map(|bytes| part(bytes.as_ptr().cast_mut(), bytes.len()));
                (Aio::Write { offset: *offset }, parts.collect())
            }
            Self::Other(aio) => (*aio, Parts::new()),
        }
    }
}

/// Requests on borrowed memory: it stays borrowed until they have ended.
struct Batch(Arc<Flights>);

impl Batch {
    fn wait_for_all(&self) {
        let mut state = self.0.state.lock();
        while state.in_flight > 0 {
            self.0.changed.wait(&mut state);
        }
    }

    fn collect(&self, results: &mut [Result<()>]) {
        for ended in self.0.take() {
            results[ended.tag] = ended.result;
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.wait_for_all();
    }
}

fn part(start: *mut u8, length: usize) -> iovec {
    iovec {
        iov_base: start.cast(),
        iov_len: length,
    }
}

/// Waits until no request is in flight.
pub(super) fn wait_for_none(in_flight: &AtomicUsize) {
    while in_flight.load(Ordering::Acquire) > 0 {
        thread::sleep(POLL_INTERVAL);
    }
}

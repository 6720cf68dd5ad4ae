//! Submission of the calls of a batch to the kernel.
//!
//! Rings are kept in a pool: each batch takes one for itself, so that threads do not wait for each
//! other. A batch of one read, write or flush is a plain call, which costs no more than a ring's
//! and needs none. If all rings are in use, or a ring fails, system calls do the rest.
//!
//! Direct writes to a file use Linux AIO: they may allocate, which a ring leaves to threads of its
//! own.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use extant_space::{Error, ErrorKind, Result};
use extant_sys::aio::Aio;
use extant_sys::queue::{CallQueue, run_plain, run_threads};
use extant_sys::ring::Ring;
use parking_lot::Mutex;

use super::batch::Batch;
use super::options::HostEngine;

/// Rings at a time, and contexts of AIO; a batch that finds none makes plain calls.
const MADE_MAX: usize = 16;
/// Transfers of a stream in flight.
const STREAM_DEPTH: u32 = 128;
/// Threads that make the plain calls of one batch.
const THREADS_MAX: usize = 8;

pub(super) enum Engine {
    Uring {
        rings: Pool<Ring>,
        contexts: Pool<Aio>,
        streams: Pool<Aio>,
        depth: u32,
    },
    Plain {
        depth: u32,
    },
}

impl Engine {
    pub(super) fn new(wanted: HostEngine, depth: u32) -> Result<Self> {
        let depth = depth.max(1);
        if wanted == HostEngine::Plain {
            return Ok(Self::Plain { depth });
        }
        match Ring::new(depth) {
            Ok(ring) => Ok(Self::Uring {
                rings: Pool::new(Some(ring)),
                contexts: Pool::new(None),
                streams: Pool::new(None),
                depth,
            }),
            Err(_) if wanted == HostEngine::Auto => Ok(Self::Plain { depth }),
            Err(source) => Err(Error::from(source)
                .with_kind(ErrorKind::Unsupported)
                .detail("io_uring is missing or forbidden here")
                .advice("use plain calls")),
        }
    }

    pub(super) fn run(&self, file: &File, batch: &mut Batch<'_>) {
        if batch.is_single_call() {
            return run_plain(file, batch);
        }
        let calls = batch.calls_at_most();
        let threads = |depth: u32| THREADS_MAX.min(depth as usize).min(calls);
        match self {
            Self::Plain { depth } => run_threads(file, batch, threads(*depth)),
            Self::Uring {
                rings,
                contexts,
                depth,
                ..
            } => {
                if batch.writes_directly()
                    && let Some(mut context) = contexts.take(|| Aio::new(*depth))
                {
                    context.run(file, batch);
                    contexts.put(Some(context));
                } else if let Some(ring) = rings.take(|| Ring::new(*depth)) {
                    rings.put(ring.run(file, batch));
                } else {
                    run_threads(file, batch, threads(*depth));
                }
            }
        }
    }

    /// Runs calls that arrive while others are in flight, until there are none. Returns whether
    /// that is possible now; else nothing was taken from the queue.
    pub(super) fn run_stream<'a>(&self, file: &File, queue: &mut dyn CallQueue<'a>) -> bool {
        let Self::Uring { streams, .. } = self else {
            return false;
        };
        let Some(mut context) = streams.take(|| Aio::new(STREAM_DEPTH)) else {
            return false;
        };
        context.run(file, queue);
        streams.put(Some(context));
        true
    }
}

/// Idle rings and other per-batch resources.
pub(super) struct Pool<T> {
    free: Mutex<Vec<T>>,
    made: AtomicUsize,
}

impl<T> Pool<T> {
    fn new(first: Option<T>) -> Self {
        Self {
            made: AtomicUsize::new(usize::from(first.is_some())),
            free: Mutex::new(first.into_iter().collect()),
        }
    }

    /// One that is free, or a new one.
    fn take(&self, make: impl FnOnce() -> io::Result<T>) -> Option<T> {
        let mut free = self.free.lock();
        if let Some(one) = free.pop() {
            return Some(one);
        }
        drop(free);
        if self.made.fetch_add(1, Ordering::Relaxed) < MADE_MAX
            && let Ok(one) = make()
        {
            return Some(one);
        }
        self.made.fetch_sub(1, Ordering::Relaxed);
        None
    }

    /// Takes one back; `None` for one that failed.
    fn put(&self, one: Option<T>) {
        match one {
            Some(one) => {
                let mut free = self.free.lock();
                free.push(one);
            }
            None => {
                self.made.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

//! Submission of the calls of a batch, or of a stream, to the kernel.
//!
//! | engine | one call | batch | stream |
//! |---|---|---|---|
//! | auto | plain | Linux AIO for direct writes, else io_uring | Linux AIO, direct I/O only |
//! | threads | plain | threads | threads |
//! | native | Linux AIO | Linux AIO | Linux AIO |
//! | io_uring | io_uring | io_uring | io_uring |
//!
//! A plain call costs no more than a ring's and needs none. Direct writes to a file may allocate,
//! which a ring leaves to threads of its own, and Linux AIO does not.
//!
//! Rings and contexts are kept in pools: each batch takes one for itself, so that threads do not
//! wait for each other. If all are in use, or a ring fails, plain calls do the rest.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use extant_space::{Error, ErrorKind, Result};
use extant_sys::aio::Aio;
use extant_sys::queue::{CallQueue, run_plain, run_threads};
use extant_sys::ring::Ring;
use parking_lot::Mutex;

use super::batch::Batch;
use super::options::{HostCache, HostEngine, HostOptions};

/// Rings at a time, and contexts of AIO; a batch that finds none makes plain calls.
const MADE_MAX: usize = 16;
/// Transfers of a stream in flight.
const STREAM_DEPTH: u32 = 128;
/// Threads that make the plain calls of one batch, and of one stream: each has one in flight.
const THREADS_MAX: usize = 8;
const STREAM_THREADS_MAX: usize = 64;

pub(super) struct Engine {
    /// [`Auto`](HostEngine::Auto) only with io_uring.
    kind: HostEngine,
    depth: u32,
    rings: Pool<Ring>,
    contexts: Pool<Aio>,
    ring_streams: Pool<Ring>,
    streams: Pool<Aio>,
}

impl Engine {
    pub(super) fn new(options: &HostOptions) -> Result<Self> {
        let depth = options.depth.max(1);
        let mut engine = Self {
            kind: options.engine,
            depth,
            rings: Pool::new(None),
            contexts: Pool::new(None),
            ring_streams: Pool::new(None),
            streams: Pool::new(None),
        };
        match options.engine {
            HostEngine::Threads => {}
            HostEngine::Native if options.cache == HostCache::Buffered => {
                return Err(Error::new(ErrorKind::InvalidArgument)
                    .detail("Linux AIO is synchronous through the page cache")
                    .advice("use direct I/O, or another engine"));
            }
            HostEngine::Native => {
                let context = Aio::new(depth).map_err(|source| {
                    Error::from(source)
                        .with_kind(ErrorKind::Unsupported)
                        .detail("Linux AIO is missing, or all its requests are in use")
                        .advice("raise fs.aio-max-nr, or use another engine")
                })?;
                engine.contexts = Pool::new(Some(context));
            }
            HostEngine::Auto | HostEngine::Uring => match Ring::new(depth) {
                Ok(ring) => engine.rings = Pool::new(Some(ring)),
                Err(_) if options.engine == HostEngine::Auto => engine.kind = HostEngine::Threads,
                Err(source) => {
                    return Err(Error::from(source)
                        .with_kind(ErrorKind::Unsupported)
                        .detail("io_uring is missing or forbidden here")
                        .advice(
                            "see kernel.io_uring_disabled and the seccomp filter of this \
                             process, or use another engine",
                        ));
                }
            },
        }
        Ok(engine)
    }

    pub(super) fn kind(&self) -> HostEngine {
        self.kind
    }

    pub(super) fn run(&self, file: &File, batch: &mut Batch<'_>) {
        let (uses_aio, uses_ring) = match self.kind {
            HostEngine::Auto | HostEngine::Threads if batch.is_single_call() => {
                return run_plain(file, batch);
            }
            HostEngine::Auto => (batch.writes_directly(), true),
            HostEngine::Threads => (false, false),
            HostEngine::Native => (true, false),
            HostEngine::Uring => (false, true),
        };
        if uses_aio && let Some(mut context) = self.contexts.take(|| Aio::new(self.depth)) {
            context.run(file, batch);
            self.contexts.put(Some(context));
        } else if uses_ring && let Some(ring) = self.rings.take(|| Ring::new(self.depth)) {
            self.rings.put(ring.run(file, batch));
        } else {
            let calls = (self.depth as usize).min(batch.calls_at_most());
            run_threads(file, batch, THREADS_MAX.min(calls));
        }
    }

    /// Runs calls that arrive while others are in flight, until there are none. Returns whether
    /// that is possible now; else nothing was taken from the queue.
    pub(super) fn run_stream<'a>(
        &self,
        file: &File,
        cache: HostCache,
        queue: &mut dyn CallQueue<'a>,
    ) -> bool {
        match self.kind {
            HostEngine::Auto if cache == HostCache::Buffered => false,
            HostEngine::Auto | HostEngine::Native => {
                let Some(mut context) = self.streams.take(|| Aio::new(STREAM_DEPTH)) else {
                    return false;
                };
                context.run(file, queue);
                self.streams.put(Some(context));
                true
            }
            HostEngine::Uring => {
                let Some(ring) = self.ring_streams.take(|| Ring::new(STREAM_DEPTH)) else {
                    return false;
                };
                self.ring_streams.put(ring.run(file, queue));
                true
            }
            HostEngine::Threads => {
                run_threads(file, queue, STREAM_THREADS_MAX);
                true
            }
        }
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

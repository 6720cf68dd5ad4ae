//! Where requests come from and answers go, whichever way the kernel offers.
//!
//! Model: a [`Transport`] has one or more [`Lane`]s, on each of which requests wait for one
//! another. A thread works at a [`Line`] of one lane: it takes a request, answers it, takes the
//! next. A lane can have more lines at any time.
//!
//! - by `/dev/fuse` alone there is one lane with all requests ([`channel`](crate::channel));
//! - with io_uring there is one for each CPU with the requests of the programs that run on it
//!   ([`ring`](crate::ring)), and `/dev/fuse` beside them, for what asks for no answer.
//!
//! On two CPUs that others used as well, with a file system that answers at once, rings did 1.4 to
//! 1.6 times as many `fallocate` with 1 to 8 programs (medians of three rounds), 1.2 to 1.5 times
//! as many files made and removed, 1.1 to 1.6 times as many direct writes of 4 KiB, and as many
//! requests of 1 MiB.

use std::num::NonZero;
use std::path::Path;
use std::sync::Arc;

use extant_space::{Error, ErrorKind, Result};
use extant_sys::fuse_ring::queues;

use crate::channel::{Channel, DeviceLine};
use crate::protocol::answer::Answer;
use crate::ring::{QueueLine, is_available};
use crate::serve::placement::{Seat, threads_by_default};

/// How many lines of each queue there are by default. With two, one that waits for a disk does not
/// stop the rest.
const LINES_OF_A_QUEUE: usize = 2;

/// Whether requests come through io_uring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoUring {
    /// They do not.
    Off,
    /// They do, and a mount fails where the kernel does not offer it.
    On,
}

/// What became of waiting for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// There is one.
    Request,
    /// Nothing more will come.
    End(End),
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// By its unmount.
    Unmounted,
    /// Aborted from outside (`/sys/fs/fuse/connections/*/abort`).
    Aborted,
}

/// What one thread works at, with its memory.
pub(crate) trait Line: Send {
    /// Waits for a request. A line may keep the last answer until then.
    fn receive(&mut self) -> Result<Received>;

    /// The request, and the memory for its answer.
    fn request(&mut self) -> (&[u8], Answer<'_>);

    /// Sends the first `len` bytes of the reply buffer. A reply that the kernel no longer expects
    /// is no error.
    fn send(&mut self, len: usize) -> Result<()>;

    /// Sends an answer that the line kept. Until the next request nothing else may be done with it.
    fn flush(&mut self) -> Result<()>;
}

/// Requests that wait for one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// What is read from `/dev/fuse`.
    Device,
    /// A queue of io_uring.
    Queue(u16),
}

/// Why a line is added to a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occasion {
    /// The connection begins.
    Beginning,
    /// All lines of the lane are held up, and requests may wait there.
    Jam,
}

/// All ways of a connection.
#[derive(Debug)]
pub(crate) struct Transport {
    channel: Channel,
    queues: Option<Queues>,
}

/// Those of io_uring.
#[derive(Debug)]
struct Queues {
    count: u16,
    /// Where the mount is.
    place: Arc<Path>,
}

/// Whether a mount may ask the kernel for io_uring.
///
/// # Errors
/// `Unsupported` where it was asked for and this system has none, or forbids it.
pub(crate) fn is_offered(io_uring: IoUring) -> Result<bool> {
    match io_uring {
        IoUring::Off => Ok(false),
        IoUring::On => match is_available() {
            Ok(()) => Ok(true),
            Err(error) => Err(not_offered(&error.to_string())),
        },
    }
}

/// The kernel has no FUSE over io_uring, or it is turned off.
pub(crate) fn not_offered(why: &str) -> Error {
    Error::new(ErrorKind::Unsupported)
        .detail(format!("mount option `io_uring`: {why}"))
        .advice("Linux 6.14 with `Y` in /sys/module/fuse/parameters/enable_uring is needed")
}

impl Transport {
    /// By `/dev/fuse` alone.
    pub fn by_device(channel: Channel) -> Self {
        Self {
            channel,
            queues: None,
        }
    }

    /// By io_uring, as was agreed with the kernel, for a mount at `place`.
    pub fn by_rings(channel: Channel, place: &Path) -> Result<Self> {
        let count = queues().map_err(|error| Error::from(error).during("count the CPUs"))?;
        let queues = Queues {
            count,
            place: place.into(),
        };
        Ok(Self {
            channel,
            queues: Some(queues),
        })
    }

    /// The lanes, and how many lines of each the connection begins with. `threads` are to be had in
    /// all; a queue has one at least.
    pub fn lanes(&self, threads: Option<NonZero<usize>>) -> Vec<(Lane, usize)> {
        let Some(queues) = &self.queues else {
            let threads = threads.unwrap_or_else(threads_by_default);
            return vec![(Lane::Device, threads.get())];
        };
        let lines = threads.map_or(LINES_OF_A_QUEUE, |threads| {
            threads.get().div_ceil(usize::from(queues.count))
        });
        let queues = (0..queues.count).map(|queue| (Lane::Queue(queue), lines));
        [(Lane::Device, 1)].into_iter().chain(queues).collect()
    }

    /// One more line of a lane.
    pub fn line(&self, lane: Lane, occasion: Occasion) -> Result<Box<dyn Line>> {
        let memory = |error: std::io::Error| Error::from(error).during("get memory for a thread");
        Ok(match (lane, &self.queues) {
            (Lane::Queue(queue), Some(Queues { place, .. })) => {
                let line = QueueLine::new(&self.channel, queue, place, occasion);
                Box::new(line.map_err(memory)?)
            }
            _ => Box::new(DeviceLine::new(&self.channel).map_err(memory)?),
        })
    }

    /// Where the thread of a line belongs, the `number`th of all.
    pub fn seat(&self, lane: Lane, number: usize) -> Seat {
        match lane {
            Lane::Device if self.queues.is_some() => Seat::Anywhere,
            Lane::Device => Seat::Nth(number),
            Lane::Queue(queue) => Seat::Cpu(queue.into()),
        }
    }

    /// Sends a notice; the errors are the kernel's own.
    pub fn notify(&self, notice: &[u8]) -> rustix::io::Result<()> {
        self.channel.notify(notice)
    }
}

impl Lane {
    /// Whether a line of it can be given up. The kernel keeps an entry of a queue until the
    /// connection ends.
    pub fn can_shrink(self) -> bool {
        self == Self::Device
    }
}

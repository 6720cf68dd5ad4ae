//! The queues of a connection.
//!
//! - With `/dev/fuse` alone there is one queue with all requests ([`channel`](crate::channel)).
//! - With io_uring there is one queue per CPU, with the requests of the programs that run on it
//!   ([`ring`](crate::ring)). Requests without a reply still arrive on `/dev/fuse`.
//!
//! On two CPUs with other load, and a file system that answers at once, io_uring completed 1.4 to
//! 1.6 times as many `fallocate` with 1 to 8 programs (medians of three rounds), 1.2 to 1.5 times
//! as many creations and removals of files, 1.1 to 1.6 times as many direct writes of 4 KiB, and as
//! many requests of 1 MiB.

use std::num::NonZero;
use std::path::Path;
use std::sync::Arc;

use extant_space::{Error, ErrorKind, Result};

use crate::affinity::{WorkerCpu, default_workers};
use crate::channel::{Channel, DeviceEndpoint};
use crate::options::IoUring;
use crate::queue::{Endpoint, Queue, StartReason};
use crate::ring::{RingEndpoint, is_available};
use crate::sys::queue_count;

/// Default number of endpoints of each ring's queue. With two, a request that waits for a device
/// does not stop the others.
const ENDPOINTS_PER_RING_QUEUE: usize = 2;

/// The queues of a connection.
#[derive(Debug)]
pub(crate) struct Transport {
    channel: Channel,
    rings: Option<RingQueues>,
}

/// The queues of FUSE over io_uring.
#[derive(Debug)]
struct RingQueues {
    count: u16,
    mount_point: Arc<Path>,
}

/// Whether a mount may ask the kernel for io_uring.
///
/// # Errors
/// `Unsupported` if it is requested and this system has none, or forbids it.
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
    /// A transport by `/dev/fuse` alone.
    pub fn by_device(channel: Channel) -> Self {
        Self {
            channel,
            rings: None,
        }
    }

    /// A transport by io_uring, as negotiated with the kernel, for a mount at `mount_point`.
    pub fn by_rings(channel: Channel, mount_point: &Path) -> Result<Self> {
        let count = queue_count().map_err(|error| Error::from(error).during("count the CPUs"))?;
        let rings = RingQueues {
            count,
            mount_point: mount_point.into(),
        };
        Ok(Self {
            channel,
            rings: Some(rings),
        })
    }

    /// The queues, and the initial number of endpoints of each. `threads` is the total; a ring's
    /// queue has at least one.
    pub fn queues(&self, threads: Option<NonZero<usize>>) -> Vec<(Queue, usize)> {
        let Some(rings) = &self.rings else {
            let threads = threads.unwrap_or_else(default_workers);
            return vec![(Queue::Device, threads.get())];
        };
        let endpoints = threads.map_or(ENDPOINTS_PER_RING_QUEUE, |threads| {
            threads.get().div_ceil(usize::from(rings.count))
        });
        let queues = (0..rings.count).map(|queue| (Queue::Ring(queue), endpoints));
        [(Queue::Device, 1)].into_iter().chain(queues).collect()
    }

    /// Another endpoint of a queue.
    pub fn endpoint(&self, queue: Queue, reason: StartReason) -> Result<Box<dyn Endpoint>> {
        let memory = |error: std::io::Error| Error::from(error).during("get memory for a thread");
        Ok(match (queue, &self.rings) {
            (Queue::Ring(queue), Some(RingQueues { mount_point, .. })) => {
                let endpoint = RingEndpoint::new(&self.channel, queue, mount_point, reason);
                Box::new(endpoint.map_err(memory)?)
            }
            _ => Box::new(DeviceEndpoint::new(&self.channel).map_err(memory)?),
        })
    }

    /// The CPU of worker `number`, which serves `queue`.
    pub fn worker_cpu(&self, queue: Queue, number: usize) -> WorkerCpu {
        match queue {
            Queue::Device if self.rings.is_some() => WorkerCpu::Any,
            Queue::Device => WorkerCpu::Nth(number),
            Queue::Ring(queue) => WorkerCpu::Number(queue.into()),
        }
    }

    /// Sends a notification. The errors are the kernel's own.
    pub fn notify(&self, notification: &[u8]) -> rustix::io::Result<()> {
        self.channel.notify(notification)
    }
}

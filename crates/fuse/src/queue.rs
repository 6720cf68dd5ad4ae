//! The interface between a worker and its source of requests.
//!
//! A connection has one or more queues, whose requests wait for one another. A worker owns one
//! [`Endpoint`] of a queue: it receives a request, answers it, receives the next. Endpoints may be
//! added to a queue at any time.

use extant_space::Result;

use crate::protocol::reply::Reply;

/// A queue of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// `/dev/fuse`.
    Device,
    /// The queue of FUSE over io_uring with this number.
    Ring(u16),
}

impl Queue {
    /// Whether an endpoint can be closed. The kernel keeps an entry of a ring's queue until the
    /// connection ends.
    pub fn can_shrink(self) -> bool {
        self == Self::Device
    }
}

/// A worker's endpoint of a queue, with its memory.
pub(crate) trait Endpoint: Send {
    /// Waits for a request. An endpoint may hold back the last reply until then.
    fn receive(&mut self) -> Result<Received>;

    /// The request, and the memory for its reply.
    fn request(&mut self) -> (&[u8], Reply<'_>);

    /// Sends the first `len` bytes of the reply buffer. A reply that the kernel no longer expects
    /// is no error.
    fn send(&mut self, len: usize) -> Result<()>;

    /// Sends a reply that was held back. Only [`receive`](Self::receive) may follow.
    fn flush(&mut self) -> Result<()>;
}

/// The result of waiting for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// There is a request.
    Request,
    /// No request will follow.
    End(End),
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// By its unmount.
    Unmounted,
    /// By an abort (`/sys/fs/fuse/connections/*/abort`).
    Aborted,
}

/// Why an endpoint is added to a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartReason {
    /// The connection starts.
    ConnectionStart,
    /// All endpoints of the queue are busy, and requests may wait in it.
    Stall,
}

//! Events that a server reports to its observer.

use std::sync::Arc;

use extant_space::trace::tracing::field;
use extant_space::{Error, event};

/// The server's threads call it synchronously; it must not block.
pub type Observer = Arc<dyn Fn(&Event<'_>) + Send + Sync>;

/// One event.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A client has connected.
    Opened {
        /// The name of the volume.
        volume: &'a str,
    },
    /// A request has failed on its device.
    Failed {
        /// The name of the volume.
        volume: &'a str,
        /// The device's error; the guest learns only that there was one.
        error: &'a Error,
    },
    /// A queue was stopped, because its ring breaks the rules of virtio.
    Broken {
        /// The name of the volume.
        volume: &'a str,
        /// Number of the queue.
        queue: usize,
        /// The rule.
        reason: &'a str,
    },
    /// The volume has another size, and the client was notified.
    Resized {
        /// The name of the volume.
        volume: &'a str,
        /// The new size.
        bytes: u64,
    },
    /// A client has left.
    Closed {
        /// The name of the volume.
        volume: &'a str,
        /// The cause, unless the client disconnected.
        error: Option<&'a Error>,
    },
}

impl Event<'_> {
    /// Reports it to the listeners of `tracing`.
    pub(crate) fn trace(&self) {
        match *self {
            Event::Opened { volume } => event!(INFO, "open", volume),
            Event::Failed { volume, error } => event!(WARN, "fail", volume, %error),
            Event::Broken {
                volume,
                queue,
                reason,
            } => event!(WARN, "broken ring", volume, queue, reason),
            Event::Resized { volume, bytes } => event!(INFO, "resize", volume, bytes),
            Event::Closed { volume, error } => {
                event!(INFO, "close", volume, error = error.map(field::display))
            }
        }
    }
}

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
    /// A client has chosen an export.
    Opened {
        /// The client's address; local clients have none.
        peer: &'a str,
        /// The name of the export.
        export: &'a str,
    },
    /// The connection limit is reached: the server closed a new connection.
    Refused {
        /// The client's address; local clients have none.
        peer: &'a str,
    },
    /// A request has failed on its device.
    Failed {
        /// The name of the export.
        export: &'a str,
        /// The device's error; the client receives only its kind.
        error: &'a Error,
    },
    /// A connection has ended.
    Closed {
        /// The client's address; local clients have none.
        peer: &'a str,
        /// The cause, unless the client disconnected.
        error: Option<&'a Error>,
    },
    /// `accept` failed; the server retries.
    AcceptFailed {
        /// The system's error.
        error: &'a Error,
    },
}

impl Event<'_> {
    /// Reports it to the listeners of `tracing`.
    pub(crate) fn trace(&self) {
        match *self {
            Event::Opened { peer, export } => event!(INFO, "open", peer, export),
            Event::Refused { peer } => event!(WARN, "refuse", peer),
            Event::Failed { export, error } => event!(WARN, "fail", export, %error),
            Event::Closed { peer, error } => {
                event!(INFO, "close", peer, error = error.map(field::display))
            }
            Event::AcceptFailed { error } => event!(WARN, "accept failed", %error),
        }
    }
}

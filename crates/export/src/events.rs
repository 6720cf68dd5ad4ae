//! What a server tells whoever runs it.

use std::sync::Arc;

use extant_space::Error;

/// Is called by the threads of the server, and should not take long.
pub type Observer = Arc<dyn Fn(&Event<'_>) + Send + Sync>;

/// Something that happened.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A client has chosen an export.
    Opened {
        /// Its address, as far as there is one.
        peer: &'a str,
        /// The name of the export.
        export: &'a str,
    },
    /// A client was turned away, as there are as many connections as there may be.
    Refused {
        /// Its address, as far as there is one.
        peer: &'a str,
    },
    /// A request has failed on its device.
    Failed {
        /// The name of the export.
        export: &'a str,
        /// What the device says; the client learns its kind.
        error: &'a Error,
    },
    /// A connection has ended.
    Closed {
        /// The client's address, as far as there is one.
        peer: &'a str,
        /// Why, unless the client wanted it so.
        error: Option<&'a Error>,
    },
    /// No connection could be taken; the server goes on trying.
    AcceptFailed {
        /// What the system says.
        error: &'a Error,
    },
}

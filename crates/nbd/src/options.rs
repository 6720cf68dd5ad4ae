//! Options of a client device.

use std::time::Duration;

/// How a device connects to its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdOptions {
    /// Whether the export may be changed.
    pub access: NbdAccess,
    /// Most connections; at least 1. A server that does not permit several
    /// (`NBD_FLAG_CAN_MULTI_CONN`) gets one.
    pub connections: u32,
    /// How long the server may take.
    pub timeouts: NbdTimeouts,
    /// Policy for lost connections.
    pub reconnect: NbdReconnect,
    /// Whether the extension `extant:assign` is asked for.
    pub assign: NbdAssign,
}

/// Access to an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NbdAccess {
    /// Everything. Connecting to a read-only export fails with `ReadOnly`.
    ReadWrite,
    /// Reading; the device says [`Features::READ_ONLY`](extant_blockdev::Features::READ_ONLY).
    ReadOnly,
}

/// How long a server may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdTimeouts {
    /// To accept a connection.
    pub connect: Duration,
    /// For the whole handshake, TLS included.
    pub handshake: Duration,
    /// Without any reply while requests are in flight, or without receiving while one is sent. The
    /// connection counts as lost afterwards.
    pub silence: Duration,
}

/// Policy for lost connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NbdReconnect {
    /// Every request fails from then on.
    Never,
    /// The device connects again, repeats the changes that were not flushed, and then the requests
    /// without a reply.
    Retry {
        /// Attempts continue for this long, with growing pauses; then every request fails.
        give_up_after: Duration,
        /// Bytes of changes that are remembered until a flush. More make the device flush by
        /// itself.
        unflushed_bytes_max: u64,
    },
}

/// Use of the extension `extant:assign` (docs/formats/nbd.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NbdAssign {
    /// Used with servers that offer it.
    Negotiate,
    /// Not asked for: assigns are refused, and zeros that must be written are sent as data.
    Off,
}

impl NbdReconnect {
    /// For half a minute, with 64 MiB of changes.
    pub const DEFAULT: Self = Self::Retry {
        give_up_after: Duration::from_secs(30),
        unflushed_bytes_max: 64 << 20,
    };
}

impl Default for NbdTimeouts {
    /// 10 s to connect, 10 s for the handshake, 5 min without a reply: a server that writes zeros
    /// to a slow disk takes a while.
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            handshake: Duration::from_secs(10),
            silence: Duration::from_secs(300),
        }
    }
}

impl Default for NbdOptions {
    /// Reads and writes on up to four connections, reconnects, and uses the extension.
    fn default() -> Self {
        Self {
            access: NbdAccess::ReadWrite,
            connections: 4,
            timeouts: NbdTimeouts::default(),
            reconnect: NbdReconnect::DEFAULT,
            assign: NbdAssign::Negotiate,
        }
    }
}

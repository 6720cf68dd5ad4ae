//! Devices as network block devices: the server's side of the NBD protocol.
#![doc = include_str!("../README.md")]
//!
//! Module layers, lowest first:
//!
//! 1. `tls`, `events`: certificates; events
//! 2. `export`: a device as clients see it
//! 3. `handshake`: option haggling, from the greeting to the choice of an export
//! 4. `transmission`: requests and replies, by several worker threads per connection
//! 5. `server`: listening sockets, connections, limits, shutdown
//!
//! The protocol is implemented here because no NBD library serves block status, extended headers
//! and fast zeroes, or submits a batch of requests as one. Subset: docs/formats/nbd.md; threads
//! and flow control: docs/internals/nbd.md.

#![forbid(unsafe_code)]

mod events;
mod export;
mod handshake;
mod server;
mod tls;
mod transmission;

pub use events::{Event, Observer};
pub use export::{Export, Exports};
pub use extant_blockdev::{Access, DiscardPolicy};
pub use server::{Address, BoundSocket, Limits, Scheme, Server, ServerOptions};
pub use tls::{ClientCertificates, Tls, TlsRequirement};

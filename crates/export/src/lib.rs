//! Devices as network block devices: the server's side of the NBD protocol.
//!
//! Module layers, lowest first:
//!
//! 1. `wire`, `socket`, `tls`, `events`: structures, numbers and errors of the protocol; connections; what is reported
//! 2. `stream`, `export`: bytes of a connection, in the clear or by TLS; a device and how clients see it
//! 3. `handshake`: from the greeting to the choice of an export
//! 4. `transmission`: requests, in batches, from several threads of a connection
//! 5. `server`: sockets, connections, limits, shutdown
//!
//! Nothing here needs an NBD library: none serves block status, extended headers or fast zeroes, and none runs a batch
//! of requests as one. What is spoken: `docs/formats/nbd.md`.

#![forbid(unsafe_code)]

mod events;
mod export;
mod handshake;
mod server;
mod socket;
mod stream;
mod tls;
mod transmission;
mod wire;

pub use events::{Event, Observer};
pub use export::{Access, Export, Exports, Unneeded};
pub use server::{Address, BoundSocket, Limits, Scheme, Server, ServerOptions};
pub use tls::{ClientCertificates, Tls, TlsRequirement};

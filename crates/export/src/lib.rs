//! Devices as network block devices: the server's side of the NBD protocol.
//!
//! From the bottom:
//! - `wire`: the structures and numbers of the protocol, and its errors;
//! - `socket`, `stream`: a connection, and bytes on it, in the clear or by TLS (`tls`);
//! - `handshake`: from the greeting to the choice of an export;
//! - `transmission`: requests, in batches, from several threads of a connection;
//! - `export`: a device and what clients are told of it;
//! - `server`: sockets, connections, limits, shutdown.
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

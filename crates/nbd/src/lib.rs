//! The NBD protocol: structures and streams for both sides, and a client that is a block device.
#![doc = include_str!("../README.md")]
//!
//! A crate of its own, so that `extant-blockdev`, which every other layer uses, needs no TLS
//! library. The client is implemented here because the one Rust client on crates.io (`nbd` 0.3)
//! has one request in flight and neither structured replies, block status nor TLS, and libnbd is
//! a C library with LGPL code.
//!
//! Module layers, lowest first:
//!
//! 1. `wire`, `socket`, `certificates`: structures and numbers of the protocol; sockets; PEM files
//! 2. `stream`, `uri`, `options`: plain or encrypted bytes; addresses of exports; options
//! 3. `tls`, `dial`, `exclusion`: the client's side of TLS; connected sockets; one writer per host
//! 4. `handshake`: the client's side of option haggling
//! 5. `reply`, `limits`: replies of one connection, parsed and validated; geometry and features
//! 6. `connection`: requests in flight on one connection, and the thread that receives replies
//! 7. `unflushed`, `session`: changes to repeat after a reconnect; the connections of a device
//! 8. `device`: the driver
//!
//! Subset: docs/formats/nbd.md; threads, reconnect and durability: docs/internals/nbd.md.

#![forbid(unsafe_code)]

pub mod certificates;
mod connection;
mod device;
mod dial;
mod exclusion;
mod handshake;
mod limits;
mod options;
mod reply;
mod session;
pub mod socket;
pub mod stream;
mod tls;
mod unflushed;
mod uri;
pub mod wire;

pub use device::NbdDevice;
pub use options::{NbdAccess, NbdAssign, NbdOptions, NbdReconnect, NbdTimeouts};
pub use uri::{NbdTls, NbdTransport, NbdUri};

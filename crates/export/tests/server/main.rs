//! The server through its sockets: with a client of ours that can send anything, and with the
//! clients of other implementations.
//!
//! Model: a server per test, mostly over a socket pair, on a device in memory that records its
//! requests and answers as the test configures it (`probe.rs`).

mod client;
mod handshake;
mod hostile;
mod limits;
mod oracles;
mod power;
mod probe;
mod shutdown;
mod status;
mod stream;
mod tls;
mod transmission;

use std::sync::Arc;

use extant_export::{Access, Export, Exports, Server, ServerOptions};
use probe::{Probe, Takes};

const MIB: u64 = 1 << 20;

/// A server with one export, `disk`, of 64 MiB.
fn server(options: ServerOptions) -> (Server, Arc<Probe>) {
    server_on(Takes::Batches, options)
}

/// As [`server`], on a device of either kind.
fn server_on(takes: Takes, options: ServerOptions) -> (Server, Arc<Probe>) {
    let device = Arc::new(Probe::new(64 * MIB, takes));
    let export = Export::new("disk", "a disk", device.clone(), Access::ReadWrite).unwrap();
    let server = Server::new(Exports::new(vec![export]).unwrap(), options);
    (server, device)
}

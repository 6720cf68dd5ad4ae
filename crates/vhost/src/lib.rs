//! Devices as vhost-user block devices: virtual machines use them as virtio disks.
#![doc = include_str!("../README.md")]
//!
//! Module layers, lowest first:
//!
//! 1. `events`, `volume`: events; a device as a guest sees it, and its configuration space
//! 2. `request`, `inflight`: a descriptor chain as a request; the table of requests in flight
//! 3. `ring`: a virtqueue in guest memory
//! 4. `context`: results of requests, and requests that move no data
//! 5. `transfers`: the requests of a ring as transfers of a device
//! 6. `queue`: the thread of a ring
//! 7. `connection`, `channel`: the messages of a client
//! 8. `server`: the socket, resizes, shutdown
//!
//! The message layer and the rings are those of the rust-vmm crates. `vhost-user-backend` is not
//! used: its handler refuses the messages of the in-flight table, and a device stream needs a
//! thread that waits for the ring and the device at once.
//!
//! Threads, memory and shutdown: docs/internals/vhost.md.

#![forbid(unsafe_code)]

mod channel;
mod connection;
mod context;
mod events;
mod inflight;
mod queue;
mod request;
mod ring;
mod server;
mod transfers;
mod volume;

pub use events::{Event, Observer};
pub use extant_blockdev::{Access, DiscardPolicy};
pub use server::{Server, ServerOptions};
pub use volume::Volume;

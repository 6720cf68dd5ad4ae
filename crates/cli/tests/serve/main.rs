//! `extant serve` as a user runs it, with third-party clients.
//!
//! The oracles are libnbd's tools, QEMU's, fio, and the served files themselves.

#[allow(dead_code)]
#[path = "../fs/image.rs"]
mod image;
#[path = "../support/mod.rs"]
mod support;

mod clients;
mod cluster;
mod exports;
mod guest;
mod inside;
mod load;
mod qcow2;
mod refused;
mod space;
mod stand;
mod start;
mod tls;
mod vhost;
mod vhost_guest;
mod volumes;

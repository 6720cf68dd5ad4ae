//! Disk images from the command line: `extant create` of qcow2, `extant image`, and `map` and
//! `materialize` of images. QEMU is the oracle.

#[path = "../support/mod.rs"]
mod support;

mod change;
mod create;
mod disk;
mod formats;
mod look;
mod map;
mod mount;
mod outer;
mod qemu;

//! Disk images from the command line: `extant create` of qcow2, and `extant image`. QEMU judges.

#[path = "../support/mod.rs"]
mod support;

mod change;
mod create;
mod disk;
mod look;
mod outer;

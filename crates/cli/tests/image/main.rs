//! Disk images from the command line: `extant create` of qcow2, `extant image`, and what `map` and `materialize` make of images. QEMU judges.

#[path = "../support/mod.rs"]
mod support;

mod change;
mod create;
mod disk;
mod formats;
mod look;
mod map;
mod outer;
mod qemu;

//! Images compared with QEMU's tools: each side reads the images of the other.

mod change;
mod convert;
mod create;
mod damage;
mod full;
mod overlay;
mod read;
mod shared;
mod support;

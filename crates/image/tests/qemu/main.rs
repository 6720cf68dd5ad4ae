//! Images beside QEMU's tools: what we make is read by them, and what they make by us.

mod change;
mod convert;
mod create;
mod damage;
mod full;
mod overlay;
mod read;
mod shared;
mod support;

//! `extant create` on common file systems, as a user runs it.
//!
//! States of extents are compared with filefrag, contents by reading all of them, the number of
//! extents with util-linux's `fallocate -l` on an identical file system.

#[path = "../support/mod.rs"]
mod support;

mod layers;
mod names;
mod output;
mod replace;
mod states;
mod through;

//! `extant create` on the file systems people have, as a user runs it.
//!
//! States of extents are judged by filefrag, contents by reading all of them, the number of
//! pieces against util-linux's `fallocate -l` on an identical file system.

#[path = "../support/mod.rs"]
mod support;

mod names;
mod output;
mod replace;
mod states;

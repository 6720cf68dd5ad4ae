//! Bad input and failures: one clear line, a documented exit code, nothing left, nothing lost.
//!
//! Every test ends by checking the directory and the files that must not have changed. The exit
//! codes are those of `extant --help`: 1 device, 2 arguments, 3 space, 4 path, 5 file system.

#[path = "../support/mod.rs"]
mod support;

mod arguments;
mod busy;
mod disk;
mod false_success;
mod paths;
mod shared;
mod space;
mod users;

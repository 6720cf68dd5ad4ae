//! `extant fallocate` beside the real fallocate.
//!
//! - `commands`, `files`: what is answered to every kind of argument and file;
//! - `differential`: random sequences of operations, compared after each step;
//! - `write_zeroes`: what `-w` guarantees where the kernel refuses it.

mod commands;
mod differential;
mod files;
mod program;
mod sequence;
mod state;
mod write_zeroes;

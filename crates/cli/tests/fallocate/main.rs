//! `extant fallocate` compared with util-linux's fallocate.
//!
//! - `commands`, `files`: the answer to every kind of argument and file;
//! - `differential`: random sequences of operations, compared after each step;
//! - `write_zeroes`: the guarantees of `-w` if the kernel refuses it.

mod commands;
mod differential;
mod files;
mod program;
mod sequence;
mod state;
mod write_zeroes;

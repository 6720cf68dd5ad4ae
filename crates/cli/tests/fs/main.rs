//! `extant fs` and `--in IMAGE` as a user runs them, on images of mke2fs.
//!
//! The oracles are debugfs, dumpe2fs, e2freefrag, e4defrag, e2fsck, and the kernel: images filled
//! here are mounted and compared, and images filled by the kernel are read.

#[path = "../support/mod.rs"]
mod support;

mod background;
mod check;
mod get;
mod image;
mod inside;
mod look;
mod names;
mod put;
mod space;
mod stats;
mod through;
mod trouble;

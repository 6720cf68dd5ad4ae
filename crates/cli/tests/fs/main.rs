//! `extant fs` and `--in IMAGE` as a user runs them, on images of mke2fs.
//!
//! The judges are debugfs, dumpe2fs, e2freefrag, e4defrag, e2fsck, and the kernel: what was put into an image is
//! mounted and compared, and what the kernel wrote is read.

#[path = "../support/mod.rs"]
mod support;

mod check;
mod get;
mod image;
mod inside;
mod look;
mod names;
mod put;
mod space;
mod trouble;

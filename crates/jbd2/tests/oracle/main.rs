//! Oracles: e2fsck and the kernel replay logs written by this crate, and it replays those of
//! debugfs and the kernel.

#![cfg(not(feature = "shuttle"))]

mod image;
mod ours;
mod theirs;

//! Judged by others: e2fsck and the kernel replay what this crate wrote, and it replays what debugfs and the
//! kernel wrote.

#![cfg(not(feature = "shuttle"))]

mod image;
mod ours;
mod theirs;

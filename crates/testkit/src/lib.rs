//! Real parts for tests and benches: what they run on, and what judges the result.
//!
//! | module | gives |
//! |---|---|
//! | [`requires`] | tests that say what they need, and skip or fail without it |
//! | [`scratch`] | mounted file systems on loop devices, thin devices, quota |
//! | [`oracle`] | typed answers of filefrag, e2fsck, e4defrag, stat, qemu-img |
//! | [`hot_paths`] | the `main` of programs whose instructions are counted |
//! | [`mke2fs()`] | images with file systems to begin with |
//! | [`newer`] | util-linux's fallocate with `-w`, on a machine whose own is older |
//! | [`faulty`] | a FUSE file system that refuses, lies, fails or dawdles on demand |
//! | [`busy`] | patience with what is busy for a moment |
//! | [`user`] | programs run by a user without rights |
//! | [`libvirt`] | a libvirtd of its own, and virsh |
//! | [`fuse_rings`] | FUSE over io_uring, turned on |
//! | [`fuse_watchdog`] | a deadline for tests on FUSE mounts |
//! | [`guest`] | a newer kernel in QEMU, with disks that take write zeroes |
//!
//! The kit is for tests: what goes wrong in it panics, with the command that failed and
//! what it printed. Whatever it mounts, attaches or starts is undone when its value is
//! dropped, also by a panic; what a killed process left is cleared by the next one
//! ([`workdir`]). It knows the words of `extant-space` and nothing of the layers above.

#![forbid(unsafe_code)]

pub mod busy;
pub mod command;
mod debian;
pub mod faulty;
pub mod fuse_rings;
pub mod fuse_watchdog;
pub mod guest;
pub mod hot_paths;
pub mod lab;
pub mod libvirt;
mod mke2fs;
pub mod newer;
pub mod oracle;
mod packages;
pub mod requires;
pub mod scratch;
pub mod user;
pub mod workdir;

pub use mke2fs::mke2fs;
pub use packages::PACKAGES;

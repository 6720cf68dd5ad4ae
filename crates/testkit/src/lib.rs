//! Environments and oracles for tests and benches.
//!
//! | module | gives |
//! |---|---|
//! | [`requires`] | tests that say what they need, and skip or fail without it |
//! | [`scratch`] | mounted file systems on loop devices, thin devices, quota |
//! | [`oracle`] | typed answers of filefrag, e2fsck, e4defrag, stat, qemu-img |
//! | [`hot_paths`] | the `main` of programs whose instructions are counted |
//! | [`mke2fs()`] | images with file systems to begin with |
//! | [`newer`] | util-linux's fallocate with `-w`, on a machine whose own is older |
//! | [`faulty`] | a FUSE file system with injected faults and delays |
//! | [`busy`] | retries of operations on busy files and mounts |
//! | [`user`] | programs run by an unprivileged user |
//! | [`libvirt`] | a private libvirtd, and virsh |
//! | [`fuse_rings`] | FUSE over io_uring, enabled |
//! | [`fuse_watchdog`] | a deadline for tests on FUSE mounts |
//! | [`guest`] | a newer kernel in QEMU, with disks that take write zeroes |
//!
//! A failure panics with the failed command and its output. Mounts, devices and processes are
//! guards that are undone on drop, also by a panic; the next process removes what a killed one
//! left ([`workdir`]). Of the project's crates it uses only `extant-space`.

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

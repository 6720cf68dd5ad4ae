//! Environments and oracles for tests and benches.
//!
//! Module layers, lowest first:
//!
//! 1. `busy`, `command`, `events`, `exhaustive`, `fuse_rings`, `fuse_watchdog`, `hot_paths`,
//!    `listener`, `packages`, `seeds`, `vhost_client`: retries of operations on busy files; other
//!    programs; events of `tracing`; all sequences of a length; FUSE over io_uring, turned on; a
//!    deadline for tests on FUSE mounts; the `main` of programs whose instructions are counted;
//!    sockets of servers that start; Debian packages; seeds and counts; a driver of vhost-user
//!    disks
//! 2. `lab`, `requires`, `user`, `workdir`: the directory of oracles; requirements of a test;
//!    programs run by an unprivileged user; directories for one test
//! 3. `browser`, `ceph`, `debian`, `libvirt`, `mke2fs`, `oracle`, `scratch`: pages in Chromium; a
//!    Ceph cluster; packages of other suites; a private libvirtd; new file systems as bytes; typed
//!    results of filefrag, e2fsck, e4defrag, stat and qemu-img; mounted file systems on loop
//!    devices, thin devices and quota
//! 4. `faulty`, `guest`, `newer`: a FUSE file system with faults and delays; a newer kernel in
//!    QEMU; util-linux's fallocate with `-w`
//!
//! A failure panics with the failed command and its output. Mounts, devices and processes are
//! guards that are undone on drop, also by a panic; the next process removes the files of a killed
//! one ([`workdir`]). Of the project's crates it uses only `extant-space`.

#![forbid(unsafe_code)]

pub mod browser;
pub mod busy;
pub mod ceph;
pub mod command;
pub mod debian;
pub mod events;
pub mod exhaustive;
pub mod faulty;
pub mod fuse_rings;
pub mod fuse_watchdog;
pub mod guest;
pub mod hot_paths;
pub mod lab;
pub mod libvirt;
pub mod listener;
mod mke2fs;
pub mod newer;
pub mod oracle;
mod packages;
pub mod requires;
pub mod scratch;
pub mod seeds;
pub mod user;
pub mod vhost_client;
pub mod workdir;

pub use mke2fs::mke2fs;
pub use packages::PACKAGES;

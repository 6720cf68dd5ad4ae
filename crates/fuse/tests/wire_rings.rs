//! The FUSE server with a small file system in memory, mounted for real.
//!
//! The file system is trivial; the tests check that every call arrives, and its reply. `memory_fs`
//! is the file system, `fixture` mounts it. These are the tests of `wire`, with requests through
//! io_uring, and the tests of that transport alone.
//!
//! Most kernels have it turned off: it is turned on, and left so. Before Linux 6.14 there is none,
//! and the tests are those of `wire` once more.

/// The mount option for the transport of requests.
fn transport() -> &'static str {
    extant_testkit::fuse_rings::option()
}

#[path = "wire/fixture.rs"]
mod fixture;
#[path = "wire/gate.rs"]
mod gate;
#[path = "wire/memory_fs.rs"]
mod memory_fs;

#[path = "wire/blocked_workers.rs"]
mod blocked_workers;
#[path = "wire/calls.rs"]
mod calls;
#[path = "wire/lifecycle.rs"]
mod lifecycle;
#[path = "wire/users.rs"]
mod users;

//! The FUSE server with a small file system in memory, mounted for real.
//!
//! The file system is trivial; the tests check that every call arrives, and its reply. `memory_fs`
//! is the file system, `fixture` mounts it. The same tests use io_uring in `wire_rings`.

/// The mount option for the transport of requests.
fn transport() -> &'static str {
    "no_io_uring"
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

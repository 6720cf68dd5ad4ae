//! The FUSE server with a small file system in memory, mounted for real.
//!
//! The file system is trivial; the tests check that every call arrives, and its reply. `shelf` is
//! the file system, `stand` mounts it. These are the tests of `wire`, with requests through
//! io_uring, and the tests of that transport alone.
//!
//! Most kernels have it turned off: it is turned on, and left so. Before Linux 6.14 there is none,
//! and the tests are those of `wire` once more.

/// The mount option for the transport of requests.
fn transport() -> &'static str {
    extant_testkit::fuse_rings::option()
}

#[path = "wire/gate.rs"]
mod gate;
#[path = "wire/shelf.rs"]
mod shelf;
#[path = "wire/stand.rs"]
mod stand;

#[path = "wire/calls.rs"]
mod calls;
#[path = "wire/jams.rs"]
mod jams;
#[path = "wire/lives.rs"]
mod lives;
#[path = "wire/users.rs"]
mod users;

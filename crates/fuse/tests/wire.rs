//! The FUSE server with a small file system in memory, mounted for real.
//!
//! The file system is trivial; the tests check that every call arrives, and its reply. `shelf` is
//! the file system, `stand` mounts it. The same tests go through io_uring in `wire_rings`.

/// The mount option for the transport of requests.
fn transport() -> &'static str {
    "no_io_uring"
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

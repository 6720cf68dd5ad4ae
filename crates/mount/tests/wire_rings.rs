//! The FUSE server with a small file system in memory, mounted for real.
//!
//! What the file system does is trivial; that every call gets there and back is what is tested. `shelf` is the file system,
//! `stand` mounts it. These are the tests of `wire`, with requests that come through
//! io_uring, and those of that way alone.
//!
//! Most kernels have it turned off: it is turned on, and left so. Before Linux 6.14 there is none, and the tests are those of
//! `wire` once more.

use std::fs;

/// The mount option that says which way requests come.
fn transport() -> &'static str {
    let switch = "/sys/module/fuse/parameters/enable_uring";
    let is_on = || fs::read_to_string(switch).is_ok_and(|value| value.starts_with('Y'));
    match is_on() || fs::write(switch, "Y").is_ok() && is_on() {
        true => "io_uring",
        false => "no_io_uring",
    }
}

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

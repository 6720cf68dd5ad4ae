//! Real programs on a mount, until its server is killed.
//!
//! Each test mounts an image of its own through a server in a process of its own (`server`).
//! Afterwards e2fsck finds nothing. `EXTANT_STRESS_FACTOR=N` does N times as much;
//! `EXTANT_STRESS_SEEDS=A..B` kills the server once for each seed.

mod killed;
mod log;
mod programs;
mod project;
mod server;
mod stressors;
mod tree;

/// How many times as much as on usual days is to be done.
fn factor() -> u32 {
    extant_testkit::seeds::number("EXTANT_STRESS_FACTOR", 1) as u32
}

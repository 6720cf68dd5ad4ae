//! `extant pool`, `vol` and `job` as a user runs them.

#[path = "../support/mod.rs"]
mod support;

mod commands;
mod detached;
mod disk;
mod images;
mod killed;
mod libvirt;
mod lvm;
mod rbd;
mod reports;
mod stand;

//! `extant mount` and `extant umount` as a user runs them, and the other commands on paths inside a
//! mount.
//!
//! The oracles are the kernel's mount table, e2fsck, and the files that the kernel's ext4 and the
//! commands on images read afterwards.

#[allow(dead_code)]
#[path = "../fs/image.rs"]
mod image;
#[path = "../support/mod.rs"]
mod support;

mod end;
mod errors;
mod mount8;
mod options;
mod space;
mod stack;
mod stand;
mod start;
mod statistics;
mod users;

//! Tests in a guest: disks and drivers that this machine's kernel lacks.
//!
//! The built program is shared with the guest and run there. The script prints what it
//! found between marks; it is validated here. Last, the host checks the file system on the
//! disk.

mod lvm;
mod probe;
mod sections;
mod stack;
mod ublk;
mod write_zeroes;

#[path = "../support/mod.rs"]
mod support;

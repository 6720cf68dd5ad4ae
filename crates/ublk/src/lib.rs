//! Devices as block devices of this machine: a server of the kernel's ublk driver.
#![doc = include_str!("../README.md")]
//!
//! [`Disk::start`] makes `/dev/ublkbN`, whose requests the threads of this process run on an
//! [`extant_blockdev::Device`]. When the process dies, the disk and the requests in flight stay,
//! and [`Disk::start`] with its number continues them.
//!
//! Module layers, lowest first:
//!
//! 1. `protocol`: structures and numbers of `linux/ublk_cmd.h`
//! 2. `sys`: the rings that carry commands, and the memory that the kernel uses
//! 3. `control`, `request`: commands to the driver; a request of the kernel as an operation
//! 4. `queue`: the thread of a queue
//! 5. `disk`, `list`: a disk from its start to its end; the disks of this machine
//!
//! The crate libublk is not used: it generates its structures with libclang, which a build of
//! Extant does not require, and its executor has no place for the device's own event loop.
//!
//! How it works: docs/internals/ublk.md.

mod control;
mod disk;
mod list;
mod protocol;
mod queue;
mod request;
mod sys;

pub use control::availability;
pub use disk::{Disk, DiskOptions, Recovery, Stopped};
pub use list::{DiskInfo, DiskState, delete, list};
pub use queue::FailureObserver;

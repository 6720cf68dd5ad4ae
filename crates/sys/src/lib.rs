//! Safe functions over kernel interfaces that need `unsafe`, and over those that several crates
//! use.
//!
//! | module | purpose |
//! |---|---|
//! | [`aio`] | many direct reads and writes at a time through Linux AIO |
//! | [`buffer`] | memory aligned for direct I/O |
//! | [`call`] | one read, write, sync, fallocate or discard, with the memory that it uses |
//! | [`direct`] | direct I/O: its alignment, on and off |
//! | [`disk`] | the queue of a disk in sysfs |
//! | [`extents`], [`fiemap`] | the extent map of a file |
//! | [`fuse_ring`] | requests of FUSE through io_uring |
//! | [`identity`] | whether two paths lead to the same file or disk |
//! | [`inherited`] | descriptors that a process was started with |
//! | [`loop_device`] | which loop device is attached to a file |
//! | [`mounted`] | ioctls of a mount of Extant |
//! | [`mounts`] | the kernel's mount tables |
//! | [`range_lock`] | byte-range locks (OFD), as QEMU uses them |
//! | [`ring`] | many calls at a time through io_uring |
//!
//! The crate makes no decisions: the crates above choose the calls, and react when the kernel
//! refuses. Errors are the kernel's, as [`std::io::Error`].

pub mod aio;
pub mod buffer;
pub mod call;
#[cfg(test)]
mod call_list;
pub mod direct;
pub mod disk;
pub mod extents;
pub mod fiemap;
pub mod fuse_ring;
pub mod identity;
pub mod inherited;
pub mod loop_device;
pub mod mounted;
pub mod mounts;
pub mod range_lock;
pub mod ring;

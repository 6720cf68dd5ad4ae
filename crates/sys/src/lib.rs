//! Safe wrappers of kernel interfaces that need `unsafe`, or that several crates use.
//!
//! | module | purpose |
//! |---|---|
//! | [`aio`] | many direct reads and writes at a time through Linux AIO |
//! | [`buffer`] | memory aligned for direct I/O |
//! | [`call`] | one read, write, sync, fallocate or discard, with the memory that it uses |
//! | [`direct`] | direct I/O: its alignment, on and off |
//! | [`disk`] | the queue of a disk in sysfs |
//! | [`extents`], [`fiemap`] | the extent map of a file |
//! | [`identity`] | whether two paths lead to the same file or disk |
//! | [`inherited`] | descriptors that a process was started with |
//! | [`loop_device`] | which loop device has a file as its backing file |
//! | [`mounted`] | ioctls of a mount of Extant |
//! | [`mounts`] | the kernel's tables of mounts |
//! | [`queue`] | queues of calls, and threads that make them |
//! | [`range_lock`] | open file description locks (OFD), as QEMU uses them |
//! | [`ring`] | many calls at a time through io_uring |
//! | [`wait`] | waiting for locks of other processes |
//! | [`write_out`] | write-out of cached data |
//!
//! There is no policy here: the crates above decide which call is made, and handle its errors.
//! Errors are those of the kernel, as [`std::io::Error`].

pub mod aio;
pub mod buffer;
pub mod call;
#[cfg(test)]
mod call_list;
pub mod direct;
pub mod disk;
pub mod extents;
pub mod fiemap;
pub mod identity;
pub mod inherited;
pub mod loop_device;
pub mod mounted;
pub mod mounts;
pub mod queue;
pub mod range_lock;
pub mod ring;
pub mod wait;
pub mod write_out;

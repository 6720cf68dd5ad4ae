//! Safe wrappers of kernel interfaces that need `unsafe`, or that several crates use.
#![doc = include_str!("../README.md")]
//!
//! Module layers, lowest first:
//!
//! 1. `buffer`, `cpus`, `direct`, `end_signal`, `fiemap`, `identity`, `inherited`, `mounted`,
//!    `mounts`, `nvme`, `polling`, `process`, `range_lock`, `scsi`, `shared`, `wait`, `write_out`:
//!    memory aligned for direct I/O; the CPUs of a thread; direct I/O on and off; the end of calls
//!    as a signal; extent maps; whether two paths are one file; inherited descriptors; ioctls of a
//!    mount of Extant; tables of mounts; properties of NVMe namespaces; polling before a blocking
//!    call; names of other processes; open file description locks, as QEMU uses them; properties
//!    of SCSI disks; memory shared with a virtual machine; waiting for locks of other processes;
//!    write-out of cached data
//! 2. `call`, `device_mapper`, `extents`, `loop_device`, `socket_file`: one system call with the
//!    memory that it uses; tables of the device mapper; sources of the extent map; which loop
//!    device has a file as its backing file; listening sockets in the file system
//! 3. `disk`, `queue`: the queue of a disk in sysfs; queues of calls, and threads that make them
//! 4. `aio`, `ring`, `stack`: many calls at a time through Linux AIO and through io_uring; the
//!    layers below a file
//! 5. `disk_below`, `partition`: the disk below all of them; partitions of a disk
//!
//! There is no policy here: the crates above decide which call is made, and handle its errors.
//! Errors are those of the kernel, as [`std::io::Error`].

pub mod aio;
pub mod buffer;
pub mod call;
#[cfg(test)]
mod call_list;
pub mod cpus;
pub mod device_mapper;
pub mod direct;
pub mod disk;
pub mod disk_below;
mod end_signal;
pub mod extents;
pub mod fiemap;
pub mod identity;
pub mod inherited;
pub mod loop_device;
pub mod mounted;
pub mod mounts;
pub mod nvme;
pub mod partition;
pub mod polling;
pub mod process;
pub mod queue;
pub mod range_lock;
pub mod ring;
pub mod scsi;
pub mod shared;
pub mod socket_file;
pub mod stack;
pub mod wait;
pub mod write_out;

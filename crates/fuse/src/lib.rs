//! A multithreaded FUSE server: the kernel's side of a file system, without the file system.
#![doc = include_str!("../README.md")]
//!
//! A file system implements [`Operations`]; [`Session::mount`] mounts it and [`Session::run`]
//! serves it until the unmount. Requests arrive through `/dev/fuse` or io_uring. This crate knows
//! no on-disk format, and the operations know no file descriptor of the connection.
//!
//! The protocol (`include/uapi/linux/fuse.h`) is implemented here, because no other crate supports
//! `statx`, unnamed files, 64-bit copies and the drop of privileges.
//!
//! Module layers, lowest first:
//!
//! 1. `options`, `operations`, `sys`: mount options; the trait that a file system implements, its
//!    types and its notifier; the memory and system calls of FUSE over io_uring
//! 2. `affinity`, `protocol`: the CPUs of workers; structures and numbers of the kernel's
//!    protocol, decoding of requests, encoding of replies
//! 3. `queue`: the interface between a worker and its source of requests
//! 4. `channel`: `/dev/fuse`
//! 5. `ring`: a queue of FUSE over io_uring
//! 6. `transport`, `mounting`: the queues of a connection; attaching it to a mount point
//! 7. `serve`: from one request to one reply; the worker pool; interrupts; notifications
//! 8. `session`, `wire`: a mount from start to end; requests without a kernel

#![deny(unsafe_code)]

mod affinity;
mod channel;
mod mounting;
pub mod operations;
pub mod options;
mod protocol;
mod queue;
mod ring;
mod serve;
mod session;
#[allow(unsafe_code)]
mod sys;
mod transport;
mod wire;

pub use operations::{Notifier, Operations};
pub use options::MountOptions;
pub use session::{Busy, Session, Unmounter, remount, unmount};
#[doc(hidden)]
pub use wire::Wire;

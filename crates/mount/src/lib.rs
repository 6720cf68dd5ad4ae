//! The ext4 engine as a file system that any program can use, through FUSE.
//!
//! From the bottom:
//! - `protocol`: the kernel's structures and numbers; decoding of requests, encoding of answers;
//! - `operations`: what a server answers, in our own types: the line between the two halves;
//! - `serve`: one request to one answer, threads, interrupts; knows no file descriptor;
//! - `transport`: where requests come from: `channel` (`/dev/fuse`) and `ring` (io_uring);
//!   `mounting`: how that gets a place in the tree of names;
//! - `session`: a mount from its beginning to its end; `options`: what stands behind `-o`;
//! - `volume`: the engine as [`Operations`]; `ioctl`: what FUSE cannot carry otherwise.
//!
//! Nothing here needs another FUSE library: none carries `statx`, unnamed files, 64-bit copies and
//! the drop of privileges. The protocol is described by the kernel's `include/uapi/linux/fuse.h`.

#![forbid(unsafe_code)]

mod channel;
pub mod ioctl;
mod mounting;
mod notifier;
pub mod operations;
mod options;
mod protocol;
mod ring;
mod serve;
mod session;
mod transport;
pub mod volume;

pub use notifier::Notifier;
pub use operations::Operations;
pub use options::{
    AccessTimes, Audience, AutoUnmount, IdMapping, IoUring, MountOptions, Placement, WriteCache,
};
pub use session::{Busy, Session, Unmounter, remount, unmount};

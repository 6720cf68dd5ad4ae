//! What is done to open files.

use bitflags::bitflags;
use rustix::fs::FallocateFlags;

use super::{Handle, NodeId, Privileges};

bitflags! {
    /// How the kernel treats an open file or directory.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct OpenedFlags: u32 {
        /// Nothing of its data is cached.
        const DIRECT_IO = 1 << 0;
        /// What is cached of its data since the last time it was open is still right.
        const KEEP_CACHE = 1 << 1;
        /// It has no positions that could be sought.
        const NONSEEKABLE = 1 << 2;
        /// The names of a directory may be cached.
        const CACHE_DIRECTORY = 1 << 3;
        /// It has no position at all.
        const STREAM = 1 << 4;
        /// [`Operations::flush`](super::Operations::flush) need not be called, unless there is a
        /// writeback cache.
        const NO_FLUSH = 1 << 5;
        /// Direct writes may come from several threads at once.
        const PARALLEL_DIRECT_WRITES = 1 << 6;
    }
}

/// An open file or directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// What it is called from now on.
    pub handle: Handle,
    /// How the kernel treats it.
    pub flags: OpenedFlags,
}

/// Data to read.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// Through which open file.
    pub handle: Handle,
    /// First byte in the file.
    pub offset: u64,
    /// What the data is for.
    pub origin: ReadOrigin,
}

/// What the data of a read is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOrigin {
    /// For a caller who reads past the kernel's cache.
    Direct,
    /// For pages of the kernel's cache, which are locked until the answer: no answer may wait for a
    /// notice about the file's data.
    Cache,
}

/// Data to write.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// Through which open file; of a write from the cache any that was open for writing.
    pub handle: Handle,
    /// First byte in the file.
    pub offset: u64,
    /// What is written; aligned to 4096 bytes in memory.
    pub data: &'a [u8],
    /// Whose write it is.
    pub origin: WriteOrigin,
    /// Whether it takes privileges away.
    pub privileges: Privileges,
}

/// Whose write it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOrigin {
    /// That of a caller who writes past the kernel's cache.
    Direct,
    /// That of a caller who writes to the cache and waits for the server. The pages are locked
    /// until the answer.
    Caller,
    /// The kernel's, of what was written to its cache before. The caller means nothing.
    Cache,
}

/// How much is made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncScope {
    /// Data and what is needed to read it (`fdatasync`).
    Data,
    /// Everything.
    All,
}

/// A change of the space of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fallocate {
    /// Through which open file.
    pub handle: Handle,
    /// What is done.
    pub mode: FallocateFlags,
    /// First byte in the file.
    pub offset: u64,
    /// Bytes, more than 0.
    pub length: u64,
}

/// What to seek.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// Data.
    Data,
    /// A hole; the end of the file is one.
    Hole,
}

/// A place in an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which file.
    pub node: NodeId,
    /// Through which open file.
    pub handle: Handle,
    /// First byte.
    pub offset: u64,
}

/// A copy between two files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// What is read.
    pub from: Place,
    /// What is written.
    pub to: Place,
    /// Bytes.
    pub length: u64,
}

/// What a handle stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// From [`Operations::open`](super::Operations::open) or `create`.
    File,
    /// From [`Operations::open_directory`](super::Operations::open_directory).
    Directory,
}

/// A command on an open file.
#[derive(Clone, Copy, Debug)]
pub struct Ioctl<'a> {
    /// Through which open file.
    pub handle: Handle,
    /// What the handle stands for.
    pub kind: FileKind,
    /// The number of the command.
    pub command: u32,
    /// The caller's argument as it is: an address in the caller for commands with data.
    pub argument: u64,
    /// What goes in.
    pub input: &'a [u8],
}

/// What came of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoctlReply {
    /// What `ioctl(2)` returns: 0, or what the command defines. Not negative.
    pub result: i32,
    /// How many bytes of the output count.
    pub output_length: usize,
}

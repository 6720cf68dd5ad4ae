//! Types of operations on open files.

use bitflags::bitflags;
use rustix::fs::{FallocateFlags, OFlags};

use super::{Handle, NodeId, Privileges};

bitflags! {
    /// How the kernel treats an open file or directory.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct OpenedFlags: u32 {
        /// The kernel does not cache its data.
        const DIRECT_IO = 1 << 0;
        /// Data cached while it was last open is still valid.
        const KEEP_CACHE = 1 << 1;
        /// It cannot seek.
        const NONSEEKABLE = 1 << 2;
        /// The names of a directory may be cached.
        const CACHE_DIRECTORY = 1 << 3;
        /// It has no file position.
        const STREAM = 1 << 4;
        /// [`Operations::flush`](super::Operations::flush) need not be called, unless there is a
        /// writeback cache.
        const NO_FLUSH = 1 << 5;
        /// Direct writes may be concurrent.
        const PARALLEL_DIRECT_WRITES = 1 << 6;
    }
}

/// An open file or directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// The server's number for it.
    pub handle: Handle,
    /// How the kernel treats it.
    pub flags: OpenedFlags,
}

/// Data to read.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// The open file.
    pub handle: Handle,
    /// Offset in bytes.
    pub offset: u64,
    /// Origin of the read.
    pub origin: ReadOrigin,
    /// Flags of the open file now, such as `O_NOATIME`, which `fcntl` can change.
    pub flags: OFlags,
}

/// Origin of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOrigin {
    /// For a caller that bypasses the kernel's cache.
    Direct,
    /// For pages of the kernel's cache, which are locked until the reply: the reply must not wait
    /// for a notification about the file's data.
    Cache,
}

/// Data to write.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// The open file; for a write from the cache any handle open for writing.
    pub handle: Handle,
    /// First byte in the file.
    pub offset: u64,
    /// The data, aligned to 4096 bytes in memory.
    pub data: &'a [u8],
    /// The origin of the write.
    pub origin: WriteOrigin,
    /// Whether it drops privileges.
    pub privileges: Privileges,
    /// Scope of what must be durable when a direct write returns: by the descriptor's `O_SYNC` or
    /// `O_DSYNC`, the call's `RWF_SYNC` or `RWF_DSYNC`, or the mount option `sync`. After other
    /// writes the kernel asks for a sync.
    pub sync: Option<SyncScope>,
}

/// The origin of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOrigin {
    /// A caller that bypasses the kernel's cache.
    Direct,
    /// A caller that writes to the cache and waits for the server. The pages are locked until the
    /// reply.
    Caller,
    /// The kernel writes back its cache. The caller of the request has no meaning.
    Cache,
}

/// How much is made durable, the less first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SyncScope {
    /// Data and the metadata needed to read it (`fdatasync`).
    Data,
    /// Data and all metadata (`fsync`).
    All,
}

/// `O_DSYNC`. [`OFlags::DSYNC`] of rustix has the bits of `O_SYNC` on Linux.
pub const DSYNC: OFlags = OFlags::from_bits_retain(libc::O_DSYNC as u32);

impl SyncScope {
    /// Scope of what must be durable after a change, by the flags of the open file.
    pub fn of(flags: OFlags) -> Option<Self> {
        if flags.contains(OFlags::SYNC) {
            Some(Self::All)
        } else if flags.contains(DSYNC) {
            Some(Self::Data)
        } else {
            None
        }
    }
}

/// A change of the space of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fallocate {
    /// The open file.
    pub handle: Handle,
    /// The mode.
    pub mode: FallocateFlags,
    /// Offset in bytes.
    pub offset: u64,
    /// Length in bytes, more than 0.
    pub length: u64,
}

/// Whence of a seek.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// Data.
    Data,
    /// A hole; the end of the file is one.
    Hole,
}

/// A position in an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePosition {
    /// The node.
    pub node: NodeId,
    /// The handle.
    pub handle: Handle,
    /// Offset in bytes.
    pub offset: u64,
}

/// A copy between two files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// The source.
    pub from: FilePosition,
    /// The destination.
    pub to: FilePosition,
    /// Length in bytes.
    pub length: u64,
}

/// The kind of a handle.
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
    /// The open file.
    pub handle: Handle,
    /// The kind of the handle.
    pub kind: FileKind,
    /// The command number.
    pub command: u32,
    /// The caller's argument: for commands with data an address in its memory.
    pub argument: u64,
    /// The input.
    pub input: &'a [u8],
}

/// The result of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoctlReply {
    /// Result of `ioctl(2)`: 0, or as the command defines. Not negative.
    pub result: i32,
    /// Number of valid bytes of the output.
    pub output_length: usize,
}

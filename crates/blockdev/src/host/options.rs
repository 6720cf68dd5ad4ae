//! Options for opening a host file or disk.

use extant_sys::ring::Ring;

/// A kernel file system allocates so much in a few milliseconds, while others wait for the inode.
const ASSIGN_MAX: u64 = 1 << 30;

/// Options for opening a host device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostOptions {
    /// Whether anything may be changed.
    pub access: HostAccess,
    /// Whether the kernel's page cache is used.
    pub cache: HostCache,
    /// How calls reach the kernel.
    pub engine: HostEngine,
    /// Calls that one batch keeps in flight; at least 1. Threads that submit at the same time have
    /// as many each.
    pub depth: u32,
    /// Most bytes of one allocation, for which others wait; while they do, allocations are smaller.
    pub assign_max: u64,
    /// End of the device if the file does not end with a whole sector.
    pub end: HostEnd,
}

/// End of a device whose file does not end with a whole sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostEnd {
    /// With the last whole block: the rest belongs to the file, and not to the device.
    WholeBlock,
    /// With the file: blocks have one byte. Opening fails with `Unsupported` for direct I/O, which
    /// cannot access such an end.
    Exact,
}

/// Access to the file or disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostAccess {
    /// Everything. Keeps every other host device out.
    ReadWrite,
    /// Reading; the device says [`Features::READ_ONLY`](crate::Features::READ_ONLY). Keeps those
    /// out that would write to a file.
    ReadOnly,
}

/// Caching of data between the caller and the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostCache {
    /// Nowhere: `O_DIRECT`. Refused with `Unsupported` by file systems that have none. Memory that
    /// is not aligned for the disk is copied.
    Direct,
    /// In the page cache, until a flush at the latest.
    Buffered,
}

/// How reads and writes reach the kernel. Other calls take the same way if it has them, and are
/// made by the thread of the batch otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostEngine {
    /// The best for each batch: plain calls for a single one, Linux AIO for direct writes and
    /// streams, else io_uring. Without io_uring [`Threads`](Self::Threads).
    Auto,
    /// Plain calls, from several threads where there are many.
    Threads,
    /// Linux AIO. Opening fails with `InvalidArgument` without direct I/O, which it needs to be
    /// asynchronous, and with `Unsupported` where the kernel gives no context.
    Native,
    /// io_uring. Opening fails with `Unsupported` where it is missing or forbidden.
    Uring,
}

impl HostEngine {
    /// The engine of a device that is opened with this one, if it can be:
    /// [`Threads`](Self::Threads) for [`Auto`](Self::Auto) without io_uring.
    #[must_use]
    pub fn at_work(self) -> Self {
        match self {
            Self::Auto if Ring::new(1).is_err() => Self::Threads,
            engine => engine,
        }
    }
}

impl Default for HostOptions {
    /// Read and write through the page cache, 32 calls at a time by the best engine.
    fn default() -> Self {
        Self {
            access: HostAccess::ReadWrite,
            cache: HostCache::Buffered,
            engine: HostEngine::Auto,
            depth: 32,
            assign_max: ASSIGN_MAX,
            end: HostEnd::WholeBlock,
        }
    }
}

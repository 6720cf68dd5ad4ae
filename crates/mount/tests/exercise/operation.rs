//! Operations of the exerciser.

use extant_space::FallocateMode;

use crate::model::Seek;

/// One step. `file` is the number of a worker's file; offsets and lengths are in bytes.
#[derive(Clone, Debug)]
pub enum Operation {
    Read {
        file: usize,
        way: Read,
        offset: u64,
        length: usize,
    },
    /// The data follows from the seed.
    Write {
        file: usize,
        way: Write,
        offset: u64,
        length: usize,
        seed: u64,
    },
    Resize {
        file: usize,
        way: Resize,
        size: u64,
    },
    Fallocate {
        file: usize,
        way: Fallocate,
        mode: FallocateMode,
        offset: u64,
        length: u64,
    },
    Seek {
        file: usize,
        what: Seek,
        offset: u64,
    },
    /// `copy_file_range`, until all is copied or nothing is left.
    Copy {
        from: usize,
        from_offset: u64,
        to: usize,
        to_offset: u64,
        length: u64,
    },
    Sync {
        file: usize,
        what: Sync,
    },
    /// Closes all descriptors of a file; the next step opens new ones.
    Close {
        file: usize,
    },
    /// Holds on to a mapping of all that the file can be, which the next steps use.
    KeepMapping {
        file: usize,
    },
    DropMapping {
        file: usize,
    },
    /// `chattr +S` or `-S`: with it, opened files bypass the cache.
    SetSync {
        file: usize,
        is_set: bool,
    },
    /// Makes the kernel drop the clean pages of a file.
    Forget {
        file: usize,
    },
    /// Compares the extent map.
    Map {
        file: usize,
    },
    /// Compares size and content as a whole.
    Compare {
        file: usize,
    },
}

/// How data is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    Cached,
    Direct,
    /// In this number of parts.
    Vectored(usize),
    /// Direct, in this number of concurrent parts.
    Submitted(usize),
    /// With the bits of the companion.
    Mapped(u32),
}

/// How data is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    Cached,
    Direct,
    /// With `O_APPEND`; the offset is that of the end.
    Append,
    /// In this number of parts.
    Vectored(usize),
    /// Direct, in this number of concurrent parts.
    Submitted(usize),
    /// With the bits of the companion; inside the file.
    Mapped(u32),
}

/// How a file gets another size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resize {
    Descriptor,
    /// `open` with `O_TRUNC`; the size is 0.
    Open,
}

/// How space is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallocate {
    SystemCall,
    ControlCall,
}

/// Scope of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    All,
    Data,
    FileSystem,
}

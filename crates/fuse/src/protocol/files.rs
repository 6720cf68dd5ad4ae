//! Structures of operations on open files.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The body of `OPEN` and `OPENDIR`.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct OpenIn {
    pub flags: u32,
    pub open_flags: u32,
}

/// In `open_flags`: truncation drops privileges.
pub(crate) const OPEN_KILL_SUIDGID: u32 = 1 << 0;

/// The reply to `OPEN` and `OPENDIR`, and the second half of that to `CREATE` and `TMPFILE`.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct OpenOut {
    pub fh: u64,
    pub open_flags: u32,
    pub padding: u32,
}

/// The body of `RELEASE` and `RELEASEDIR`.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct ReleaseIn {
    pub fh: u64,
    pub flags: u32,
    pub release_flags: u32,
    pub lock_owner: u64,
}

/// The body of `FLUSH`.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct FlushIn {
    pub fh: u64,
    pub unused: u32,
    pub padding: u32,
    pub lock_owner: u64,
}

/// The body of `READ`, `READDIR` and `READDIRPLUS`.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct ReadIn {
    pub fh: u64,
    pub offset: u64,
    pub size: u32,
    pub read_flags: u32,
    pub lock_owner: u64,
    pub flags: u32,
    pub padding: u32,
}

/// In `read_flags`: the lock owner is valid, which is so for direct reads only.
pub(crate) const READ_LOCKOWNER: u32 = 1 << 1;

/// The body of `WRITE`, followed by the data.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct WriteIn {
    pub fh: u64,
    pub offset: u64,
    pub size: u32,
    pub write_flags: u32,
    pub lock_owner: u64,
    /// Those of the open file, with the synchronisation that the call wants.
    pub flags: u32,
    pub padding: u32,
}

/// In `write_flags`: data from the kernel's cache; the handle is any one open for writing.
pub(crate) const WRITE_CACHE: u32 = 1 << 0;
/// In `write_flags`: the lock owner is valid, which is so for direct writes only.
pub(crate) const WRITE_LOCKOWNER: u32 = 1 << 1;
/// In `write_flags`: the write drops privileges.
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;

/// The reply to `WRITE`, and to `COPY_FILE_RANGE`.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct WriteOut {
    pub size: u32,
    pub padding: u32,
}

/// The body of `FSYNC` and `FSYNCDIR`.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct FsyncIn {
    pub fh: u64,
    pub fsync_flags: u32,
    pub padding: u32,
}

/// In `fsync_flags`: data and the metadata needed to read it.
pub(crate) const FSYNC_FDATASYNC: u32 = 1 << 0;

/// The body of `FALLOCATE`.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct FallocateIn {
    pub fh: u64,
    pub offset: u64,
    pub length: u64,
    pub mode: u32,
    pub padding: u32,
}

/// The body of `LSEEK`.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct LseekIn {
    pub fh: u64,
    pub offset: u64,
    pub whence: u32,
    pub padding: u32,
}

/// In `whence`: the next data.
pub(crate) const SEEK_DATA: u32 = 3;
/// In `whence`: the next hole.
pub(crate) const SEEK_HOLE: u32 = 4;

/// The reply to `LSEEK`.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct LseekOut {
    pub offset: u64,
}

/// The body of `COPY_FILE_RANGE` and `COPY_FILE_RANGE_64`; the source is the header's node.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct CopyIn {
    pub fh_in: u64,
    pub off_in: u64,
    pub nodeid_out: u64,
    pub fh_out: u64,
    pub off_out: u64,
    pub len: u64,
    pub flags: u64,
}

/// The reply to `COPY_FILE_RANGE_64`.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct CopyOut {
    pub bytes_copied: u64,
}

/// The body of `IOCTL`, followed by the input.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct IoctlIn {
    pub fh: u64,
    pub flags: u32,
    pub cmd: u32,
    pub arg: u64,
    pub in_size: u32,
    pub out_size: u32,
}

/// In `flags` of [`IoctlIn`]: addresses instead of data; only character devices get them.
pub(crate) const IOCTL_UNRESTRICTED: u32 = 1 << 1;
/// In `flags` of [`IoctlIn`]: the handle is a directory's.
pub(crate) const IOCTL_DIR: u32 = 1 << 4;

/// The reply to `IOCTL`, followed by the output.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct IoctlOut {
    pub result: i32,
    pub flags: u32,
    pub in_iovs: u32,
    pub out_iovs: u32,
}

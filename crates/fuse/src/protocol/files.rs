//! Structures of operations on open files.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Of `OPEN` and `OPENDIR`.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct OpenIn {
    pub flags: u32,
    pub open_flags: u32,
}

/// In `open_flags`: truncating takes privileges away.
pub(crate) const OPEN_KILL_SUIDGID: u32 = 1 << 0;

/// The answer to `OPEN` and `OPENDIR`, and the second half of that to `CREATE` and `TMPFILE`.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct OpenOut {
    pub fh: u64,
    pub open_flags: u32,
    pub padding: u32,
}

/// Of `RELEASE` and `RELEASEDIR`.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct ReleaseIn {
    pub fh: u64,
    pub flags: u32,
    pub release_flags: u32,
    pub lock_owner: u64,
}

/// Of `FLUSH`.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct FlushIn {
    pub fh: u64,
    pub unused: u32,
    pub padding: u32,
    pub lock_owner: u64,
}

/// Of `READ`, `READDIR` and `READDIRPLUS`.
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

/// In `read_flags`: the lock owner is given, as only reads past the kernel's cache do.
pub(crate) const READ_LOCKOWNER: u32 = 1 << 1;

/// Of `WRITE`, followed by the data.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct WriteIn {
    pub fh: u64,
    pub offset: u64,
    pub size: u32,
    pub write_flags: u32,
    pub lock_owner: u64,
    pub flags: u32,
    pub padding: u32,
}

/// In `write_flags`: data from the kernel's cache; the handle is one of those that could have
/// written it.
pub(crate) const WRITE_CACHE: u32 = 1 << 0;
/// In `write_flags`: the lock owner is given, as only writes past the kernel's cache do.
pub(crate) const WRITE_LOCKOWNER: u32 = 1 << 1;
/// In `write_flags`: the write takes privileges away.
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;

/// The answer to `WRITE`, and to `COPY_FILE_RANGE`.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct WriteOut {
    pub size: u32,
    pub padding: u32,
}

/// Of `FSYNC` and `FSYNCDIR`.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct FsyncIn {
    pub fh: u64,
    pub fsync_flags: u32,
    pub padding: u32,
}

/// In `fsync_flags`: data, and what is needed to read it.
pub(crate) const FSYNC_FDATASYNC: u32 = 1 << 0;

/// Of `FALLOCATE`.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct FallocateIn {
    pub fh: u64,
    pub offset: u64,
    pub length: u64,
    pub mode: u32,
    pub padding: u32,
}

/// Of `LSEEK`.
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

/// The answer to `LSEEK`.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct LseekOut {
    pub offset: u64,
}

/// Of `COPY_FILE_RANGE` and `COPY_FILE_RANGE_64`; what is read is the header's node.
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

/// The answer to `COPY_FILE_RANGE_64`.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct CopyOut {
    pub bytes_copied: u64,
}

/// Of `IOCTL`, followed by what goes in.
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

/// In `flags` of [`IoctlIn`]: addresses instead of data, as only character devices get them.
pub(crate) const IOCTL_UNRESTRICTED: u32 = 1 << 1;
/// In `flags` of [`IoctlIn`]: the handle is a directory's.
pub(crate) const IOCTL_DIR: u32 = 1 << 4;

/// The answer to `IOCTL`, followed by what comes out.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct IoctlOut {
    pub result: i32,
    pub flags: u32,
    pub in_iovs: u32,
    pub out_iovs: u32,
}

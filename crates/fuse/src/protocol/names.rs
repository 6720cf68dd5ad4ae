//! Structures of operations on names.

use zerocopy::FromBytes;

/// The body of `FORGET`.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct ForgetIn {
    pub nlookup: u64,
}

/// The body of `BATCH_FORGET`, followed by [`ForgetOne`]s.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct BatchForgetIn {
    pub count: u32,
    pub dummy: u32,
}

/// One node of `BATCH_FORGET`.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct ForgetOne {
    pub nodeid: u64,
    pub nlookup: u64,
}

/// The body of `MKNOD`, followed by the name.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct MknodIn {
    pub mode: u32,
    pub rdev: u32,
    pub umask: u32,
    pub padding: u32,
}

/// The body of `MKDIR`, followed by the name.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct MkdirIn {
    pub mode: u32,
    pub umask: u32,
}

/// The body of `RENAME`, followed by the old and the new name.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct RenameIn {
    pub newdir: u64,
}

/// The body of `RENAME2`, followed by the old and the new name.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct Rename2In {
    pub newdir: u64,
    pub flags: u32,
    pub padding: u32,
}

/// The body of `LINK`, followed by the new name.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct LinkIn {
    pub oldnodeid: u64,
}

/// The body of `CREATE` and `TMPFILE`, followed by the name.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct CreateIn {
    pub flags: u32,
    pub mode: u32,
    pub umask: u32,
    /// As in [`OpenIn`](super::files::OpenIn).
    pub open_flags: u32,
}

//! Structures of operations on extended attributes.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Of `SETXATTR`, followed by the name and the value.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct SetxattrIn {
    pub size: u32,
    pub flags: u32,
}

/// Follows [`SetxattrIn`] where that was agreed (`SETXATTR_EXT`).
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct SetxattrExtension {
    pub setxattr_flags: u32,
    pub padding: u32,
}

/// In `setxattr_flags`: a new access list takes the set-group-ID bit away.
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;

/// Of `GETXATTR`, followed by the name, and of `LISTXATTR`. A size of 0 asks for the size alone.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct GetxattrIn {
    pub size: u32,
    pub padding: u32,
}

/// The answer that is a size alone.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct GetxattrOut {
    pub size: u32,
    pub padding: u32,
}

//! Structures of operations on extended attributes.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The body of `SETXATTR`, followed by the name and the value.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct SetxattrIn {
    pub size: u32,
    pub flags: u32,
}

/// Follows [`SetxattrIn`] if `SETXATTR_EXT` was negotiated.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct SetxattrExtension {
    pub setxattr_flags: u32,
    pub padding: u32,
}

/// In `setxattr_flags`: a new access list clears the set-group-ID bit.
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;

/// The body of `GETXATTR`, followed by the name, and of `LISTXATTR`. A size of 0 requests the size
/// alone.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct GetxattrIn {
    pub size: u32,
    pub padding: u32,
}

/// The reply with the size alone.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct GetxattrOut {
    pub size: u32,
    pub padding: u32,
}

//! Appearance of the file, and permitted changes.

use std::ffi::OsString;

use extant_blockdev::{Access, DiscardPolicy};
use extant_fuse::operations::Timestamp;

/// Whether the file grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Growth {
    /// It has the size of the device, and its end is `ENOSPC`.
    #[default]
    Fixed,
    /// Writes, truncation and allocation past the end make the device larger.
    OnDemand,
}

/// Owner and permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permissions of the file. Those to write mean nothing in a read-only mount.
    pub permissions: u32,
}

/// How a device appears as a file.
#[derive(Clone, Debug)]
pub struct DeviceFileOptions {
    /// Name of the file in the directory that is mounted; `None` mounts the file itself.
    pub name: Option<OsString>,
    /// Whether it can be changed.
    pub access: Access,
    /// Treatment of punched holes.
    pub punch: DiscardPolicy,
    /// Whether it grows.
    pub growth: Growth,
    /// Owner and permissions, which `chown` and `chmod` change until the unmount.
    pub owner: Owner,
    /// When it was modified last.
    pub modified: Timestamp,
}

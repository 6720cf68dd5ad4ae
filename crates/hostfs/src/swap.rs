//! Active swap files: no operation may move or overwrite an active swap file.
//!
//! The kernel refuses writes to them, but late and in other words (a rename is `EPERM`, a
//! lease `EAGAIN`), so `/proc/swaps` is asked before any work.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use extant_space::{Error, ErrorKind, Result};
use extant_sys::mounts::path_of;

/// Refuses the file with this device and inode number when the kernel swaps to it; `path` is
/// for the message.
pub(crate) fn check_is_none(path: &Path, device: u64, inode: u64) -> Result<()> {
    let list = fs::read("/proc/swaps").unwrap_or_default();
    let is_active = list.split(|&byte| byte == b'\n').skip(1).any(|line| {
        let name = line.split(|&byte| byte == b' ' || byte == b'\t').next();
        fs::metadata(path_of(name.unwrap_or_default()))
            .is_ok_and(|file| (file.dev(), file.ino()) == (device, inode))
    });
    if is_active {
        return Err(Error::new(ErrorKind::InUse)
            .at(path)
            .detail("is an active swap file")
            .advice("swapoff releases it"));
    }
    Ok(())
}

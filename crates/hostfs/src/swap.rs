//! Active swap files: nothing may move or overwrite what the kernel swaps to.
//!
//! The kernel refuses writes to them, but late and in other words (a rename is `EPERM`, a
//! lease `EAGAIN`), so `/proc/swaps` is asked before any work.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use extant_space::{Error, ErrorKind, Result};

/// Refuses the file with this device and inode number when the kernel swaps to it; `path` is
/// for the message.
pub(crate) fn check_is_none(path: &Path, device: u64, inode: u64) -> Result<()> {
    let list = fs::read("/proc/swaps").unwrap_or_default();
    let is_active = list.split(|&byte| byte == b'\n').skip(1).any(|line| {
        let name = line.split(|&byte| byte == b' ' || byte == b'\t').next();
        let name = unescape(name.unwrap_or_default());
        fs::metadata(OsStr::from_bytes(&name))
            .is_ok_and(|file| (file.dev(), file.ino()) == (device, inode))
    });
    if is_active {
        return Err(Error::new(ErrorKind::InUse)
            .at(path)
            .detail("is an active swap file")
            .advice("swapoff lets go of it"));
    }
    Ok(())
}

/// Undoes the list's octal escapes (`\040` is a space).
fn unescape(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    let mut rest = name;
    while let [first, after @ ..] = rest {
        let escaped = match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] => {
                Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
            }
            _ => None,
        };
        out.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &rest[4..] } else { after };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_undone_and_other_backslashes_stay() {
        assert_eq!(unescape(b"/a\\040b\\134c"), b"/a b\\c");
        assert_eq!(unescape(b"\\04"), b"\\04");
        assert_eq!(unescape(b"\\999"), b"\\999");
    }
}

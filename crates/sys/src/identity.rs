//! What makes a file or disk the same under another name.

use std::io;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, makedev, statx};

/// Two paths with the same identity lead to the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Identity {
    /// Anything with a place in a file system.
    File {
        /// The file system.
        device: u64,
        /// The number there.
        inode: u64,
    },
    /// A block device, of which there may be several nodes.
    Disk(u64),
}

impl Identity {
    /// The identity of a path's target. The server of a network or FUSE file system is not asked,
    /// so a hanging one does not block.
    ///
    /// # Errors
    /// Those of `statx`.
    pub fn of(path: &Path) -> io::Result<Self> {
        let wanted = StatxFlags::TYPE | StatxFlags::INO;
        let answer = statx(CWD, path, AtFlags::STATX_DONT_SYNC, wanted)?;
        let is_disk = FileType::from_raw_mode(answer.stx_mode.into()) == FileType::BlockDevice;
        Ok(match is_disk {
            true => Self::Disk(makedev(answer.stx_rdev_major, answer.stx_rdev_minor)),
            false => Self::File {
                device: makedev(answer.stx_dev_major, answer.stx_dev_minor),
                inode: answer.stx_ino,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_stays_under_another_name_and_is_no_one_elses() {
        let folder = tempfile::tempdir().unwrap();
        let [one, same, other] = ["one", "same", "other"].map(|name| folder.path().join(name));
        std::fs::write(&one, "").unwrap();
        std::fs::write(&other, "").unwrap();
        std::os::unix::fs::symlink(&one, &same).unwrap();
        let of = |path: &Path| Identity::of(path).unwrap();
        assert_eq!(of(&one), of(&same));
        assert_ne!(of(&one), of(&other));
        assert!(Identity::of(&folder.path().join("none")).is_err());
    }
}

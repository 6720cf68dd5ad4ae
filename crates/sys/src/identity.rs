//! Identity of a file or disk, whatever its name.

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
    /// The identity of the target of a path. A network or FUSE server is not asked, so a hanging
    /// server does not block the caller.
    ///
    /// # Errors
    /// Those of `statx`.
    pub fn of(path: &Path) -> io::Result<Self> {
        let wanted = StatxFlags::TYPE | StatxFlags::INO;
        let answer = statx(CWD, path, AtFlags::STATX_DONT_SYNC, wanted)?;
        let is_disk = FileType::from_raw_mode(answer.stx_mode.into()) == FileType::BlockDevice;
        Ok(if is_disk {
            Self::Disk(makedev(answer.stx_rdev_major, answer.stx_rdev_minor))
        } else {
            Self::File {
                device: makedev(answer.stx_dev_major, answer.stx_dev_minor),
                inode: answer.stx_ino,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_stays_under_another_name_and_is_no_one_elses() {
        let directory = tempfile::tempdir().unwrap();
        let [one, same, other] = ["one", "same", "other"].map(|name| directory.path().join(name));
        std::fs::write(&one, "").unwrap();
        std::fs::write(&other, "").unwrap();
        std::os::unix::fs::symlink(&one, &same).unwrap();
        let of = |path: &Path| Identity::of(path).unwrap();
        assert_eq!(of(&one), of(&same));
        assert_ne!(of(&one), of(&other));
        assert!(Identity::of(&directory.path().join("none")).is_err());
    }
}

//! Directories for one test, removed even after the process was killed.
//!
//! Every directory contains a lock file that its owner holds. A directory with a free lock is
//! stale: before a process creates its first directory, it unmounts stale ones, detaches their
//! loop devices and removes their files.
//!
//! The lock file is locked before it gets its name, so a directory under construction is never
//! taken for a stale one.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Once;

use rustix::fs::{FlockOperation, flock, statfs};
use rustix::mount::{UnmountFlags, unmount};
use tempfile::TempDir;

use crate::command;

const PREFIX: &str = "extant-test-";
const LOCK: &str = "lock";
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// A directory on a disk, for one test. Removed when dropped.
#[derive(Debug)]
pub struct Workdir {
    directory: TempDir,
    _lock: File,
}

impl Workdir {
    /// An empty directory that every user may enter.
    ///
    /// It is in `$EXTANT_SCRATCH` if that is set, in the system's directory for temporary
    /// files if that is on a disk, or in `/var/tmp`.
    ///
    /// # Panics
    /// When it cannot be made.
    #[track_caller]
    pub fn new() -> Self {
        static SWEPT: Once = Once::new();
        let base = base();
        SWEPT.call_once(|| sweep(&base));
        Self::in_directory(&base)
            .unwrap_or_else(|error| panic!("test directory in {}: {error}", base.display()))
    }

    fn in_directory(base: &Path) -> io::Result<Self> {
        let directory = tempfile::Builder::new().prefix(PREFIX).tempdir_in(base)?;
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755))?;
        let unnamed = directory.path().join("lock-new");
        let lock = File::create(&unnamed)?;
        flock(&lock, FlockOperation::LockExclusive)?;
        fs::rename(unnamed, directory.path().join(LOCK))?;
        Ok(Self {
            directory,
            _lock: lock,
        })
    }

    /// Its path. The name `lock` in it is reserved.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Makes a directory in it.
    ///
    /// # Panics
    /// When it cannot be made.
    #[track_caller]
    pub fn directory(&self, name: &str) -> PathBuf {
        let directory = self.path().join(name);
        fs::create_dir(&directory)
            .unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        directory
    }
}

impl Default for Workdir {
    fn default() -> Self {
        Self::new()
    }
}

fn base() -> PathBuf {
    let chosen = std::env::var_os("EXTANT_SCRATCH").map(PathBuf::from);
    let base = chosen.unwrap_or_else(|| {
        let usual = std::env::temp_dir();
        match statfs(&usual) {
            Ok(answer) if answer.f_type as u64 == TMPFS_MAGIC => "/var/tmp".into(),
            _ => usual,
        }
    });
    // Mounts and loop devices are listed by their real path.
    fs::canonicalize(&base).unwrap_or(base)
}

/// Removes the files of ended processes in `base`.
fn sweep(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else {
        return;
    };
    for entry in entries.flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
        let Ok(lock) = File::open(entry.path().join(LOCK)) else {
            continue;
        };
        if is_ours && flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            clear(&entry.path());
        }
    }
}

fn clear(directory: &Path) {
    // Listed first: of a file on a removed mount, only the end of the path is known.
    let devices = loop_devices_in(directory);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    // The last mounted is unmounted first; the fifth word of a line is the place.
    for line in mounts.lines().rev() {
        let place = line.split(' ').nth(4).unwrap_or_default();
        if Path::new(place).starts_with(directory) {
            let _ = unmount(place, UnmountFlags::DETACH);
        }
    }
    for node in devices {
        let _ = command::run(command::tool("losetup").arg("--detach").arg(node));
    }
    let _ = fs::remove_dir_all(directory);
}

fn loop_devices_in(directory: &Path) -> Vec<PathBuf> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    devices
        .filter(|device| {
            let backing = fs::read_to_string(device.path().join("loop/backing_file"));
            backing.is_ok_and(|file| Path::new(file.trim_end()).starts_with(directory))
        })
        .map(|device| Path::new("/dev").join(device.file_name()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweep_removes_directories_without_owner_and_no_others() {
        let base = tempfile::tempdir().unwrap();
        let owned = Workdir::in_directory(base.path()).unwrap();
        let left = Workdir::in_directory(base.path()).unwrap();
        let left = {
            let Workdir { directory, _lock } = left;
            directory.keep()
        };
        fs::write(left.join("image"), b"x").unwrap();
        let foreign = base.path().join("other");
        fs::create_dir(&foreign).unwrap();
        fs::write(foreign.join(LOCK), b"").unwrap();

        sweep(base.path());

        assert!(!left.exists());
        assert!(owned.path().exists());
        assert!(foreign.exists());
    }

    #[test]
    fn dropped_directory_is_gone() {
        let work = Workdir::new();
        let path = work.path().to_owned();
        assert!(work.directory("a").is_dir());
        drop(work);
        assert!(!path.exists());
    }
}

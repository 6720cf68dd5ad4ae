//! Other users of an image: mounts, ours and the kernel's, loop devices, processes.
//!
//! The locks of `HostDevice` exclude programs that respect them. The kernel's loop devices and
//! other programs do not, so they are searched for in every mount namespace; a user that arrives
//! after the search is not detected.

use std::fmt;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use extant_space::{Error, ErrorKind, Remedy, Result};
use extant_sys::disk::stacked_on;
use extant_sys::loop_device::{Certainty, over};
use extant_sys::mounts::Mount;

use super::{IMAGE_SUBTYPE, mounts_of};

/// A process just forked holds its parent's open files until it calls `exec`.
const BUSY_TIMEOUT: Duration = Duration::from_millis(500);

/// Refuses a file below a loop device, or that another process may write to.
pub(super) fn check(path: &Path) -> Result<()> {
    let Ok(metadata) = fs::metadata(path) else {
        return Ok(());
    };
    if !metadata.is_file() {
        return Ok(());
    }
    let in_use = |detail: String| Error::new(ErrorKind::InUse).at(path).detail(detail);
    if let Some(device) = over(path) {
        let node = device.path.display();
        let detail = match (mount_point(device.number), device.certainty) {
            (Some(place), Certainty::Certain) => format!("mounted at {place}"),
            (None, Certainty::Certain) => format!("attached to {node}"),
            (_, Certainty::Possible) => format!(
                "perhaps attached to {node}: it has this size, and its file has no name here (another mount namespace)"
            ),
        };
        return Err(in_use(detail).advice(format!("umount it, and losetup -d {node}")));
    }
    let deadline = Instant::now() + BUSY_TIMEOUT;
    loop {
        let mut holders = extant_hostfs::holders(path).into_iter();
        let Some(writer) = holders.find(|holder| holder.may_write) else {
            return Ok(());
        };
        if Instant::now() > deadline {
            return Err(in_use(format!("open for writing elsewhere: {writer}")));
        }
        thread::sleep(BUSY_TIMEOUT / 20);
    }
}

/// Refuses a mounted disk, and a file as [`check`] does: for readers that need unchanging contents.
pub(super) fn check_is_still(path: &Path) -> Result<()> {
    check(path)?;
    match mounted_at(path) {
        None => Ok(()),
        Some(place) => Err(Error::new(ErrorKind::InUse)
            .at(path)
            .detail(format!("mounted at {place}"))),
    }
}

/// Adds to the error our mount or the processes that use the image, if known.
pub(super) fn explain(error: Error, path: &Path) -> Error {
    if error.kind() != ErrorKind::InUse {
        return error;
    }
    match mounts_of(path).next() {
        None => match extant_hostfs::describe_holders(path) {
            Some(who) => error.detail(format!("the file is in use: {who}")),
            None => error,
        },
        Some(mount) => {
            let place = mount.point.display();
            let command = match mount.fs_type.strip_prefix("fuse.") {
                Some(IMAGE_SUBTYPE) => "extant image mount",
                _ => "extant mount",
            };
            error
                .detail(format!("mounted at {place} by {command}"))
                .advice("use the files there")
                .remedy(Remedy::Unmount)
        }
    }
}

/// Mount point of the file system of a block device, or of a file below a loop device.
pub fn mounted_at(path: &Path) -> Option<MountPoint> {
    let metadata = fs::metadata(path).ok()?;
    if metadata.file_type().is_block_device() {
        return mount_point(metadata.rdev()).or_else(|| mount_point(over(path)?.number));
    }
    let device = over(path).filter(|device| device.certainty == Certainty::Certain)?;
    mount_point(device.number)
}

/// A mount point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPoint {
    /// The directory, by its name in its mount namespace.
    pub directory: PathBuf,
    /// A process of that namespace, where it is not ours.
    pub process: Option<u32>,
}

impl fmt::Display for MountPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.directory.display())?;
        match self.process {
            None => Ok(()),
            Some(process) => write!(f, " in the mount namespace of process {process}"),
        }
    }
}

/// First mount point of a device or of a device stacked on it; one of this mount namespace if there
/// is one.
fn mount_point(number: u64) -> Option<MountPoint> {
    let devices = stacked_on(number);
    let mut own = Mount::all().unwrap_or_default().into_iter();
    if let Some(mount) = own.find(|mount| devices.contains(&mount.device)) {
        return Some(MountPoint {
            directory: mount.point,
            process: None,
        });
    }
    let mut others = Mount::of_other_namespaces();
    let (process, mount) = others.find(|(_, mount)| devices.contains(&mount.device))?;
    Some(MountPoint {
        directory: mount.point,
        process: Some(process),
    })
}

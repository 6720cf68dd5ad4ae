//! Who else uses an image: mounts, ours and the kernel's, loop devices, processes.
//!
//! The locks of `HostDevice` keep out what respects them. The kernel's loop devices and other programs do not, so they are
//! looked for; somebody who comes after the look is not seen.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use extant_space::{Error, ErrorKind, Result};
use extant_sys::identity::Identity;
use extant_sys::mounts::Mount;

use super::mounts_of;

/// A process just started holds what its parent had open for a moment.
const PATIENCE: Duration = Duration::from_millis(500);

/// Refuses a file that a loop device stands on, or that another process may write to.
pub(super) fn check(path: &Path) -> Result<()> {
    let Ok(metadata) = fs::metadata(path) else {
        return Ok(());
    };
    if !metadata.is_file() {
        return Ok(());
    }
    let in_use = |detail: String| Error::new(ErrorKind::InUse).at(path).detail(detail);
    if let Some(device) = loop_device(path) {
        let detail = match mount_point(device.number) {
            Some(place) => format!("mounted at {}", place.display()),
            None => format!("attached to {}", device.path.display()),
        };
        let advice = format!("umount it, and losetup -d {}", device.path.display());
        return Err(in_use(detail).advice(advice));
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut holders = extant_hostfs::holders(path).into_iter();
        let Some(writer) = holders.find(|holder| holder.may_write) else {
            return Ok(());
        };
        if Instant::now() > deadline {
            return Err(in_use(format!("open for writing elsewhere: {writer}")));
        }
        thread::sleep(PATIENCE / 20);
    }
}

/// Refuses a disk that is mounted, and a file as [`check`] does: for who only reads, and does not want it to change.
pub(super) fn check_is_still(path: &Path) -> Result<()> {
    check(path)?;
    match mounted_at(path) {
        None => Ok(()),
        Some(place) => Err(Error::new(ErrorKind::InUse)
            .at(path)
            .detail(format!("mounted at {}", place.display()))),
    }
}

/// Says by which of our mounts an image is held, or by which processes, as far as that can be seen.
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
            error
                .detail(format!("mounted at {place} by extant mount"))
                .advice(format!("use the files there, or: extant umount {place}"))
        }
    }
}

/// Where the file system of a disk, or of a file below a loop device, is mounted.
pub fn mounted_at(path: &Path) -> Option<PathBuf> {
    let metadata = fs::metadata(path).ok()?;
    if metadata.file_type().is_block_device() {
        return mount_point(metadata.rdev());
    }
    mount_point(loop_device(path)?.number)
}

struct LoopDevice {
    path: PathBuf,
    number: u64,
}

fn loop_device(file: &Path) -> Option<LoopDevice> {
    let wanted = Identity::of(file).ok()?;
    let entries = fs::read_dir("/sys/block").ok()?;
    entries.flatten().find_map(|entry| {
        let backing = fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
        let below = Identity::of(Path::new(backing.trim_end_matches('\n'))).ok()?;
        (below == wanted).then_some(())?;
        let number = fs::read_to_string(entry.path().join("dev")).ok()?;
        let (major, minor) = number.trim().split_once(':')?;
        Some(LoopDevice {
            path: Path::new("/dev").join(entry.file_name()),
            number: rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?),
        })
    })
}

/// Where a device is mounted first.
fn mount_point(number: u64) -> Option<PathBuf> {
    let mut mounts = Mount::all().ok()?.into_iter();
    let mount = mounts.find(|mount| mount.device == number)?;
    Some(mount.point)
}

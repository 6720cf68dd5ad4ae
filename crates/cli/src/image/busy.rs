//! Who else uses an image: mounts, loop devices, processes.
//!
//! The locks of `HostDevice` keep out what respects them. The kernel's loop devices and other programs do not, so they are
//! looked for; somebody who comes after the look is not seen.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use extant_space::{Error, ErrorKind, Result};

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
    if let Some(device) = loop_device(&metadata) {
        let detail = match mount_point(&device.number) {
            Some(place) => format!("mounted at {}", place.display()),
            None => format!("attached to {}", device.path.display()),
        };
        let advice = format!("umount it, and losetup -d {}", device.path.display());
        return Err(in_use(detail).advice(advice));
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        let holders = extant_hostfs::holders(path);
        let Some(writer) = holders.iter().find(|holder| holder.may_write) else {
            return Ok(());
        };
        if Instant::now() > deadline {
            return Err(in_use(format!(
                "open for writing elsewhere: {} (pid {})",
                writer.command, writer.pid
            )));
        }
        thread::sleep(PATIENCE / 20);
    }
}

/// Where the file system of a disk, or of a file below a loop device, is mounted.
pub(super) fn mounted_at(path: &Path) -> Option<PathBuf> {
    let metadata = fs::metadata(path).ok()?;
    if metadata.file_type().is_block_device() {
        let number = metadata.rdev();
        return mount_point(&format!("{}:{}", libc::major(number), libc::minor(number)));
    }
    mount_point(&loop_device(&metadata)?.number)
}

struct LoopDevice {
    path: PathBuf,
    /// `major:minor`.
    number: String,
}

fn loop_device(file: &fs::Metadata) -> Option<LoopDevice> {
    let entries = fs::read_dir("/sys/block").ok()?;
    entries.flatten().find_map(|entry| {
        let backing = fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
        let below = fs::metadata(backing.trim_end_matches('\n')).ok()?;
        ((below.dev(), below.ino()) == (file.dev(), file.ino())).then_some(())?;
        Some(LoopDevice {
            path: Path::new("/dev").join(entry.file_name()),
            number: fs::read_to_string(entry.path().join("dev"))
                .ok()?
                .trim()
                .to_owned(),
        })
    })
}

/// Where the device `major:minor` is mounted first.
fn mount_point(number: &str) -> Option<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    table.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(2);
        let found = fields.next()? == number;
        let place = fields.nth(1)?;
        found.then(|| PathBuf::from(place.replace("\\040", " ")))
    })
}

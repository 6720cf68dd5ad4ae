//! The attributes of a disk in sysfs.

use std::fs;
use std::path::{Path, PathBuf};

use crate::loop_device::device_number;

/// The sysfs directory of the whole disk with device number `device`, or of the disk of that
/// partition. `None` for numbers of no disk (tmpfs, overlayfs, btrfs, FUSE, NFS).
pub fn directory(device: u64) -> Option<PathBuf> {
    let node = node(device)?;
    if node.join("queue").is_dir() {
        return Some(node);
    }
    let disk = node.parent()?;
    disk.join("queue").is_dir().then(|| disk.to_path_buf())
}

/// The sysfs directory of the block device with device number `device`; `None` for numbers of none.
pub(crate) fn node(device: u64) -> Option<PathBuf> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()
}

/// The number in a file of sysfs.
pub(crate) fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Bytes read and written since boot, of the disk in `directory`: fields 3 and 7 of its counters,
/// in sectors of 512 bytes (Documentation/block/stat.rst).
pub fn transferred_bytes(directory: &Path) -> Option<u64> {
    let text = fs::read_to_string(directory.join("stat")).ok()?;
    let fields: Vec<u64> = text
        .split_ascii_whitespace()
        .map_while(|field| field.parse().ok())
        .collect();
    Some((fields.get(2)? + fields.get(6)?) * 512)
}

/// Device numbers of the devices stacked on the disk or partition with device number `device`: its
/// partitions, device-mapper and md devices on them, and so on upwards; the disk itself is first.
pub fn stacked_on(device: u64) -> Vec<u64> {
    let mut found = vec![device];
    let mut next = 0;
    while let Some(&number) = found.get(next) {
        next += 1;
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let node = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        let of = |directory: &Path| fs::read_dir(directory).into_iter().flatten().flatten();
        let partitions = of(&node).map(|entry| entry.path());
        let partitions = partitions.filter(|path| path.join("partition").exists());
        let holders = of(&node.join("holders")).map(|entry| entry.path());
        for above in partitions.chain(holders) {
            if let Some(number) = device_number(&above)
                && !found.contains(&number)
            {
                found.push(number);
            }
        }
    }
    found
}

/// Whether the disk or partition with device number `device` is read-only.
pub fn is_read_only(device: u64) -> bool {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/ro"))
        .is_ok_and(|text| text.trim() == "1")
}

/// A number of the queue of the disk in `directory`; `None` where the kernel has none of the name.
pub fn queue_number(directory: &Path, name: &str) -> Option<u64> {
    queue_text(directory, name)?.parse().ok()
}

/// A word of the queue of the disk in `directory`.
pub fn queue_text(directory: &Path, name: &str) -> Option<String> {
    let text = fs::read_to_string(directory.join("queue").join(name)).ok()?;
    Some(text.trim().to_owned())
}

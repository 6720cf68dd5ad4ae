//! Disks of the kernel: their partitions have devices.

use std::fs;
use std::path::{Path, PathBuf};

use extant_pool::{Operation, WipeMethod};
use extant_space::{ErrorKind, Preallocation};
use extant_testkit::scratch::LoopDevice;
use extant_testkit::{command, require, requires};

use super::{DISK_BYTES, assert_sgdisk_clean, blank, define, full, noise, partitions, read_at};
use crate::stand::{MIB, assert_at_rest, download, name, names, perform, resize, upload, wipe};

#[test]
fn kernel_has_the_partitions_of_a_disk_and_a_mounted_one_is_kept() {
    require!(
        requires::root(),
        requires::tool("losetup"),
        requires::tool("sgdisk")
    );
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    blank(&image, DISK_BYTES);
    let device = LoopDevice::attach(&image);
    let state = directory.path().join("state");
    let pool = define(device.path(), Some(&state), false).unwrap();
    perform(&pool, full("web", 24 * MIB)).unwrap();
    assert_sgdisk_clean(device.path());
    fs::write(directory.path().join("source"), noise(3 * MIB)).unwrap();
    let source = upload("data", &directory.path().join("source"));
    perform(&pool, Operation::Upload(source)).unwrap();
    assert!(read_at(device.path(), "data") == noise(3 * MIB));
    assert_eq!(kernel_partitions(device.path()), 2);
    // The kernel shows a part of the disk under another name, as a mount with an offset does.
    let (_, first, _) = partitions(device.path()).remove(0);
    let offset = first * 512;
    let mut attach = command::tool("losetup");
    attach
        .args(["--find", "--show", "--sizelimit"])
        .arg((24 * MIB).to_string());
    let inner = command::text(
        attach
            .arg("--offset")
            .arg(offset.to_string())
            .arg(device.path()),
    );
    let inner = PathBuf::from(inner.unwrap().trim());
    let place = directory.path().join("place");
    fs::create_dir(&place).unwrap();
    command::must(command::tool("mke2fs").args(["-q", "-F"]).arg(&inner));
    command::must(command::tool("mount").arg(&inner).arg(&place));
    let refused = pool.delete(&name("web"), false);
    let wiped = perform(&pool, wipe("web", WipeMethod::Zero));
    command::must(command::tool("umount").arg(&place));
    command::must(command::tool("losetup").arg("-d").arg(&inner));
    for refused in [refused, wiped] {
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InUse);
        let said = refused.to_string();
        assert!(said.contains(place.to_str().unwrap()), "{said}");
    }
    pool.delete(&name("web"), false).unwrap();
    assert_eq!(names(&pool), ["data"]);
    assert_eq!(kernel_partitions(device.path()), 1);
    perform(&pool, resize("data", 5 * MIB, Preallocation::Full)).unwrap();
    assert_eq!(kernel_partitions(device.path()), 1);
    pool.delete(&name("data"), false).unwrap();
    assert_eq!(kernel_partitions(device.path()), 0);
    assert_at_rest(&pool);
}

/// The partitions of a disk that the kernel has devices for.
fn kernel_partitions(disk: &Path) -> usize {
    let sysfs = Path::new("/sys/block").join(disk.file_name().unwrap());
    let entries = fs::read_dir(sysfs).unwrap().flatten();
    let partitions = entries.filter(|entry| entry.path().join("partition").exists());
    partitions.count()
}

/// The node of a partition's device, made if nothing else makes it.
struct Node {
    path: PathBuf,
    is_ours: bool,
}

impl Node {
    fn of(disk: &Path, number: u32) -> Self {
        let disk_name = disk.file_name().unwrap().to_str().unwrap();
        let partition = format!("{disk_name}p{number}");
        let path = Path::new("/dev").join(&partition);
        let sysfs = Path::new("/sys/block").join(disk_name).join(&partition);
        let device = fs::read_to_string(sysfs.join("dev")).unwrap();
        let (major, minor) = device.trim().split_once(':').unwrap();
        let is_ours = !path.exists();
        if is_ours {
            let mut mknod = command::tool("mknod");
            command::must(mknod.arg(&path).args(["b", major, minor]));
        }
        Self { path, is_ours }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.is_ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[test]
fn device_of_a_partition_is_used_and_gone_with_its_volume() {
    require!(
        requires::root(),
        requires::tool("losetup"),
        requires::tool("sgdisk")
    );
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    blank(&image, DISK_BYTES);
    let device = LoopDevice::attach(&image);
    let pool = define(device.path(), Some(&directory.path().join("state")), false).unwrap();
    perform(&pool, full("web", 4 * MIB)).unwrap();
    let node = Node::of(device.path(), 1);
    let content = noise(4 * MIB);
    fs::write(&node.path, &content).unwrap();
    let target = directory.path().join("target");
    perform(&pool, Operation::Download(download("web", &target))).unwrap();
    assert!(fs::read(&target).unwrap() == content);
    perform(&pool, wipe("web", WipeMethod::Zero)).unwrap();
    assert!(fs::read(&node.path).unwrap() == vec![0; 4 * MIB as usize]);
    perform(&pool, resize("web", 6 * MIB, Preallocation::Full)).unwrap();
    assert!(fs::read(&node.path).unwrap() == vec![0; 6 * MIB as usize]);
    let place = directory.path().join("place");
    fs::create_dir(&place).unwrap();
    command::must(command::tool("mke2fs").args(["-q", "-F"]).arg(&node.path));
    command::must(command::tool("mount").arg(&node.path).arg(&place));
    let refused = pool.delete(&name("web"), true);
    command::must(command::tool("umount").arg(&place));
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InUse);
    assert!(refused.to_string().contains("mounted at"), "{refused}");
    assert_eq!(names(&pool), ["web"]);
    pool.delete(&name("web"), false).unwrap();
    assert_eq!(kernel_partitions(device.path()), 0);
    assert_at_rest(&pool);
}

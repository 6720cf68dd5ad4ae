//! The stack of ASSIGN_RANGE (docs/background.md) with the kernel in its middle: an image file
//! inside a mount, on a loop device of the kernel's, with a file system on it that the kernel
//! mounts, or we do.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use extant_testkit::command::tool;
use extant_testkit::oracle::assert_e2fsck_clean;
use extant_testkit::scratch::{LoopDevice, Mount};
use extant_testkit::{require, requires};

use crate::image::must;
use crate::stand::{Stand, can_mount, patiently, umount_command};
use crate::support::{KIB, MIB, create, extant, noise, run};

const INNER: &str = "inner.img";
const INNER_SIZE: &str = "96MiB";
const FILE_BYTES: u64 = 32 * MIB;
const STRIDE: u64 = 64 * KIB;

/// A file system in a file of a mount, of which a loop device is made.
struct Inner {
    outer: Stand,
    disk: LoopDevice,
    place: PathBuf,
}

impl Inner {
    #[track_caller]
    fn new(preallocation: &str) -> Self {
        let outer = Stand::mounted(160, &[]);
        let path = outer.path(INNER);
        create(&path, INNER_SIZE, &["--preallocation", preallocation]).success();
        let disk = LoopDevice::attach(&path);
        let mut mke2fs = tool("mke2fs");
        mke2fs.args(["-q", "-t", "ext4", "-E", "nodiscard"]);
        must(mke2fs.arg(disk.path()));
        let place = outer.image.work.directory("inner");
        Self { outer, disk, place }
    }

    /// Extents of the outer file system that hold the inner one.
    #[track_caller]
    fn fragments(&self) -> u64 {
        let mut sync = tool("sync");
        must(sync.arg(self.outer.path(INNER)));
        let map = self.outer.extant(&["map", "--json"], INNER);
        map.success().number("/files/0/summary/fragments")
    }

    /// Everything is closed, and no check finds an error, neither inside nor outside.
    #[track_caller]
    fn end(self) {
        drop(self.disk);
        let words = ["get", "IMAGE", "/inner.img", INNER];
        let copy = self.outer.image.work.path().join(INNER);
        self.outer.umount().success();
        self.outer.image.fs(&words).success();
        assert_e2fsck_clean(&copy);
        self.outer.assert_closed();
    }
}

/// The program of the seeds: a file is allocated, then written from its end to its start with gaps,
/// and synced.
#[track_caller]
fn allocate_and_write_backwards(path: &Path) -> Vec<u8> {
    let mut command = extant();
    command
        .args(["fallocate", "-l"])
        .arg(FILE_BYTES.to_string());
    run(command.arg(path)).success();
    let data = noise(3, 4 * KIB as usize);
    let file = File::options().write(true).open(path).unwrap();
    for at in (0..FILE_BYTES / STRIDE).rev() {
        file.write_all_at(&data, at * STRIDE).unwrap();
    }
    file.sync_all().unwrap();
    data
}

#[track_caller]
fn assert_written(path: &Path, data: &[u8]) {
    let bytes = fs::read(path).unwrap();
    assert_eq!(bytes.len() as u64, FILE_BYTES);
    for piece in bytes.chunks(STRIDE as usize) {
        assert!(piece[..data.len()] == *data);
        assert!(piece[data.len()..].iter().all(|&byte| byte == 0));
    }
}

#[test]
fn kernels_file_system_on_a_loop_device_over_a_file_of_the_mount_is_sound() {
    require!(can_mount(), requires::tool("losetup"));
    let inner = Inner::new("falloc");
    let before = inner.fragments();
    for round in 0..2 {
        let mount = Mount::new("ext4", inner.disk.path(), &inner.place, "");
        let path = mount.path().join("file");
        if round == 0 {
            let data = allocate_and_write_backwards(&path);
            fs::write(mount.path().join("data"), &data).unwrap();
        } else {
            let data = fs::read(mount.path().join("data")).unwrap();
            assert_written(&path, &data);
        }
        mount.unmount();
    }
    // Writes split the extents of the map, not their locations.
    assert_eq!(inner.fragments(), before);
    inner.end();
}

#[test]
fn mount_on_a_loop_device_over_a_file_of_another_mount_is_sound() {
    require!(can_mount(), requires::tool("losetup"));
    let inner = Inner::new("off");
    let mount = |words: &[&str]| {
        let mut command = extant();
        command.arg("mount").args(words).arg(inner.disk.path());
        run(command.arg(&inner.place)).success();
    };
    let umount = || patiently(&mut umount_command(&inner.place)).success();
    mount(&["--assign", "try"]);
    let data = allocate_and_write_backwards(&inner.place.join("file"));
    umount();
    mount(&["--read-only"]);
    assert_written(&inner.place.join("file"), &data);
    umount();
    inner.end();
}

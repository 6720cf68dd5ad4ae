//! Failed mounts and unmounts: one line that names the cause, and nothing left behind.

use std::fs;
use std::path::{Path, PathBuf};

use extant_testkit::scratch::LoopDevice;
use extant_testkit::{command, require, requires};

use crate::image::{Image, must};
use crate::stand::{Stand, can_mount};
use crate::support::{extant, run};

#[test]
fn file_that_is_no_image_is_refused_in_both_ways_of_mounting() {
    require!(can_mount());
    let stand = Stand::new(32);
    let work = stand.image.work.path();
    fs::File::create(work.join("zeros"))
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    fs::write(work.join("short"), "short").unwrap();
    let mut corrupt = fs::read(&stand.image.path).unwrap();
    // The superblock's counts.
    corrupt[1024 + 0x20..1024 + 0x30].fill(0xff);
    fs::write(work.join("corrupt"), corrupt).unwrap();
    for extra in [&[][..], &["-f"]] {
        let mount = |image: &str, directory: &str| {
            let mut command = extant();
            command.arg("mount").args(extra).args([image, directory]);
            run(command.current_dir(work))
        };
        mount("none", "mount").refused(4, &["none", "no such file"]);
        mount("zeros", "mount").refused(5, &["zeros", "no superblock"]);
        mount("short", "mount").refused(5, &["short", "too small"]);
        mount("corrupt", "mount").refused(1, &["corrupt"]);
        mount("mount", "mount").refused(4, &["not a regular file"]);
        mount("disk.img", "none").refused(4, &["none", "no such file"]);
        mount("disk.img", "zeros").refused(4, &["zeros", "not a directory"]);
        assert!(!stand.is_mounted());
    }
    let modern = Image::of("-t ext4 -O inline_data", 16);
    let mut command = extant();
    command
        .args(["mount", "-w"])
        .arg(&modern.path)
        .arg(&stand.directory);
    run(&mut command).refused(5, &["disk.img", "inline_data"]);
    assert!(!stand.needs_recovery());
    stand.assert_closed();
}

#[test]
fn wrong_arguments_are_refused_by_name() {
    require!(can_mount());
    let stand = Stand::new(32);
    for (words, named) in [
        (&["-o", "nosuch"][..], "`nosuch`"),
        (&["-o", "ro", "-o", "commit=x"], "`commit=x`"),
        (&["-o", "allow_root"], "`allow_root`"),
        (&["--threads", "0"], "--threads"),
        (&["-r", "-w"], "--read-write"),
        (&["--assign", "maybe"], "maybe"),
    ] {
        stand.mount(words).refused(2, &[named]);
    }
    run(extant().args(["mount", "one"])).refused(2, &["DIR"]);
    assert!(!stand.is_mounted());
}

#[test]
fn mounted_image_is_refused_to_other_processes() {
    require!(can_mount());
    let stand = Stand::mounted(32, &[]);
    let place = stand.directory.display().to_string();
    let words = ["disk.img", "mounted at", &place, "extant umount"];
    stand.mount(&[]).refused(4, &words);
    stand.mount(&["-r"]).refused(4, &words);
    for command in [
        &["ls", "IMAGE"][..],
        &["mkdir", "IMAGE", "/d"],
        &["check", "IMAGE"],
    ] {
        let answer = stand.image.fs(command);
        assert!(answer.stderr.contains(&place), "{answer}");
        assert_ne!(answer.code, Some(0), "{answer}");
    }
    let create = ["--in", "IMAGE", "/f", "1M"];
    run(&mut stand.image.command("create", &create)).refused(4, &words);
    stand.umount().success();
    // Readers do not mind each other.
    stand.mount(&["-r"]).success();
    stand.image.fs(&["ls", "IMAGE"]).success();
    stand.image.fs(&["mkdir", "IMAGE", "/d"]).refused(4, &words);
    stand.mount(&[]).refused(4, &words);
    stand.umount().success();
    stand.assert_closed();
}

#[test]
fn image_in_the_hands_of_the_kernel_is_refused() {
    require!(can_mount(), requires::kernel_filesystem("ext4"));
    let stand = Stand::new(32);
    let mounted = stand.image.mount();
    for words in [&[][..], &["-r"]] {
        stand
            .mount(words)
            .refused(4, &["disk.img", "mounted at", "losetup -d"]);
    }
    drop(mounted);
    let device = LoopDevice::attach(&stand.image.path);
    stand.mount(&[]).refused(4, &["attached to", "/dev/loop"]);
    let place = stand.image.work.directory("kernel");
    let mounted = extant_testkit::scratch::Mount::new("ext4", device.path(), &place, "");
    for words in [&["mount"][..], &["mount", "-r"]] {
        let mut command = extant();
        command.args(words).arg(device.path()).arg(&stand.directory);
        run(&mut command).refused(4, &["/dev/loop"]);
    }
    drop(mounted);
    drop(device);
    stand.mount(&[]).success();
    stand.end();
}

/// A read-only loop device.
struct ReadOnlyDisk(PathBuf);

impl ReadOnlyDisk {
    fn attach(image: &Path) -> Self {
        let mut losetup = command::tool("losetup");
        let name = must(losetup.args(["--find", "--show", "--read-only"]).arg(image));
        Self(PathBuf::from(name.trim_end()))
    }
}

impl Drop for ReadOnlyDisk {
    fn drop(&mut self) {
        must(command::tool("losetup").arg("--detach").arg(&self.0));
    }
}

#[test]
fn disk_that_cannot_be_written_is_mounted_read_only_with_a_word() {
    require!(
        can_mount(),
        requires::tool("losetup"),
        requires::tool("losetup")
    );
    let stand = Stand::new(32);
    stand.image.fs(&["mkdir", "IMAGE", "/d"]).success();
    let device = ReadOnlyDisk::attach(&stand.image.path);
    let mount = |words: &[&str]| {
        let mut command = extant();
        command.arg("mount").args(words);
        run(command.arg(&device.0).arg(&stand.directory))
    };
    mount(&["-w"]).refused(4, &["/dev/loop", "read-only"]);
    let answer = mount(&["--json"]);
    assert_eq!(answer.code, Some(0), "{answer}");
    assert_eq!(answer.stderr.lines().count(), 1, "{answer}");
    assert!(answer.stderr.contains("mounted read-only"), "{answer}");
    assert_eq!(answer.text("/access"), "read-only");
    assert!(stand.path("d").is_dir());
    let error = fs::write(stand.path("f"), "").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    stand.umount().success();
}

#[test]
fn umount_of_a_foreign_mount_is_refused() {
    require!(can_mount());
    let stand = Stand::new(32);
    stand.umount().refused(4, &["mount", "not mounted"]);
    let mut umount = extant();
    run(umount.arg("umount").arg(&stand.image.path)).refused(4, &["not mounted"]);
    run(extant().args(["umount", "/proc"])).refused(5, &["/proc", "proc is mounted", "umount(8)"]);
    run(extant().args(["umount", "/no/such/place"])).refused(4, &["not mounted"]);
    assert!(fs::metadata("/proc/self").is_ok());
}

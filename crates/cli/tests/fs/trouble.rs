//! Images that somebody else uses, that are none, that need recovery.

use std::fs;
use std::process::{Child, Stdio};

use extant_testkit::scratch::LoopDevice;
use extant_testkit::{command, require, requires};

use crate::image::{Image, must};
use crate::support::{extant, run};

#[test]
fn mounted_image_is_refused_for_changes_and_read_with_a_word() {
    require!(requires::root(), requires::tool("mke2fs"));
    let image = Image::new(32);
    let mounted = image.mount();
    let place = mounted.place.display().to_string();
    for words in [
        &["mkdir", "IMAGE", "/d"][..],
        &["rm", "IMAGE", "/d"],
        &["put", "IMAGE", "/etc/passwd", "/"],
        &["chmod", "IMAGE", "755", "/"],
    ] {
        image
            .fs(words)
            .refused(4, &["disk.img", "mounted at", &place, "losetup -d"]);
    }
    let create = &["--in", "IMAGE", "/f", "1M"];
    run(&mut image.command("create", create)).refused(4, &["disk.img", "mounted at"]);
    let answer = image.fs(&["ls", "IMAGE"]);
    assert_eq!(
        (answer.code, &answer.stdout[..]),
        (Some(0), "lost+found\n"),
        "{answer}"
    );
    assert!(answer.stderr.contains("mounted at"), "{answer}");
    drop(mounted);
    let attached = LoopDevice::attach(&image.path);
    image
        .fs(&["mkdir", "IMAGE", "/d"])
        .refused(4, &["attached to", "/dev/loop"]);
    image.fs(&["ls", "IMAGE"]).success();
    drop(attached);
    image.fs(&["mkdir", "IMAGE", "/d"]).success();
}

#[test]
fn disk_is_used_like_an_image_unless_it_is_mounted() {
    require!(requires::root(), requires::tool("mke2fs"));
    let image = Image::new(32);
    let device = LoopDevice::attach(&image.path);
    let disk = device.path().to_str().unwrap();
    image.fs(&["mkdir", disk, "/on-disk"]).success();
    assert_eq!(
        image.fs(&["ls", disk]).success().stdout,
        "lost+found\non-disk\n"
    );
    let place = image.work.folder("m");
    let mount = extant_testkit::scratch::Mount::new("ext4", device.path(), &place, "");
    assert!(place.join("on-disk").is_dir());
    image
        .fs(&["mkdir", disk, "/no"])
        .refused(4, &[disk, "in use"]);
    drop(mount);
    drop(device);
    image.assert_clean();
}

/// A process that ends with the test, whichever way that ends.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn image_open_elsewhere_is_refused() {
    require!(
        requires::tool("mke2fs"),
        requires::tool("sleep"),
        requires::tool("flock")
    );
    let image = Image::new(32);
    let open = fs::File::options().append(true).open(&image.path).unwrap();
    let holder = Holder(
        command::tool("sleep")
            .arg("600")
            .stdin(Stdio::from(open))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    image
        .fs(&["mkdir", "IMAGE", "/d"])
        .refused(4, &["disk.img", "open for writing elsewhere", "sleep"]);
    image.fs(&["ls", "IMAGE"]).success();
    drop(holder);
    let mut locked = command::tool("flock");
    let inner = image.command("fs", &["mkdir", "IMAGE", "/d"]);
    locked
        .arg("--exclusive")
        .arg(&image.path)
        .arg(inner.get_program())
        .args(inner.get_args());
    run(&mut locked).refused(4, &["disk.img", "locked"]);
    image.fs(&["mkdir", "IMAGE", "/d"]).success();
}

#[test]
fn image_that_needs_recovery_is_read_without_writing() {
    require!(requires::root(), requires::tool("mke2fs"));
    let image = Image::new(64);
    let mounted = image.mount();
    fs::create_dir(mounted.place.join("new")).unwrap();
    fs::write(mounted.place.join("new/file"), "synced").unwrap();
    must(
        command::tool("sync")
            .arg("-f")
            .arg(mounted.place.join("new/file")),
    );
    // As a power cut would leave it.
    let copy = image.work.path().join("copy.img");
    must(
        command::tool("cp")
            .arg("--sparse=always")
            .arg(&image.path)
            .arg(&copy),
    );
    drop(mounted);
    let before = fs::read(&copy).unwrap();
    let copy_name = copy.to_str().unwrap();
    let dump = image
        .fs(&["dump", "--journal", "--json", copy_name])
        .success();
    assert_eq!(dump.json()["journal"]["needs_recovery"], true, "{dump}");
    assert!(dump.number("/journal/transactions") > 0, "{dump}");
    assert_eq!(
        image.fs(&["cat", copy_name, "/new/file"]).success().stdout,
        "synced"
    );
    assert_eq!(
        image.fs(&["ls", copy_name]).success().stdout,
        "lost+found\nnew\n"
    );
    image.fs(&["check", copy_name]).success();
    image.fs(&["df", copy_name]).success();
    image.fs(&["freefrag", copy_name]).success();
    assert!(fs::read(&copy).unwrap() == before, "looking has written");
    image.fs(&["mkdir", copy_name, "/more"]).success();
    extant_testkit::oracle::assert_e2fsck_clean(&copy);
    assert_eq!(
        image.fs(&["cat", copy_name, "/new/file"]).success().stdout,
        "synced"
    );
}

#[test]
fn what_is_no_image_is_refused_by_name() {
    require!(requires::tool("mke2fs"));
    let image = Image::new(16);
    let zeros = image.work.path().join("zeros");
    fs::File::create(&zeros).unwrap().set_len(1 << 20).unwrap();
    fs::write(image.work.path().join("short"), "short").unwrap();
    image
        .fs(&["ls", "zeros"])
        .refused(1, &["zeros", "superblock"]);
    image.fs(&["ls", "short"]).refused(1, &["short"]);
    image
        .fs(&["ls", "none"])
        .refused(4, &["none", "no such file"]);
    image
        .fs(&["ls", "."])
        .refused(4, &["neither a regular file nor a block device"]);
    image
        .fs(&["ls", "IMAGE", "/none"])
        .refused(4, &["disk.img:/none", "no such file"]);
    image
        .fs(&["cat", "IMAGE", "/lost+found"])
        .refused(4, &["disk.img:/lost+found", "is a directory"]);
    image
        .fs(&["ls", "IMAGE", "/lost+found/x/y"])
        .refused(4, &["disk.img:/lost+found/x/y"]);
    image
        .fs(&["rm", "IMAGE", "/"])
        .refused(2, &["does not end in a name"]);
    image
        .fs(&["rm", "IMAGE", "/lost+found"])
        .refused(4, &["is a directory", "-r"]);
    image
        .fs(&["chmod", "IMAGE", "rwx", "/"])
        .refused(2, &["rwx", "not a mode"]);
    image
        .fs(&["chown", "IMAGE", "joe", "/"])
        .refused(2, &["joe", "numbers"]);
    image
        .fs(&["put", "IMAGE", "nofile", "/"])
        .refused(4, &["nofile"]);
    image
        .fs(&["put", "IMAGE", ".", "/d"])
        .refused(4, &["is a directory", "-r"]);
    image
        .fs(&["get", "IMAGE", "/none", "."])
        .refused(4, &["disk.img:/none"]);
    run(extant().args(["fs", "cat"])).refused(2, &[]);
    image.assert_clean();
}

#[test]
fn features_that_are_not_known_are_named() {
    require!(requires::tool("mke2fs"));
    let image = Image::of("-t ext4 -O inline_data", 16);
    image
        .fs(&["mkdir", "IMAGE", "/d"])
        .refused(5, &["disk.img", "inline_data"]);
    image.fs(&["ls", "IMAGE"]).success();
    image.fs(&["check", "IMAGE"]).success();
}

#[test]
fn image_without_a_journal_is_changed_unless_it_was_not_closed() {
    require!(requires::tool("mke2fs"), requires::tool("debugfs"));
    let image = Image::of("-t ext4 -O ^has_journal", 16);
    image.fs(&["mkdir", "IMAGE", "/d"]).success();
    image.assert_clean();
    debugfs(&image, "set_super_value state 0");
    assert_eq!(
        image.fs(&["ls", "IMAGE"]).success().stdout,
        "d\nlost+found\n"
    );
    image
        .fs(&["mkdir", "IMAGE", "/e"])
        .refused(5, &["disk.img", "no journal", "e2fsck"]);
}

#[test]
fn damaged_journal_is_named_and_passed_over_with_noload() {
    require!(requires::tool("mke2fs"), requires::tool("debugfs"));
    let image = Image::new(16);
    image.fs(&["mkdir", "IMAGE", "/d"]).success();
    // The extent header of its inode.
    debugfs(&image, "set_inode_field <8> block[0] 0");
    let answer = image.fs(&["ls", "IMAGE"]);
    assert_ne!(answer.code, Some(0), "{answer}");
    assert!(answer.stderr.contains("noload"), "{answer}");
    for words in [
        &["--noload", "ls", "IMAGE"][..],
        &["ls", "IMAGE", "--noload"],
    ] {
        assert_eq!(image.fs(words).success().stdout, "d\nlost+found\n");
    }
    image
        .fs(&["--noload", "dump", "--superblock", "IMAGE"])
        .success();
    let answer = image.fs(&["--noload", "mkdir", "IMAGE", "/e"]);
    assert!(
        answer.code != Some(0) && answer.stderr.contains("read-only"),
        "{answer}"
    );
}

/// Runs one command of debugfs that changes the image.
#[track_caller]
fn debugfs(image: &Image, request: &str) {
    must(
        command::tool("debugfs")
            .args(["-w", "-R", request])
            .arg(&image.path),
    );
}

#[test]
fn reader_that_has_seen_enough_is_no_error() {
    require!(requires::tool("mke2fs"), requires::tool("sh"));
    let image = Image::new(64);
    fs::write(image.work.path().join("large"), vec![b'x'; 10_000_000]).unwrap();
    image.fs(&["put", "IMAGE", "large", "/"]).success();
    for words in [&["cat", "IMAGE", "/large"][..], &["ls", "-R", "IMAGE"]] {
        let inner = image.command("fs", words);
        let mut shell = command::tool("sh");
        // The status of the first in the pipe.
        let script = "{ \"$@\"; echo $? >&3; } 3>status | head -c 1 >/dev/null; cat status";
        shell
            .args(["-c", script, "sh"])
            .arg(inner.get_program())
            .args(inner.get_args());
        let answer = run(shell.current_dir(image.work.path()));
        assert_eq!(answer.stdout.trim(), "0", "{answer}");
        assert_eq!(answer.stderr, "", "{answer}");
    }
}

//! Images in use by other programs, files that are no images, and images that need recovery.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use extant_testkit::scratch::LoopDevice;
use extant_testkit::{command, require, requires};

use crate::image::{Image, must};
use crate::support::{as_nobody, extant, run};

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
    let place = image.work.directory("m");
    let mount = extant_testkit::scratch::Mount::new("ext4", device.path(), &place, "");
    assert!(place.join("on-disk").is_dir());
    image
        .fs(&["mkdir", disk, "/no"])
        .refused(4, &[disk, "in use"]);
    drop(mount);
    drop(device);
    image.assert_clean();
}

/// A mount namespace of its own, in which `script` has run; it ends with the guard.
struct Namespace(Child);

impl Namespace {
    fn with(script: &str, dir: &Path) -> Self {
        let mut child = command::tool("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-ec"])
            .arg(format!("{script}; echo ready; exec sleep 60"))
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = child.stdout.take().unwrap();
        let _ = BufReader::new(out).read_line(&mut line);
        let namespace = Self(child);
        assert_eq!(line, "ready\n", "{script}");
        namespace
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn image_mounted_in_another_mount_namespace_is_refused() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("unshare"),
        requires::tool("setpriv")
    );
    let image = Image::new(32);
    let [images, hidden, place] = ["images", "hidden", "place"].map(|n| image.work.directory(n));
    fs::rename(&image.path, images.join("disk.img")).unwrap();
    let disk = images.join("disk.img");
    fs::set_permissions(&disk, fs::Permissions::from_mode(0o666)).unwrap();
    let words = ["mkdir", "images/disk.img", "/d"];
    // The path under which the loop device knows the file exists only in that namespace.
    let script = "mount -t tmpfs x hidden; mkdir hidden/i; mount --bind images hidden/i; \
                  mount -o loop hidden/i/disk.img place";
    let namespace = Namespace::with(script, image.work.path());
    assert!(!hidden.join("i").exists() && !place.join("lost+found").exists());
    let refused = ["disk.img", "mounted at", "mount namespace of process"];
    image.fs(&words).refused(4, &refused);
    // For a user without access to the driver the size determines the answer.
    let as_user = |words: &[&str]| {
        let mut command = as_nobody(&image.command("fs", words), &image.work);
        run(command.current_dir(image.work.path()))
    };
    as_user(&words).refused(4, &["disk.img", "perhaps attached to /dev/loop"]);
    let look = image.fs(&["ls", "images/disk.img"]);
    assert!(look.stderr.contains("mounted at"), "{look}");
    drop(namespace);
    // The loop device is removed with its mount, and that shortly after the last process.
    let free = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        image.fs(&words).code == Some(0)
    });
    assert!(free, "{}", image.fs(&words));
}

#[test]
fn disk_mounted_in_another_mount_namespace_is_read_with_a_word() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("unshare")
    );
    let image = Image::new(32);
    let device = LoopDevice::attach(&image.path);
    let disk = device.path().to_str().unwrap();
    image.work.directory("place");
    let namespace = Namespace::with(&format!("mount {disk} place"), image.work.path());
    let look = image.fs(&["ls", disk]);
    assert!(look.stderr.contains("mount namespace of process"), "{look}");
    image
        .fs(&["mkdir", disk, "/no"])
        .refused(4, &[disk, "in use"]);
    drop(namespace);
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
    run(&mut locked).refused(4, &["disk.img", "in use", "flock"]);
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
    // The state after a power cut.
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
fn image_whose_log_has_a_damaged_commit_is_refused_unless_the_journal_is_passed_over() {
    require!(requires::tool("mke2fs"), requires::tool("debugfs"));
    let image = Image::of("-t ext4 -b 4096", 32);
    image.leave_transactions();
    let whole = fs::read(&image.path).unwrap();
    // The time of the commit of the first transaction, and of the second.
    for block in [3, 6] {
        fs::write(&image.path, &whole).unwrap();
        image.damage_journal(block, 0x37);
        for words in [&["ls", "IMAGE"][..], &["mkdir", "IMAGE", "/d"]] {
            let answer = image.fs(words);
            answer.refused(1, &["checksum of the commit", "check the file system"]);
        }
        let answer = image.fs(&["ls", "IMAGE"]);
        assert!(answer.stderr.contains("noload"), "{answer}");
        image.fs(&["--noload", "ls", "IMAGE"]).success();
    }
    // The rest of the last commit block was not written before a crash.
    fs::write(&image.path, &whole).unwrap();
    image.damage_journal(6, 2048);
    image.fs(&["ls", "IMAGE"]).success();
    image.damage_journal(3, 2048);
    image
        .fs(&["ls", "IMAGE"])
        .refused(1, &["checksum of the commit"]);
}

#[test]
fn journal_device_is_refused_by_name_and_is_no_damage() {
    require!(requires::tool("mke2fs"));
    let image = Image::of("-O journal_dev", 16);
    image.fs(&["check", "IMAGE"]).refused(8, &["journal_dev"]);
    image.fs(&["ls", "IMAGE"]).refused(5, &["journal_dev"]);
}

#[test]
fn file_that_is_no_image_is_refused_by_name() {
    require!(requires::tool("mke2fs"));
    let image = Image::new(16);
    let zeros = image.work.path().join("zeros");
    fs::File::create(&zeros).unwrap().set_len(1 << 20).unwrap();
    fs::write(image.work.path().join("short"), "short").unwrap();
    image
        .fs(&["ls", "zeros"])
        .refused(5, &["zeros", "no superblock at byte 1024"]);
    let words = ["short", "not an ext4 file system: too small"];
    image.fs(&["ls", "short"]).refused(5, &words);
    image.fs(&["check", "short"]).refused(8, &words);
    let other = image.work.path().join("other");
    fs::write(&other, [b"QFI\xfb".as_slice(), &[0; 8188]].concat()).unwrap();
    for (command, status) in [("ls", 5), ("check", 8)] {
        let answer = image.fs(&[command, "other"]);
        answer.refused(status, &["other", "it looks like a qcow2 image"]);
    }
    let inside = run(extant().args(["map", "--in"]).arg(&other).arg("/"));
    inside.refused(5, &["it looks like a qcow2 image"]);
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
fn directories_of_ext3_are_removed_with_their_blocks() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let image = Image::of("-t ext3", 16);
    let free = || {
        image
            .fs(&["df", "--json", "IMAGE"])
            .number("/filesystems/0/free_bytes")
    };
    let before = free();
    image.fs(&["mkdir", "-p", "IMAGE", "/f/g"]).success();
    let file = image.work.path().join("file");
    fs::write(&file, vec![1; 100_000]).unwrap();
    image.fs(&["put", "IMAGE", "file", "/f/g"]).success();
    image.fs(&["rm", "-r", "IMAGE", "/f"]).success();
    assert_eq!(free(), before);
    image.assert_clean();
}

#[test]
fn removed_file_with_a_damaged_node_is_reported_and_others_can_be_put() {
    require!(requires::tool("mke2fs"), requires::tool("debugfs"));
    let image = Image::of("-t ext3 -b 1024", 16);
    let file = image.work.path().join("file");
    fs::write(&file, vec![b'x'; 30_000]).unwrap();
    image.fs(&["put", "IMAGE", "file", "/damaged"]).success();
    // The indirect block names blocks that there are not.
    let script = image.work.path().join("script");
    fs::write(&script, "sif /damaged block[IND] 16383\n").unwrap();
    let mut debugfs = command::tool("debugfs");
    must(debugfs.args(["-w", "-f"]).arg(&script).arg(&image.path));
    let damaged = fs::File::options().write(true).open(&image.path).unwrap();
    damaged.write_all_at(&[0xFF; 1024], 16_383 << 10).unwrap();
    drop(damaged);
    image
        .fs(&["rm", "IMAGE", "/damaged"])
        .refused(1, &["disk.img", "not freed"]);
    image.fs(&["put", "IMAGE", "file", "/other"]).success();
    assert_eq!(
        image.fs(&["cat", "IMAGE", "/other"]).success().stdout.len(),
        30_000
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

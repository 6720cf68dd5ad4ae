//! Mounting without root, through `fusermount3`.
//!
//! In a namespace of mounts of its own, where `/dev/fuse` is open to all users, as on most systems.

use std::cell::RefCell;
use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use extant_testkit::fuse_watchdog::FuseWatchdog;
use extant_testkit::requires::Requirement;
use extant_testkit::{command, require, requires};

use crate::stand::{LEAVE_OTHER_MOUNTS, Stand, can_mount};
use crate::support::{Answer, NOBODY, copy_program, run};

struct Room {
    process: Child,
    program: PathBuf,
    watchdog: RefCell<Option<FuseWatchdog>>,
    stand: Stand,
}

fn can_make_rooms() -> Requirement {
    let tools = ["fusermount3", "unshare", "nsenter", "setpriv"];
    let missing = tools
        .into_iter()
        .find(|name| !requires::tool(name).is_met());
    Requirement::new(missing.unwrap_or("tools"), missing.is_none())
}

impl Room {
    /// With an image and a directory of the user `nobody`.
    fn new() -> Self {
        let stand = Stand::new(64);
        for path in [&stand.image.path, &stand.directory] {
            chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        // The build directory may be inaccessible to other users.
        let program = stand.image.work.path().join("extant");
        copy_program(Path::new(env!("CARGO_BIN_EXE_extant")), &program);
        let process = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-euc"])
            .arg(format!(
                "{LEAVE_OTHER_MOUNTS}mknod $device c 10 229; chmod 666 $device; \
                 mount --bind $device /dev/fuse; echo; exec sleep 1000"
            ))
            .env("device", stand.image.work.path().join("fuse"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut room = Self {
            process,
            program,
            watchdog: RefCell::default(),
            stand,
        };
        let mut ready = [0];
        let output = room.process.stdout.as_mut().unwrap();
        output.read_exact(&mut ready).unwrap();
        room
    }

    fn as_nobody(&self, program: &str) -> Command {
        let mut command = command::tool("nsenter");
        command
            .arg(format!("--mount=/proc/{}/ns/mnt", self.process.id()))
            // A directory of before would be one outside.
            .arg("env")
            .arg(format!(
                "--chdir={}",
                self.stand.image.work.path().display()
            ))
            .args(["setpriv", "--clear-groups"])
            .arg(format!("--reuid={NOBODY}"))
            .arg(format!("--regid={NOBODY}"))
            .arg(program)
            .stdin(Stdio::null());
        command
    }

    /// `extant WORDS`, run by the user `nobody` in the directory of the image.
    fn extant(&self, words: &[&str]) -> Answer {
        let program = self.program.to_str().unwrap();
        let answer = run(self.as_nobody(program).args(words));
        if words[0] == "mount" && answer.code == Some(0) {
            let watchdog = FuseWatchdog::watch_in(self.process.id(), &self.stand.directory);
            *self.watchdog.borrow_mut() = Some(watchdog);
        }
        answer
    }

    fn sh(&self, script: &str) -> Answer {
        run(self.as_nobody("sh").args(["-euc", script]))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // Mounts of the namespace end with its last process.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn user_mounts_uses_and_unmounts_an_image() {
    require!(can_mount(), can_make_rooms());
    let room = Room::new();
    let words = [
        "mount",
        "-o",
        "uid=65534,gid=65534,noatime",
        "disk.img",
        "mount",
    ];
    room.extant(&words).success();
    let script = "mountpoint -q mount; echo hello > mount/file; cat mount/file; stat -c %u mount/file; mkdir mount/d";
    assert_eq!(room.sh(script).success().stdout, "hello\n65534\n");
    room.extant(&["create", "mount/vm.raw", "4MiB"]).success();
    room.extant(&["fallocate", "-c", "-o", "0", "-l", "4KiB", "mount/vm.raw"])
        .success();
    let map = room.extant(&["map", "--json", "mount/vm.raw"]).success();
    assert_eq!(
        map.number("/total/extant_bytes"),
        (4 << 20) - (4 << 10),
        "{map}"
    );
    room.extant(&["mount", "-o", "remount,mb_optimize_scan=0", "mount"])
        .success();
    let stats = room.extant(&["fs", "stats", "--json", "mount"]).success();
    assert_eq!(stats.number("/mb_optimize_scan"), 0);
    room.extant(&["mount", "disk.img", "mount"])
        .refused(4, &["mounted at"]);
    room.extant(&["umount", "mount"]).success();
    room.stand.assert_closed();
    room.extant(&words).success();
    room.sh("fusermount3 -u mount").success();
    room.sh("while ! flock -n disk.img true; do sleep 0.01; done")
        .success();
    room.stand.assert_closed();
}

#[test]
fn image_that_a_user_may_not_write_is_mounted_read_only_with_a_word() {
    require!(can_mount(), can_make_rooms());
    let room = Room::new();
    let image = &room.stand.image.path;
    chown(image, Some(0), Some(0)).unwrap();
    fs::set_permissions(image, Permissions::from_mode(0o644)).unwrap();
    let answer = room.extant(&["mount", "disk.img", "mount"]);
    assert_eq!(answer.code, Some(0), "{answer}");
    for word in ["disk.img", "permission denied", "mounted read-only"] {
        assert!(answer.stderr.contains(word), "{answer}");
    }
    room.sh("mountpoint -q mount; test -d mount/lost+found; ! touch mount/file 2>/dev/null")
        .success();
    room.extant(&["umount", "mount"]).success();
    room.extant(&["mount", "-w", "disk.img", "mount"])
        .refused(4, &["disk.img", "permission denied"]);
    fs::set_permissions(image, Permissions::from_mode(0o600)).unwrap();
    room.extant(&["mount", "disk.img", "mount"])
        .refused(4, &["disk.img", "permission denied"]);
}

#[test]
fn privileged_operation_is_refused_to_a_user() {
    require!(can_mount(), can_make_rooms());
    let room = Room::new();
    room.extant(&["mount", "-o", "suid", "disk.img", "mount"])
        .refused(4, &["root", "suid"]);
    chown(&room.stand.directory, Some(0), Some(0)).unwrap();
    room.extant(&["mount", "disk.img", "mount"])
        .refused(4, &["mount", "fusermount3"]);
    room.stand.assert_closed();
}

#[test]
fn image_of_root_is_owned_by_the_mounting_user() {
    require!(can_mount(), can_make_rooms());
    let room = Room::new();
    let stat = |name: &str| room.sh(&format!("stat -c %u:%g {name}")).success().stdout;
    room.extant(&["mount", "disk.img", "mount"]).success();
    room.sh("echo hello > mount/file; mkdir mount/d; chmod 700 mount/d")
        .success();
    let theirs = format!("{NOBODY}:{NOBODY}\n");
    assert_eq!(stat("mount"), theirs);
    assert_eq!(stat("mount/file"), theirs);
    room.extant(&["umount", "mount"]).success();
    // In the image they are root's.
    let listed = room.stand.image.fs(&["ls", "-l", "IMAGE"]).success();
    let line = listed.stdout.lines().find(|line| line.ends_with("file"));
    let words: Vec<&str> = line.expect("a line").split_whitespace().collect();
    assert_eq!(words[2..4], ["0", "0"], "{listed}");
    room.extant(&["mount", "-o", "idmap=none", "disk.img", "mount"])
        .success();
    assert_eq!(stat("mount/file"), "0:0\n");
    room.sh("! touch mount/other 2>/dev/null").success();
    room.extant(&["umount", "mount"]).success();
    room.stand.assert_closed();
}

#[test]
fn image_that_a_user_makes_is_theirs_in_every_mount() {
    require!(can_mount(), can_make_rooms());
    let room = Room::new();
    fs::remove_file(&room.stand.image.path).unwrap();
    chown(room.stand.image.work.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    room.extant(&["fs", "mkfs", "disk.img", "32MiB"]).success();
    room.extant(&["create", "--in", "disk.img", "/vm.raw", "1MiB"])
        .success();
    room.extant(&["fs", "mkdir", "-p", "disk.img", "/d/e"])
        .success();
    room.extant(&["fs", "ln", "-s", "disk.img", "/vm.raw", "/link"])
        .success();
    room.sh("echo data > data").success();
    room.extant(&["fs", "put", "disk.img", "data", "/d/data"])
        .success();
    room.extant(&["fallocate", "--in", "disk.img", "-l", "4KiB", "/new"])
        .success();
    let theirs = format!("{NOBODY}:{NOBODY}\n").repeat(7);
    for options in ["rw", "idmap=none"] {
        room.extant(&["mount", "-o", options, "disk.img", "mount"])
            .success();
        let names = "cd mount; stat -c %u:%g . vm.raw d d/e d/data link new";
        assert_eq!(room.sh(names).success().stdout, theirs, "{options}");
        room.sh("echo more >> mount/d/data; touch mount/f")
            .success();
        room.extant(&["umount", "mount"]).success();
    }
    room.stand.assert_closed();
}

#[test]
fn user_mounts_the_disk_in_an_image_over_a_file() {
    require!(can_mount(), can_make_rooms());
    let room = Room::new();
    let covered = room.stand.image.work.path().join("disk");
    fs::write(&covered, "").unwrap();
    chown(&covered, Some(NOBODY), Some(NOBODY)).unwrap();
    for place in ["mount", "disk"] {
        room.extant(&["image", "mount", "disk.img", place])
            .success();
        let file = if place == "mount" {
            "mount/disk.raw"
        } else {
            "disk"
        };
        let script = format!(
            "stat -c %s:%u {file}; printf word | dd of={file} bs=1 seek=100 conv=notrunc status=none; \
             dd if={file} bs=1 skip=100 count=4 status=none"
        );
        let answer = room.sh(&script).success();
        assert_eq!(answer.stdout, format!("{}:{NOBODY}\nword", 64 << 20));
        room.extant(&["umount", place]).success();
        // In front of the superblock is nothing.
        room.sh("dd if=/dev/zero of=disk.img bs=1 seek=100 count=4 conv=notrunc status=none")
            .success();
    }
    room.stand.assert_closed();
}

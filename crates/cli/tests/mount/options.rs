//! Every option of `-o` once, by its effect.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use extant_sys::mounted::{self, Probe, probe_flags};
use extant_testkit::{command, require, requires};
use rustix::process::Signal;

use crate::image::must;
use crate::stand::{Stand, can_mount, send, wait_for_end};
use crate::support::{noise, wait_until};

/// Options of a mount as the kernel shows them.
#[track_caller]
fn shown(stand: &Stand, options: &str) -> Vec<String> {
    stand.mount(&["-o", options]).success();
    let options = stand.seen().unwrap().options;
    stand.umount().success();
    options
}

#[test]
fn options_of_every_mount_are_those_of_the_kernel() {
    require!(can_mount());
    let stand = Stand::new(16);
    for (options, there, missing) in [
        ("rw", "rw", "ro"),
        ("ro", "ro", "rw"),
        ("ro,rw", "rw", "ro"),
        ("", "nodev", "dev"),
        ("", "nosuid", "suid"),
        ("dev", "rw", "nodev"),
        ("suid", "rw", "nosuid"),
        ("noexec", "noexec", "exec"),
        ("noexec,exec", "rw", "noexec"),
        ("sync", "sync", "async"),
        ("sync,async", "rw", "sync"),
        ("dirsync", "dirsync", "sync"),
        ("relatime", "relatime", "noatime"),
        ("noatime", "noatime", "relatime"),
        ("nodiratime", "nodiratime", "noatime"),
        ("strictatime", "rw", "relatime"),
        ("allow_other", "allow_other", "default"),
        ("max_read=65536", "max_read=65536", "allow_other"),
        ("", "default_permissions", "max_read=65536"),
        ("nofail,_netdev,x-systemd.automount,users", "rw", "nofail"),
    ] {
        let found = shown(&stand, options);
        let has = |word: &str| found.iter().any(|option| option == word);
        assert!(has(there) && !has(missing), "{options}: {found:?}");
    }
    for words in [&["--read-only"][..], &["-o", "rw", "-r"]] {
        stand.mount(words).success();
        assert_eq!(stand.seen().unwrap().options[0], "ro");
        stand.umount().success();
    }
    stand.mount(&["-o", "ro", "--read-write"]).success();
    assert_eq!(stand.seen().unwrap().options[0], "rw");
    stand
        .mount(&["-o", "fsname=a\\,b,subtype=c"])
        .refused(4, &[]);
    stand.umount().success();
    stand.mount(&["-o", "fsname=a\\,b,subtype=c"]).success();
    let seen = stand.seen().unwrap();
    assert_eq!(
        (seen.source.as_path(), seen.fs_type.as_str()),
        (Path::new("a,b"), "fuse.c")
    );
    // It is known by the call, not by its name.
    stand.umount().success();
    wait_until("closed", || !stand.needs_recovery());
}

#[test]
fn read_only_mount_changes_nothing() {
    require!(can_mount());
    let stand = Stand::new(32);
    stand.image.fs(&["mkdir", "IMAGE", "/d"]).success();
    let before = fs::read(&stand.image.path).unwrap();
    stand.mount(&["-o", "ro"]).success();
    let error = fs::create_dir(stand.path("e")).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert_eq!(fs::read_dir(stand.path("d")).unwrap().count(), 0);
    stand
        .extant(&["fallocate", "-l", "1M"], "f")
        .code
        .filter(|&code| code == 1)
        .expect("fallocate is refused");
    stand.umount().success();
    assert!(fs::read(&stand.image.path).unwrap() == before);
}

#[test]
fn times_of_access_follow_the_options() {
    require!(can_mount());
    let stand = Stand::new(32);
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    // Whether a file and a directory that were read at `old`, and changed since, show it.
    for (options, file_wanted, directory_wanted) in [
        ("relatime", true, true),
        ("strictatime", true, true),
        ("nodiratime", true, false),
        ("noatime", false, false),
    ] {
        stand.mount(&["-o", options]).success();
        let (file, directory) = (stand.path("file"), stand.path("d"));
        fs::write(&file, "x").unwrap();
        let _ = fs::create_dir(&directory);
        fs::write(directory.join("x"), "").unwrap();
        for path in [&file, &directory] {
            let open = File::open(path).unwrap();
            open.set_times(fs::FileTimes::new().set_accessed(old))
                .unwrap();
        }
        stand.umount().success();
        stand.mount(&["-o", options]).success();
        assert_eq!(fs::read(&file).unwrap(), b"x");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        let is_new = |path: &Path| fs::metadata(path).unwrap().accessed().unwrap() != old;
        let found = (is_new(&file), is_new(&directory));
        assert_eq!(found, (file_wanted, directory_wanted), "{options}");
        stand.umount().success();
    }
    stand.assert_closed();
}

#[test]
fn owner_of_the_images_root_is_mapped_outside() {
    require!(can_mount(), requires::tool("setpriv"));
    let stand = Stand::new(32);
    let options = "uid=1234,gid=2345,allow_other";
    stand.mount(&["-o", options]).success();
    let root = fs::metadata(&stand.directory).unwrap();
    assert_eq!((root.uid(), root.gid()), (1234, 2345));
    // The mounting user may not have access to the directories of the test.
    fs::set_permissions(stand.image.work.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut touch = command::tool("setpriv");
    touch.args(["--reuid=1234", "--regid=2345", "--clear-groups", "--"]);
    must(touch.arg("touch").arg(stand.path("made")));
    let made = fs::metadata(stand.path("made")).unwrap();
    assert_eq!((made.uid(), made.gid()), (1234, 2345));
    stand.umount().success();
    let stat = stand.image.fs(&["ls", "-l", "IMAGE"]).success();
    let line = stat.stdout.lines().find(|line| line.ends_with("made"));
    let words: Vec<&str> = line.expect("a line").split_whitespace().collect();
    assert_eq!(words[2..4], ["0", "0"], "{stat}");
    stand.assert_closed();
}

#[track_caller]
fn probed(stand: &Stand) -> Probe {
    let directory = File::open(&stand.directory).unwrap();
    mounted::probe(&directory)
        .unwrap()
        .expect("one of our mounts")
}

#[test]
fn probe_reports_cache_and_access() {
    require!(can_mount());
    let stand = Stand::new(16);
    for (options, flags) in [
        ("", probe_flags::WRITEBACK),
        ("writeback", probe_flags::WRITEBACK),
        ("no_writeback", 0),
        (
            "no_writeback,writeback,ro",
            probe_flags::WRITEBACK | probe_flags::READ_ONLY,
        ),
    ] {
        stand.mount(&["-o", options]).success();
        assert_eq!(probed(&stand).flags, flags, "{options}");
        stand.umount().success();
    }
}

/// The CPUs of each thread that answers.
fn threads(pid: u64) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut found = Vec::new();
    for task in tasks {
        let path = task.unwrap().path();
        let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
        if name.starts_with("extant-fuse-") {
            let status = fs::read_to_string(path.join("status")).unwrap();
            let line = status
                .lines()
                .find(|line| line.starts_with("Cpus_allowed_list"));
            found.push(line.unwrap().split_whitespace().nth(1).unwrap().to_owned());
        }
    }
    found
}

#[test]
fn threads_are_as_many_and_placed_as_asked_for() {
    require!(can_mount());
    let stand = Stand::new(16);
    let all = fs::read_to_string("/proc/self/status").unwrap();
    let all = all
        .lines()
        .find(|line| line.starts_with("Cpus_allowed_list"))
        .unwrap();
    let all = all.split_whitespace().nth(1).unwrap().to_owned();
    for (words, count, is_pinned) in [
        (&["-o", "threads=3,pin"][..], 3, true),
        (&["-o", "threads=3,no_pin"], 3, false),
        (&["-o", "threads=3", "--threads", "5"], 5, true),
    ] {
        let words = [words, &["--json"]].concat();
        let pid = stand.mount(&words).success().number("/pid");
        wait_until("threads that have found their place", || {
            let found = threads(pid);
            let is_placed = |cpus: &String| {
                if is_pinned {
                    cpus.parse::<u32>().is_ok()
                } else {
                    *cpus == all
                }
            };
            found.len() == count && found.iter().all(is_placed)
        });
        stand.umount().success();
    }
}

#[test]
fn freed_blocks_are_discarded_only_with_the_option() {
    require!(can_mount());
    let stand = Stand::new(64);
    let blocks = || fs::metadata(&stand.image.path).unwrap().blocks();
    for (options, gives_back) in [("nodiscard", false), ("discard", true)] {
        stand.mount(&["-o", options]).success();
        let file = stand.path("file");
        fs::write(&file, noise(9, 16 << 20)).unwrap();
        File::open(&file).unwrap().sync_all().unwrap();
        let before = blocks();
        fs::remove_file(&file).unwrap();
        stand.umount().success();
        let freed = before.saturating_sub(blocks());
        assert_eq!(freed > 30_000, gives_back, "{options}: {freed} sectors");
    }
    stand.assert_closed();
}

#[test]
fn mount_with_auto_unmount_is_removed_when_the_server_is_killed() {
    require!(can_mount());
    let stand = Stand::new(32);
    let words = ["-o", "auto_unmount", "--json"];
    let pid = stand.mount(&words).success().number("/pid");
    send(pid, Signal::KILL);
    wait_for_end(pid);
    wait_until("unmounted", || !stand.is_mounted());
    stand.mount(&words).success();
    stand.end();
}

#[test]
fn change_is_committed_by_itself_after_the_time_asked_for() {
    require!(can_mount());
    let stand = Stand::new(32);
    let words = ["-o", "commit=1", "--json"];
    let pid = stand.mount(&words).success().number("/pid");
    fs::create_dir(stand.path("made")).unwrap();
    // Without a sync; a copy shows the change once it is committed.
    let copy = stand.image.work.path().join("copy.img");
    wait_until("the commit", || {
        fs::copy(&stand.image.path, &copy).unwrap();
        let listed = stand.image.fs(&["ls", copy.to_str().unwrap()]);
        listed.code == Some(0) && listed.stdout.contains("made")
    });
    send(pid, Signal::TERM);
    wait_for_end(pid);
    stand.assert_closed();
}

#[test]
fn error_of_the_structures_is_met_as_asked_for() {
    require!(can_mount(), requires::tool("debugfs"));
    for (options, goes_on) in [("errors=remount-ro", false), ("errors=continue", true)] {
        let stand = Stand::new(32);
        stand.image.fs(&["mkdir", "IMAGE", "/broken"]).success();
        let block = stand.image.debugfs("blocks /broken");
        let block: u64 = block.trim().parse().unwrap();
        let image = File::options().write(true).open(&stand.image.path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&image, &[0xa5; 4096], block * 4096).unwrap();
        drop(image);
        let mut server = stand.command(&["-f", "-o", options]);
        let server = crate::support::Running::start(&mut server);
        wait_until("mounted", || stand.is_mounted());
        assert!(
            fs::read_dir(stand.path("broken"))
                .is_ok_and(|mut names| names.any(|name| name.is_err()))
                || fs::write(stand.path("broken/x"), "").is_err()
        );
        let change = fs::create_dir(stand.path("other"));
        assert_eq!(change.is_ok(), goes_on, "{options}: {change:?}");
        stand.umount();
        let answer = server.wait();
        assert_eq!(answer.code, Some(1), "{answer}");
        assert!(answer.stderr.contains("disk.img: "), "{answer}");
    }
}

#[test]
fn space_below_is_asked_for_as_the_option_says() {
    require!(can_mount());
    let cases: [(&[&str], bool); 5] = [
        (&["--assign", "off"], false),
        (&["--assign", "try", "-o", "assign=off"], true),
        (&["-o", "assign=off"], false),
        (&["-o", "assign=require"], true),
        (&[], true),
    ];
    for (assign, is_assigned) in cases {
        let stand = Stand::new(64);
        stand.mount(assign).success();
        let before = fs::metadata(&stand.image.path).unwrap().blocks();
        let mut fallocate = Command::new("fallocate");
        fallocate.args(["-l", "32MiB"]).stdin(Stdio::null());
        must(fallocate.arg(stand.path("file")));
        let more = fs::metadata(&stand.image.path).unwrap().blocks() - before;
        assert_eq!(more >= 65_536, is_assigned, "{assign:?}: {more} sectors");
        stand.end();
    }
}

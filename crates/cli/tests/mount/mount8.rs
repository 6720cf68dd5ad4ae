//! mount(8), umount(8) and fstab(5): the program under its names in /sbin, where they search for
//! it.
//!
//! Each test runs in a mount namespace of its own, with a /sbin of links to the real one's contents
//! and to the program: nothing is changed in the system's, where the program may be installed. The
//! test restarts itself there, with a deadline.

use std::env;
use std::fs;
use std::path::Path;

use extant_testkit::command;
use extant_testkit::workdir::Workdir;
use extant_testkit::{require, requires};

use crate::image::must;
use crate::stand::{LEAVE_OTHER_MOUNTS, Stand, can_mount, patiently};
use crate::support::{Answer, run};

/// Set where a test is started again.
const INSIDE: &str = "EXTANT_TEST_OWN_SBIN";

/// Whether the calling test has a /sbin of its own; if not, it has run by now where it has.
#[track_caller]
fn has_own_sbin(name: &str) -> bool {
    if env::var_os(INSIDE).is_some() {
        return true;
    }
    let work = Workdir::new();
    let script = r#"
        sbin=$(readlink -f /sbin)
        mkdir "$work/old" "$work/new"
        mount --bind "$sbin" "$work/old"
        ln -s "$work"/old/* "$work/new"
        for name in mount umount; do ln -sf "$extant" "$work/new/$name.fuse.extant"; done
        mount --bind "$work/new" "$sbin"
        exec "$test" --exact "$name" --nocapture
    "#;
    let mut command = command::tool("timeout");
    command
        .args([
            "--kill-after=5",
            "60",
            "unshare",
            "--mount",
            "--propagation",
            "private",
        ])
        .args(["sh", "-euc", &format!("{LEAVE_OTHER_MOUNTS}{script}")])
        .env("work", work.path())
        .env("extant", env!("CARGO_BIN_EXE_extant"))
        .env("test", env::current_exe().unwrap())
        .env("name", format!("mount8::{name}"))
        .env(INSIDE, "1");
    must(&mut command);
    false
}

fn mount(words: &[&str], stand: &Stand) -> Answer {
    let mut command = command::tool("mount");
    command
        .args(words)
        .arg(&stand.image.path)
        .arg(&stand.directory);
    run(&mut command)
}

#[test]
fn mount_and_umount_of_the_system_find_the_program() {
    require!(
        can_mount(),
        requires::tool("mount"),
        requires::tool("umount")
    );
    if !has_own_sbin("mount_and_umount_of_the_system_find_the_program") {
        return;
    }
    let stand = Stand::new(64);
    // umount(8) asks the helper that this option names.
    let words = ["-t", "fuse.extant", "-o", "helper=fuse.extant"];
    let silent = mount(&words, &stand).success();
    assert_eq!(silent.stdout, "");
    assert_eq!(stand.seen().unwrap().fs_type, "fuse.extant");
    fs::write(stand.path("file"), "data").unwrap();
    // It runs our own, and so waits for the image.
    patiently(command::tool("umount").arg(&stand.directory)).success();
    assert!(!stand.is_mounted());
    stand.assert_closed();

    let words = ["-t", "fuse.extant", "-o", "ro,noatime,allow_other,x-test=1"];
    mount(&words, &stand).success();
    let options = stand.seen().unwrap().options;
    for word in ["ro", "noatime", "allow_other"] {
        assert!(options.iter().any(|option| option == word), "{options:?}");
    }
    assert_eq!(fs::read(stand.path("file")).unwrap(), b"data");
    must(command::tool("umount").arg("-l").arg(&stand.directory));
    assert!(!stand.is_mounted());
}

#[test]
fn mount_is_made_read_only_and_writable_again() {
    require!(can_mount(), requires::tool("mount"));
    if !has_own_sbin("mount_is_made_read_only_and_writable_again") {
        return;
    }
    let stand = Stand::mounted(64, &["-o", "dev,allow_other"]);
    let remount = |words: &str| {
        let mut mount = command::tool("mount");
        mount.arg("-o").arg(format!("remount,{words}"));
        run(mount.arg(&stand.directory))
    };
    let has = |word: &str| {
        let options = stand.seen().unwrap().options;
        options.iter().any(|option| option == word)
    };
    fs::write(stand.path("file"), "one").unwrap();
    remount("ro,noexec").success();
    assert!(has("ro") && has("noexec") && has("allow_other"));
    let refused = fs::write(stand.path("file"), "two").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    // The server may have ended now as in a crash.
    let copy = stand.image.work.path().join("copy.img");
    fs::copy(&stand.image.path, &copy).unwrap();
    let cat = |image: &Path| {
        let mut get = crate::support::extant();
        get.args(["fs", "cat"]).arg(image).arg("/file");
        run(&mut get).success().stdout
    };
    assert_eq!(cat(&copy), "one");
    remount("rw,mb_optimize_scan=0,noreservation").success();
    assert!(has("rw"));
    let mut stats = crate::support::extant();
    let stats = run(stats.args(["fs", "stats", "--json"]).arg(&stand.directory)).success();
    assert_eq!(stats.number("/mb_optimize_scan"), 0);
    assert_eq!(stats.json()["reservation"], false);
    remount("rw,mb_optimize_scan=2").refused(1, &["`mb_optimize_scan=2`"]);
    for word in ["noatime", "strictatime", "nodiratime", "sync", "dirsync"] {
        remount(word).refused(32, &[&format!("`{word}`")]);
    }
    remount("relatime,async").success();
    let open = fs::File::create(stand.path("file")).unwrap();
    remount("ro").refused(32, &["in use"]);
    drop(open);
    fs::write(stand.path("file"), "three").unwrap();
    stand.end();
}

#[test]
fn mount_whose_server_takes_no_changes_is_not_made_writable() {
    require!(can_mount(), requires::tool("mount"));
    if !has_own_sbin("mount_whose_server_takes_no_changes_is_not_made_writable") {
        return;
    }
    let stand = Stand::new(64);
    for options in ["ro", "noload"] {
        stand.mount(&["-o", options]).success();
        let remount = |words: &str| {
            let mut mount = command::tool("mount");
            mount.arg("-o").arg(words);
            run(mount.arg(&stand.directory))
        };
        remount("remount,rw").refused(32, &["read-only", "takes no changes"]);
        remount("remount,ro,noexec").success();
        // Past the helper the kernel does it.
        let writable = extant_fuse::MountOptions::for_mount8();
        extant_fuse::remount(&stand.directory, &writable).unwrap();
        let refused = fs::File::create(stand.path("file")).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        stand.umount().success();
    }
    stand.assert_closed();
}

#[test]
fn line_of_fstab_is_mounted() {
    require!(can_mount(), requires::tool("mount"));
    if !has_own_sbin("line_of_fstab_is_mounted") {
        return;
    }
    let stand = Stand::new(64);
    let fstab = stand.image.work.path().join("fstab");
    let line = format!(
        "{} {} fuse.extant rw,nofail,noatime,commit=30,x-systemd.automount 0 0\n",
        stand.image.path.display(),
        stand.directory.display()
    );
    fs::write(&fstab, line).unwrap();
    let mut command = command::tool("mount");
    command.arg("--fstab").arg(&fstab).arg(&stand.directory);
    must(&mut command);
    let seen = stand.seen().unwrap();
    assert!(seen.options.iter().any(|option| option == "noatime"));
    stand.end();
}

#[test]
fn failure_has_the_exit_status_of_mount() {
    require!(can_mount(), requires::tool("mount"));
    if !has_own_sbin("failure_has_the_exit_status_of_mount") {
        return;
    }
    let stand = Stand::new(32);
    let call = |words: &[&str]| {
        let mut command = std::process::Command::new("/sbin/mount.fuse.extant");
        run(command
            .arg(&stand.image.path)
            .arg(&stand.directory)
            .args(words))
    };
    call(&["-o", "nosuch"]).refused(1, &["`nosuch`"]);
    call(&["-x"]).refused(1, &["-x"]);
    call(&["-f"]).success();
    assert!(!stand.is_mounted(), "-f mounts nothing");
    call(&["-sn", "-t", "fuse.extant", "-o", "rw,dev", "-o", "nodev"]).success();
    assert!(stand.is_mounted());
    call(&[]).refused(32, &["mounted at"]);
    let answer = mount(&["-t", "fuse.extant"], &stand);
    assert_eq!(answer.code, Some(32), "{answer}");
    let held = fs::File::open(stand.path("lost+found")).unwrap();
    let umount = |words: &[&str]| {
        let mut command = std::process::Command::new("/sbin/umount.fuse.extant");
        run(command.arg(&stand.directory).args(words))
    };
    umount(&[]).refused(32, &["in use"]);
    drop(held);
    let mut umount_aloud = std::process::Command::new("/sbin/umount.fuse.extant");
    patiently(umount_aloud.arg(&stand.directory).arg("-nv")).success();
    umount(&[]).refused(32, &["not mounted"]);
    let shown = call(&["-v"]).success();
    assert!(shown.stdout.contains("mounted at"), "{shown}");
    stand.end();
}

#[test]
fn devices_and_set_user_id_programs_are_as_for_every_file_system() {
    require!(can_mount(), requires::tool("mount"));
    if !has_own_sbin("devices_and_set_user_id_programs_are_as_for_every_file_system") {
        return;
    }
    let stand = Stand::new(32);
    let has = |word: &str| {
        let options = stand.seen().unwrap().options;
        options.iter().any(|option| option == word)
    };
    let remount = |words: &str| {
        let mut mount = command::tool("mount");
        mount.arg("-o").arg(format!("remount,{words}"));
        run(mount.arg(&stand.directory)).success();
    };
    for (options, nodev, nosuid) in [
        ("rw", false, false),
        ("dev,suid", false, false),
        ("nodev", true, false),
        ("nodev,nosuid", true, true),
    ] {
        mount(&["-t", "fuse.extant", "-o", options], &stand).success();
        assert_eq!((has("nodev"), has("nosuid")), (nodev, nosuid), "{options}");
        for again in ["ro", "rw"] {
            remount(again);
            assert!(has(again), "{options}");
            assert_eq!((has("nodev"), has("nosuid")), (nodev, nosuid), "{options}");
        }
        stand.umount().success();
    }
    stand.assert_closed();
}

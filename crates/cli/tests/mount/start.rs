//! The start of a mount, and its output.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;

use extant_testkit::{command, require, requires};

use crate::image::Image;
use crate::stand::{Stand, can_mount, mount_at, patiently, umount_command, wait_for_end};
use crate::support::{Running, extant, noise, run};

#[test]
fn background_server_is_reported_and_releases_descriptors_and_terminal() {
    require!(can_mount());
    let stand = Stand::new(64);
    // A reader of all output reaches its end: no process keeps stdout or stderr open.
    let answer = stand.mount(&["--json"]).success();
    assert_eq!(answer.stdout.lines().count(), 1, "{answer}");
    answer.valid_json("mount");
    assert_eq!(answer.text("/event"), "mounted");
    assert_eq!(
        answer.text("/mountpoint"),
        stand.directory.to_str().unwrap()
    );
    assert_eq!(answer.text("/image"), stand.image.path.to_str().unwrap());
    assert_eq!(answer.text("/access"), "read-write");
    assert_eq!(answer.number("/block_bytes"), 4096);
    let pid = answer.number("/pid");
    let link = |name: &str| fs::read_link(format!("/proc/{pid}/{name}")).unwrap();
    for name in ["fd/0", "fd/1", "fd/2"] {
        assert_eq!(link(name).to_str(), Some("/dev/null"), "{name}");
    }
    assert_eq!(link("cwd").to_str(), Some("/"));
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    // Its session, and its terminal.
    assert_eq!((fields[3], fields[4]), (&*pid.to_string(), "0"), "{stat}");
    fs::write(stand.path("file"), "data").unwrap();
    stand.umount().success();
    wait_for_end(pid);
    assert_eq!(
        stand.image.fs(&["cat", "IMAGE", "/file"]).success().stdout,
        "data"
    );
    stand.assert_closed();
}

#[test]
fn data_appended_to_a_file_of_ext3_is_there_after_the_end() {
    require!(can_mount());
    let stand = Stand::of(Image::of("-t ext3", 16));
    fs::write(stand.image.work.path().join("file"), vec![b'x'; 4096]).unwrap();
    stand.image.fs(&["put", "IMAGE", "file", "/file"]).success();
    stand.mount(&[]).success();
    let append = |bytes: &[u8]| {
        let file = fs::File::options().append(true).open(stand.path("file"));
        let mut file = file.unwrap();
        file.write_all(bytes).unwrap();
        file.sync_all().unwrap();
    };
    append(b"more\n");
    append(&[b'y'; 100_000]);
    stand.umount().success();
    let answer = stand.image.fs(&["cat", "IMAGE", "/file"]).success();
    let wanted = ["x".repeat(4096), "more\n".into(), "y".repeat(100_000)].concat();
    assert!(answer.stdout == wanted);
    stand.assert_closed();
}

#[test]
fn foreground_server_remains_and_reports_the_mount() {
    require!(can_mount());
    let stand = Stand::new(64);
    let server = stand.mount_in_foreground();
    let pid = server.pid();
    fs::write(stand.path("file"), "data").unwrap();
    stand.umount().success();
    let answer = server.wait().success();
    let place = stand.directory.display();
    assert!(
        answer.stdout.ends_with(&format!(
            "mounted at {place}, read-write, by process {pid}\n"
        )),
        "{answer}"
    );
    stand.assert_closed();
}

#[test]
fn tree_written_through_the_mount_is_the_same_to_the_kernel() {
    require!(
        can_mount(),
        requires::tool("cp"),
        requires::kernel_filesystem("ext4")
    );
    let stand = Stand::mounted(128, &[]);
    let tree = crate::image::tree(stand.image.work.path());
    let copy = stand.path("copy");
    crate::image::must(command::tool("cp").arg("-a").arg(&tree).arg(&copy));
    let owners = crate::image::Owners::Compared;
    crate::image::assert_same_trees(&tree, &copy, owners);
    stand.umount().success();
    let mounted = stand.image.mount();
    crate::image::assert_same_trees(&tree, &mounted.place.join("copy"), owners);
    drop(mounted);
    stand.assert_closed();
}

#[test]
fn names_with_spaces_commas_and_backslashes_are_found_again() {
    require!(can_mount());
    let mut stand = Stand::new(32);
    let odd = stand.image.work.path().join("a b,c\\d\te.img");
    fs::rename(&stand.image.path, &odd).unwrap();
    stand.image.path = odd;
    stand.directory = stand.image.work.directory("m n,\\o");
    stand.mount(&[]).success();
    assert_eq!(stand.seen().unwrap().source, stand.image.path);
    // By the image, from its directory.
    let mut umount = extant();
    umount.arg("umount").arg("a b,c\\d\te.img");
    run(umount.current_dir(stand.image.work.path())).success();
    assert!(!stand.is_mounted());
    stand.assert_closed();
}

#[test]
fn relative_names_are_those_of_the_place_of_the_call() {
    require!(can_mount());
    let stand = Stand::new(32);
    let mut mount = extant();
    mount.args(["mount", "disk.img", "mount"]);
    let answer = run(mount.current_dir(stand.image.work.path())).success();
    assert!(
        answer.stdout.starts_with("disk.img: mounted at /"),
        "{answer}"
    );
    assert_eq!(stand.seen().unwrap().source, stand.image.path);
    stand.end();
}

#[test]
fn directory_that_is_not_empty_is_hidden_meanwhile() {
    require!(can_mount());
    let stand = Stand::new(32);
    fs::write(stand.path("hidden"), "").unwrap();
    stand.mount(&[]).success();
    assert!(!stand.path("hidden").exists());
    assert!(stand.path("lost+found").is_dir());
    stand.umount().success();
    assert!(stand.path("hidden").exists());
}

#[test]
fn disk_is_mounted_like_an_image() {
    require!(can_mount());
    let stand = Stand::new(32);
    let device = extant_testkit::scratch::LoopDevice::attach(&stand.image.path);
    let mut mount = extant();
    mount.arg("mount").arg(device.path()).arg(&stand.directory);
    run(&mut mount).success();
    fs::write(stand.path("file"), noise(5, 100_000)).unwrap();
    // The claim excludes other processes, and the server waits for it.
    let mut mkdir = extant();
    mkdir.args(["fs", "mkdir"]).arg(device.path()).arg("/no");
    run(&mut mkdir).refused(4, &["mounted at", "extant umount"]);
    stand.umount().success();
    run(extant()
        .arg("fs")
        .arg("mkdir")
        .arg(device.path())
        .arg("/yes"))
    .success();
    drop(device);
    stand.assert_closed();
}

#[test]
fn image_that_needs_recovery_is_recovered_and_left_alone_when_read_only() {
    require!(can_mount());
    let stand = Stand::new(64);
    let pid = stand.mount(&["--json"]).success().number("/pid");
    fs::create_dir(stand.path("new")).unwrap();
    let file = fs::File::create(stand.path("new/file")).unwrap();
    std::io::Write::write_all(&mut &file, b"synced").unwrap();
    file.sync_all().unwrap();
    drop(file);
    crate::stand::send(pid, rustix::process::Signal::KILL);
    wait_for_end(pid);
    let answer = stand.umount();
    assert_eq!(answer.code, Some(1), "{answer}");
    assert!(answer.stderr.contains("closed it in order"), "{answer}");
    assert!(stand.needs_recovery());
    let before = fs::read(&stand.image.path).unwrap();
    stand.mount(&["-r"]).success();
    assert_eq!(fs::read(stand.path("new/file")).unwrap(), b"synced");
    stand.umount().success();
    assert!(
        fs::read(&stand.image.path).unwrap() == before,
        "a read-only mount has written"
    );
    stand.mount(&[]).success();
    assert_eq!(fs::read(stand.path("new/file")).unwrap(), b"synced");
    stand.end();
}

#[test]
fn mount_in_a_mount_is_seen_and_unmounted_on_its_own() {
    require!(can_mount());
    let outer = Stand::mounted(128, &[]);
    let inner = Stand::new(32);
    fs::copy(&inner.image.path, outer.path("inner.img")).unwrap();
    fs::create_dir(outer.path("m")).unwrap();
    let mut mount = extant();
    mount.arg("mount").arg(outer.path("inner.img"));
    run(mount.arg(outer.path("m"))).success();
    fs::write(outer.path("m/file"), noise(6, 200_000)).unwrap();
    assert!(mount_at(&outer.path("m")).is_some());
    outer.umount_in_use().refused(4, &["--lazy"]);
    patiently(&mut umount_command(&outer.path("m"))).success();
    assert_eq!(
        fs::metadata(outer.path("inner.img")).unwrap().size(),
        32 << 20
    );
    outer.image.fs(&["ls", "IMAGE"]).refused(4, &["mounted at"]);
    outer.umount().success();
    outer
        .image
        .fs(&["get", "IMAGE", "/inner.img", "inner.img"])
        .success();
    let copy = outer.image.work.path().join("inner.img");
    extant_testkit::oracle::assert_e2fsck_clean(&copy);
    let mut cat = extant();
    cat.args(["fs", "ls"]).arg(&copy);
    assert_eq!(run(&mut cat).success().stdout, "file\nlost+found\n");
}

#[test]
fn server_stopped_before_the_mount_leaves_no_mount() {
    require!(can_mount());
    let stand = Stand::new(32);
    for _ in 0..20 {
        let starting = Running::start(&mut stand.command(&[]));
        let (answer, _) = starting.stop(rustix::process::Signal::INT);
        match answer.code {
            // It was faster.
            Some(0) => {
                stand.umount().success();
            }
            // Before the signal was caught, it ends by it.
            None => {}
            code => assert_eq!(code, Some(130), "{answer}"),
        }
        assert!(!stand.is_mounted(), "{answer}");
        assert!(!stand.needs_recovery());
    }
    stand.assert_closed();
}

#[test]
fn image_with_features_that_are_only_read_is_mounted_read_only_with_a_word() {
    require!(can_mount());
    let stand = Stand::of(Image::of("-t ext4 -O quota", 32));
    stand.mount(&["-w"]).refused(5, &["disk.img", "quota"]);
    let answer = stand.mount(&["--json"]);
    assert_eq!(answer.code, Some(0), "{answer}");
    assert_eq!(answer.stderr.lines().count(), 1, "{answer}");
    for word in ["disk.img", "quota", "mounted read-only"] {
        assert!(answer.stderr.contains(word), "{answer}");
    }
    assert_eq!(answer.text("/access"), "read-only");
    assert!(stand.path("lost+found").is_dir());
    stand.umount().success();
    // Asked for, it needs no word.
    stand.mount(&["-r"]).success();
    stand.umount().success();
}

#[test]
fn journal_is_passed_over_where_it_is_not_to_be_loaded() {
    require!(can_mount(), requires::tool("debugfs"));
    let stand = Stand::new(64);
    let pid = stand.mount(&["--json"]).success().number("/pid");
    fs::write(stand.path("kept"), "data").unwrap();
    stand.umount().success();
    wait_for_end(pid);
    let pid = stand.mount(&["--json"]).success().number("/pid");
    let file = fs::File::create(stand.path("in-the-journal")).unwrap();
    file.sync_all().unwrap();
    drop(file);
    crate::stand::send(pid, rustix::process::Signal::KILL);
    wait_for_end(pid);
    let answer = stand.umount();
    assert_eq!(answer.code, Some(1), "{answer}");
    assert!(stand.needs_recovery());
    for option in ["noload", "norecovery"] {
        let before = fs::read(&stand.image.path).unwrap();
        let answer = stand.mount(&["--json", "-o", option]).success();
        assert_eq!(answer.text("/access"), "read-only");
        assert_eq!(fs::read(stand.path("kept")).unwrap(), b"data");
        assert!(!stand.path("in-the-journal").exists());
        stand.umount().success();
        assert!(fs::read(&stand.image.path).unwrap() == before);
    }
    stand.mount(&[]).success();
    assert!(stand.path("in-the-journal").exists());
    stand.end();
}

//! How a mount ends: by umount, by signals, while files are in use, and by `kill -9`.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc::channel;
use std::thread;

use extant_testkit::{command, require, requires};
use rustix::process::Signal;

use crate::image::must;
use crate::stand::{Stand, can_mount, patiently, send, umount_command, wait_for_end};
use crate::support::{extant, noise, run, wait_until};

/// `ENOTCONN`: the server has ended.
const NOTCONN: i32 = rustix::io::Errno::NOTCONN.raw_os_error();

#[test]
fn every_signal_ends_the_server_in_order() {
    require!(can_mount());
    let stand = Stand::new(64);
    for (index, signal) in [Signal::INT, Signal::TERM, Signal::HUP]
        .into_iter()
        .enumerate()
    {
        let server = stand.mount_in_foreground();
        let name = format!("f{index}");
        // Not synced: the kernel writes its dirty data back when it is unmounted.
        fs::write(stand.path(&name), noise(index as u64, 300_000)).unwrap();
        let (answer, _) = server.stop(signal);
        answer.success();
        assert!(!stand.is_mounted());
        stand.assert_closed();
        let pid = stand.mount(&["--json"]).success().number("/pid");
        let found = fs::read(stand.path(&name)).unwrap();
        assert!(found == noise(index as u64, 300_000), "{signal:?}");
        send(pid, signal);
        wait_for_end(pid);
        assert!(!stand.is_mounted());
        stand.assert_closed();
    }
}

#[test]
fn signal_while_a_file_is_in_use_frees_the_place_and_waits_for_the_file() {
    require!(can_mount());
    let stand = Stand::new(64);
    let mut server = stand.mount_in_foreground();
    let mut file = File::create(stand.path("file")).unwrap();
    file.write_all(b"before ").unwrap();
    let own = format!("(pid {})", std::process::id());
    stand
        .umount_in_use()
        .refused(4, &["in use by ", &own, "--lazy"]);
    assert!(stand.is_mounted());
    server.send(Signal::TERM);
    wait_until("unmounted", || !stand.is_mounted());
    file.write_all(b"after").unwrap();
    assert!(server.is_alive());
    stand
        .image
        .fs(&["mkdir", "IMAGE", "/d"])
        .refused(4, &["in use"]);
    drop(file);
    let answer = server.wait();
    assert_eq!(answer.code, Some(0), "{answer}");
    assert_eq!(answer.stderr.lines().count(), 1, "{answer}");
    for word in ["in use", "last file", "second signal"] {
        assert!(answer.stderr.contains(word), "{answer}");
    }
    let cat = stand.image.fs(&["cat", "IMAGE", "/file"]).success();
    assert_eq!(cat.stdout, "before after");
    stand.assert_closed();
}

#[test]
fn second_signal_ends_the_server_at_once() {
    require!(can_mount());
    let stand = Stand::new(64);
    let mut server = stand.mount_in_foreground();
    let mut file = File::create(stand.path("file")).unwrap();
    file.write_all(b"synced").unwrap();
    file.sync_all().unwrap();
    server.send(Signal::TERM);
    wait_until("unmounted", || !stand.is_mounted());
    let (answer, _) = server.stop(Signal::TERM);
    assert_eq!(answer.code, Some(130), "{answer}");
    assert!(
        file.write_all(b"lost")
            .and_then(|()| file.sync_all())
            .is_err()
    );
    drop(file);
    stand.mount(&[]).success();
    assert_eq!(fs::read(stand.path("file")).unwrap(), b"synced");
    stand.end();
}

#[test]
fn lazy_umount_does_not_wait_for_files_in_use() {
    require!(can_mount());
    let stand = Stand::new(64);
    let pid = stand.mount(&["--json"]).success().number("/pid");
    let mut file = File::create(stand.path("file")).unwrap();
    run(extant().args(["umount", "--lazy"]).arg(&stand.directory)).success();
    assert!(!stand.is_mounted());
    file.write_all(b"late").unwrap();
    drop(file);
    wait_for_end(pid);
    let cat = stand.image.fs(&["cat", "IMAGE", "/file"]).success();
    assert_eq!(cat.stdout, "late");
    stand.assert_closed();
}

#[test]
fn umount_returns_when_the_image_is_closed() {
    require!(can_mount());
    let stand = Stand::new(128);
    for round in 0..5 {
        stand.mount(&[]).success();
        for index in 0..200 {
            let bytes = noise(index, 20_000);
            fs::write(stand.path(format!("{round}-{index}")), bytes).unwrap();
        }
        stand.umount().success();
        // Inspected without our locks, and with them.
        assert!(!stand.needs_recovery());
        extant_testkit::oracle::assert_e2fsck_clean(&stand.image.path);
    }
    stand.assert_closed();
}

#[test]
fn umount_waits_for_a_server_whose_image_has_another_name() {
    require!(can_mount());
    let stand = Stand::new(128);
    for round in 0..5 {
        let pid = stand
            .mount(&["--json", "-o", "fsname=scratch"])
            .success()
            .number("/pid");
        for index in 0..200 {
            let bytes = noise(index, 20_000);
            fs::write(stand.path(format!("{round}-{index}")), bytes).unwrap();
        }
        stand.umount().success();
        assert!(!stand.needs_recovery());
        assert!(!Path::new(&format!("/proc/{pid}/exe")).exists());
    }
    stand.assert_closed();
}

#[test]
fn umount_names_what_it_waits_for() {
    require!(can_mount());
    let stand = Stand::new(64);
    let who = format!("(pid {}, reading) to close", std::process::id());
    // The unmounting process may see the image free before the next holder has it.
    for _ in 0..5 {
        stand.mount(&[]).success();
        let image = File::open(&stand.image.path).unwrap();
        let (end, ended) = channel::<()>();
        let holder = thread::spawn(move || {
            // Granted when the server has closed the image.
            image.lock().unwrap();
            let _ = ended.recv();
        });
        let mut umount = umount_command(&stand.directory)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(umount.stderr.take().unwrap()).lines().next();
        drop(end);
        holder.join().unwrap();
        assert!(umount.wait().unwrap().success());
        if let Some(said) = said {
            let said = said.unwrap();
            assert!(said.contains(&who), "{said}");
            return;
        }
    }
    panic!("it said nothing");
}

#[test]
fn umount_of_the_system_ends_the_server_as_well() {
    require!(can_mount(), requires::tool("fusermount3"));
    let stand = Stand::new(64);
    for (program, option) in [("umount", "-v"), ("fusermount3", "-u")] {
        let pid = stand.mount(&["--json"]).success().number("/pid");
        fs::write(stand.path(program), noise(1, 100_000)).unwrap();
        let answer = patiently(command::tool(program).arg(option).arg(&stand.directory));
        assert_eq!(answer.code, Some(0), "{answer}");
        wait_for_end(pid);
        stand.assert_closed();
    }
}

/// Everything that was synced, and by which call, before the server was killed.
#[test]
fn everything_synced_is_there_after_a_kill() {
    require!(can_mount(), requires::tool("sync"));
    for options in ["writeback", "no_writeback"] {
        let stand = Stand::new(128);
        let words = ["-o", options, "--json"];
        let pid = stand.mount(&words).success().number("/pid");
        let open = |name: &str| File::create(stand.path(name)).unwrap();
        fs::create_dir_all(stand.path("a/b")).unwrap();
        let fsynced = open("a/b/fsynced");
        fsynced.write_all_at(&noise(1, 1_000_000), 5_000).unwrap();
        fsynced.sync_all().unwrap();
        let datasynced = open("datasynced");
        datasynced.write_all_at(&noise(2, 70_000), 0).unwrap();
        datasynced.sync_data().unwrap();
        open("old-name").write_all(b"renamed").unwrap();
        fs::rename(stand.path("old-name"), stand.path("a/new-name")).unwrap();
        File::open(stand.path("a")).unwrap().sync_all().unwrap();
        run(extant()
            .arg("create")
            .arg(stand.path("created"))
            .arg("8MiB"))
        .success();
        fs::write(stand.path("by-name"), noise(3, 30_000)).unwrap();
        must(command::tool("sync").arg(stand.path("by-name")));
        let mut unsynced = open("unsynced");
        unsynced.write_all(&noise(4, 3_000_000)).unwrap();
        send(pid, Signal::KILL);
        wait_for_end(pid);
        let error = fs::read_dir(&stand.directory).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(NOTCONN), "{options}");
        stand
            .mount(&[])
            .refused(4, &["server has ended", "extant umount"]);
        drop((fsynced, datasynced, unsynced));
        let answer = stand.umount();
        assert_eq!(answer.code, Some(1), "{answer}");
        assert!(!stand.is_mounted());
        extant_testkit::oracle::assert_e2fsck_clean(&replayed_copy(&stand));
        stand.mount(&words).success();
        let read = |name: &str| {
            let mut bytes = Vec::new();
            let mut file = File::open(stand.path(name)).unwrap();
            file.read_to_end(&mut bytes).unwrap();
            bytes
        };
        let found = read("a/b/fsynced");
        assert!(found[..5_000].iter().all(|&byte| byte == 0), "{options}");
        assert!(found[5_000..] == noise(1, 1_000_000), "{options}");
        assert!(read("datasynced") == noise(2, 70_000), "{options}");
        assert_eq!(read("a/new-name"), b"renamed", "{options}");
        assert!(!stand.path("old-name").exists());
        assert_eq!(read("created"), vec![0; 8 << 20]);
        assert!(read("by-name") == noise(3, 30_000), "{options}");
        stand.end();
    }
}

/// The journal replayed by e2fsck, on a copy.
fn replayed_copy(stand: &Stand) -> std::path::PathBuf {
    let copy = stand.image.work.path().join("copy.img");
    fs::copy(&stand.image.path, &copy).unwrap();
    let replay = command::run_any_status(command::tool("e2fsck").arg("-p").arg(&copy)).unwrap();
    // 1: it has replayed.
    assert!(
        matches!(replay.status.code(), Some(0 | 1)),
        "{}",
        command::describe(&replay)
    );
    copy
}

#[test]
fn file_that_is_closed_a_moment_later_does_not_stop_an_unmount() {
    require!(can_mount());
    let stand = Stand::mounted(32, &[]);
    let file = File::create(stand.path("file")).unwrap();
    let closing = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(200));
        drop(file);
    });
    stand.umount_in_use().success();
    closing.join().unwrap();
    stand.assert_closed();
}

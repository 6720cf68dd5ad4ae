//! Pools in ext4 images, shared by commands and processes.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

use extant_testkit::oracle::assert_e2fsck_clean;
use extant_testkit::require;
use extant_testkit::requires::{root, tool};
use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::workdir::Workdir;
use rustix::process::Signal;

use crate::stand::{
    create_slowly, has_begun, in_memory, make_image, make_twelve_where_four_fit, say, signal_worker,
};
use crate::support::{MIB, NOBODY, as_nobody, extant, noise, run, wait_until};

/// A file system in memory with an image.
fn stand() -> (Scratch, PathBuf) {
    let scratch = in_memory(512 * MIB);
    let image = scratch.path().join("disk.img");
    make_image(&image, 256 * MIB);
    (scratch, image)
}

#[test]
fn session_in_an_image_needs_no_root_and_no_mount() {
    require!(root(), tool("mke2fs"), tool("setpriv"));
    let work = Workdir::new();
    let dir = work.directory("own");
    let image = dir.join("disk.img");
    make_image(&image, 128 * MIB);
    let source = dir.join("source");
    fs::write(&source, noise(3, 3 << 20)).unwrap();
    for path in [&dir, &image, &source] {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let config = dir.join("config");
    let nobody = |words: &[&str]| {
        let mut command = extant();
        command.args(words).arg("--config-dir").arg(&config);
        run(&mut as_nobody(&command, &work))
    };
    let target = image.to_str().unwrap();
    let define = [
        "pool", "define", "box", "--kind", "ext4", "--target", target,
    ];
    nobody(&[&define[..], &["--directory", "/volumes"]].concat()).success();
    nobody(&["vol", "create", "box", "a", "10MiB"]).success();
    nobody(&["vol", "upload", "box", "b", source.to_str().unwrap()]).success();
    nobody(&["vol", "clone", "box", "b", "c"]).success();
    nobody(&["vol", "resize", "box", "c", "5MiB"]).success();
    nobody(&["vol", "wipe", "box", "c", "--method", "discard"]).success();
    nobody(&["vol", "materialize", "box", "c"]).success();
    let back = dir.join("back");
    nobody(&["vol", "download", "box", "b", back.to_str().unwrap()]).success();
    assert!(fs::read(&back).unwrap() == fs::read(&source).unwrap());
    let info = nobody(&["vol", "info", "box", "c", "--json"]).success();
    assert_eq!(info.number("/written_bytes"), 5 * MIB);
    assert_eq!(info.text("/path"), format!("{target}:/volumes/c"));
    nobody(&["vol", "delete", "box", "a"]).success();
    let list = nobody(&["vol", "list", "box", "--json"]).success().json();
    assert_eq!(list["volumes"].as_array().unwrap().len(), 2);
    let info = nobody(&["pool", "info", "box", "--json"]).success();
    assert_eq!(info.text("/kind"), "ext4");
    assert_eq!(info.text("/directory"), "/volumes");
    assert_eq!(info.number("/jobs"), 0);
    nobody(&["pool", "info", "box", "--xml"]).refused(5, &["libvirt", "ext4"]);
    nobody(&["vol", "info", "box", "c", "--xml"]).refused(5, &["libvirt"]);
    nobody(&["pool", "refresh", "box"]).success();
    let listed = nobody(&["pool", "list", "--json"]).success();
    assert_eq!(listed.text("/pools/0/path"), target);
    nobody(&["pool", "delete", "box"]).success();
    assert_e2fsck_clean(&image);
    // By its path, its root is a pool; no other file was created there.
    let outside = say("vol", "list", &image, &["--json"]).success().json();
    assert_eq!(outside["volumes"].as_array().unwrap().len(), 0, "{outside}");
}

#[test]
fn options_of_images_are_refused_for_directories() {
    let work = Workdir::new();
    let dir = work.directory("pool");
    let config = work.directory("config");
    let define = |more: &[&str]| {
        let mut command = extant();
        command.args(["pool", "define", "p"]).args(more);
        run(command.arg("--config-dir").arg(&config))
    };
    let dir = dir.to_str().unwrap();
    define(&[dir, "--directory", "/a"]).refused(2, &["--kind ext4"]);
    define(&[dir, "--target", dir]).refused(2, &["--target"]);
    define(&["--kind", "zfs", dir]).refused(2, &["zfs"]);
    define(&["--kind", "ext4", dir]).refused(4, &["pool"]);
    define(&["--target", dir]).success();
}

#[test]
fn processes_share_an_image_and_exactly_those_that_fit_succeed() {
    require!(Filesystem::Ext4.requirement());
    let (scratch, image) = stand();
    let config = scratch.path().join("config");
    let mut define = extant();
    define.args(["pool", "define", "small", "--kind", "ext4", "--target"]);
    define
        .arg(&image)
        .args(["--total", "35MiB", "--config-dir"]);
    run(define.arg(&config)).success();
    make_twelve_where_four_fit(&config);
    let mut info = extant();
    info.args(["pool", "info", "small", "--json", "--config-dir"]);
    let info = run(info.arg(&config)).success();
    assert_eq!(info.number("/space/volumes"), 4);
    assert_eq!(info.number("/space/allocated_bytes"), 32 * MIB);
    assert_eq!(info.number("/space/reserved_bytes"), 0);
    assert_e2fsck_clean(&image);
}

#[test]
fn detached_job_in_an_image_is_seen_cancelled_killed_and_resumed() {
    require!(Filesystem::Ext4.requirement());
    let (_scratch, image) = stand();
    let id = create_slowly(&image, "a");
    wait_until("the job's progress", || has_begun(&image, &id));
    // The jobs are seen while one of them has the image; changes by others are refused.
    let jobs = say("job", "list", &image, &["--json"]).success().json();
    assert_eq!(jobs["jobs"][0]["state"], "running");
    run(extant().args(["fs", "rm"]).arg(&image).arg("/a")).refused(4, &["disk.img"]);
    say("job", "cancel", &image, &[&id]).success();
    assert_e2fsck_clean(&image);

    let id = create_slowly(&image, "b");
    wait_until("the job's progress", || has_begun(&image, &id));
    let mut own = image.clone().into_os_string();
    own.push(".extant");
    signal_worker(Path::new(&own), &id, Signal::KILL);
    let state = || say("job", "show", &image, &[&id, "--json"]).text("/state");
    wait_until("the end of the worker", || state() == "interrupted");
    let found = say("pool", "refresh", &image, &["--json"]).success();
    assert_eq!(found.number("/interrupted/0/job").to_string(), id);
    assert!(found.number("/interrupted/0/allocated_bytes") > 0);
    say("job", "resume", &image, &[&id, "--detach"]).success();
    say("job", "wait", &image, &[&id]).success();
    let info = say("vol", "info", &image, &["b", "--json"]).success();
    assert_eq!(info.number("/written_bytes"), 64 * MIB);
    let list = say("vol", "list", &image, &["--json"]).success().json();
    assert_eq!(list["volumes"].as_array().unwrap().len(), 1);
    assert_e2fsck_clean(&image);
}

#[test]
fn background_in_an_image_watches_the_disk_below_and_the_job_keeps_its_share() {
    require!(Filesystem::Ext4.requirement());
    let (scratch, image) = stand();
    let disk = scratch.device().unwrap().file_name().unwrap();
    let source = scratch.path().join("source");
    fs::write(&source, noise(1, 2 * MIB as usize)).unwrap();
    let source = source.to_str().unwrap();
    let background = ["--background=50%", "--json"];
    for (command, words) in [
        ("create", &["a", "4MiB"][..]),
        ("create", &["q.qcow2", "4MiB"]),
        ("resize", &["a", "6MiB"]),
        ("clone", &["a", "b"]),
        ("wipe", &["a"]),
        ("upload", &["c", source]),
    ] {
        let answer = say("vol", command, &image, &[words, &background].concat()).success();
        assert_eq!(*answer.text("/background_disk"), *disk, "{command}");
        let pauses = answer.json()["gave_way_seconds"].as_f64();
        assert!(pauses.is_some_and(|seconds| seconds >= 0.0), "{answer}");
        let id = answer.number("/job").to_string();
        let shown = say("job", "show", &image, &[&id, "--json"]).success();
        assert_eq!(
            shown.json()["options"]["background_percent"],
            50.0,
            "{shown}"
        );
    }
    assert_e2fsck_clean(&image);
}

#[test]
fn background_in_an_image_in_memory_is_refused_with_the_reason() {
    require!(Filesystem::Tmpfs.requirement());
    let memory = Scratch::new(Filesystem::Tmpfs, 64 * MIB);
    let image = memory.path().join("disk.img");
    make_image(&image, 32 * MIB);
    let words = ["a", "1MiB", "--background"];
    say("vol", "create", &image, &words).refused(5, &["background pace", "tmpfs"]);
    let listed = say("vol", "list", &image, &["--json"]).success().json();
    assert_eq!(listed["volumes"], serde_json::json!([]));
}

#[test]
fn interrupted_background_job_of_an_image_is_resumed_with_its_share() {
    require!(Filesystem::Ext4.requirement());
    let (_scratch, image) = stand();
    let more = ["a", "16MiB", "--background=75%", "--rate", "4M", "--detach"];
    let id = say("vol", "create", &image, &more).success().stdout;
    let id = id.trim();
    wait_until("the job's progress", || has_begun(&image, id));
    let mut own = image.clone().into_os_string();
    own.push(".extant");
    signal_worker(Path::new(&own), id, Signal::KILL);
    let state = || say("job", "show", &image, &[id, "--json"]).success().json();
    wait_until("the end of its process", || {
        state()["state"] == "interrupted"
    });
    assert_eq!(state()["options"]["background_percent"], 75.0);
    say("job", "resume", &image, &[id]).success();
    let ended = state();
    assert_eq!(ended["state"], "done", "{ended}");
    assert_eq!(ended["options"]["background_percent"], 75.0, "{ended}");
    assert_e2fsck_clean(&image);
}

//! Volumes of pools as exports.

use std::os::unix::fs::MetadataExt;

use extant_testkit::command::tool;
use extant_testkit::{require, requires};
use rustix::process::Signal;

use crate::image::Image;
use crate::stand::{Serving, Stand, qemu_io, said, size};
use crate::support::{Answer, MIB, Running, extant, run, wait_until};

fn vol(words: &[&str]) -> Answer {
    run(extant().arg("vol").args(words))
}

/// Contents as a client reads them.
fn read(stand: &Stand, serving: &Serving, name: &str) -> Vec<u8> {
    let copy = stand.path("copy");
    let mut convert = tool("qemu-img");
    convert.args(["convert", "-f", "raw", "-O", "raw", &serving.uri(name)]);
    said(convert.arg(&copy));
    std::fs::read(&copy).unwrap()
}

#[test]
fn volume_is_served_in_its_format_and_is_in_use_meanwhile() {
    require!(requires::tool("nbdinfo"), requires::tool("qemu-io"));
    let stand = Stand::new();
    let pool = stand.path("pool");
    std::fs::create_dir(&pool).unwrap();
    let pool = pool.to_str().unwrap();
    // Its name does not say so.
    let thin = ["--format", "qcow2", "--preallocation", "off"];
    vol(&[&["create", pool, "disk", "8MiB"][..], &thin].concat()).success();
    vol(&["create", pool, "plain", "1MiB"]).success();
    let serving = stand.serve(&["--pool", pool, "disk", "b=plain"]);
    assert_eq!(size(&serving.uri("disk")), 8 * MIB);
    assert_eq!(size(&serving.uri("b")), MIB);
    qemu_io(&serving.uri("disk"), &["write -P 7 1M 64k"]);
    vol(&["delete", pool, "disk"]).refused(4, &["pool/disk: "]);
    vol(&["wipe", pool, "plain"]).refused(4, &["pool/plain: "]);
    serving.end();
    // Read only it may be served twice.
    let serving = stand.serve(&["--pool", pool, "-r", "disk", "again=disk"]);
    for name in ["disk", "again"] {
        let bytes = read(&stand, &serving, name);
        assert!(bytes[MIB as usize..][..64 << 10] == [7; 64 << 10], "{name}");
    }
    serving.end();
    vol(&["delete", pool, "disk"]).success();
    let mut gone = stand.command(&["--pool", pool, "disk", "--socket", "s"]);
    run(&mut gone).refused(4, &["pool/disk: "]);
    for name in ["a/b", "..", ".extant"] {
        let mut wrong = stand.command(&["--pool", pool, name, "--socket", "s"]);
        run(&mut wrong).refused(2, &[name]);
    }
}

#[test]
fn volume_that_a_job_works_on_is_not_served() {
    let stand = Stand::new();
    let pool = stand.path("pool");
    std::fs::create_dir(&pool).unwrap();
    let pool = pool.to_str().unwrap();
    vol(&["create", pool, "a", "64MiB", "--preallocation", "off"]).success();
    let slow = ["materialize", pool, "a", "--rate", "1MiB", "--detach"];
    vol(&slow).success();
    wait_until("the job", || {
        std::fs::metadata(stand.path("pool/a")).unwrap().blocks() > 0
    });
    let mut command = stand.command(&["--pool", pool, "a", "--socket", "s"]);
    run(&mut command).refused(4, &["pool/a: "]);
    run(extant().args(["job", "cancel", pool, "2"])).success();
    stand.serve(&["--pool", pool, "a"]).end();
}

#[test]
fn volume_of_a_pool_in_an_image_is_served_through_its_journal() {
    require!(
        requires::tool("mke2fs"),
        requires::tool("e2fsck"),
        requires::tool("qemu-io")
    );
    let stand = Stand::new();
    let image = Image::new(64);
    let pool = image.path.to_str().unwrap();
    vol(&["create", pool, "a.qcow2", "8MiB"]).success();
    let mut command = stand.command(&["--pool", pool, "a.qcow2", "--cache", "none"]);
    run(command.args(["--socket", "s"])).refused(2, &["--cache"]);
    let mut command = stand.command(&["--pool", pool, "a.qcow2", "--aio", "threads"]);
    run(command.args(["--socket", "s"])).refused(2, &["--aio"]);
    let serving = stand.serve(&["--pool", pool, "a.qcow2"]);
    assert_eq!(size(&serving.uri("a.qcow2")), 8 * MIB);
    qemu_io(&serving.uri("a.qcow2"), &["write -P 9 0 1M", "flush"]);
    serving.end();
    image.assert_clean();
    let serving = stand.serve(&["--pool", pool, "a.qcow2", "-r"]);
    let bytes = read(&stand, &serving, "a.qcow2");
    assert!(bytes[..MIB as usize] == [9; MIB as usize]);
    serving.end();
}

#[test]
fn every_command_names_the_process_that_uses_the_file() {
    require!(requires::tool("qemu-io"));
    let stand = Stand::new();
    let pool_path = stand.path("pool");
    std::fs::create_dir(&pool_path).unwrap();
    let pool = pool_path.to_str().unwrap();
    let image = pool_path.join("a.qcow2");
    let image_name = image.to_str().unwrap();
    let out = stand.path("out");
    let out = out.to_str().unwrap();
    for name in ["raw", "a.qcow2"] {
        vol(&["create", pool, name, "8MiB", "--preallocation", "off"]).success();
    }
    let refused = |code: i32, holder: &str, words: &[&str]| {
        run(extant().args(words)).refused(code, &[holder, ", writing)"]);
    };
    // Our own server.
    let serving = stand.serve(&["--pool", pool, "raw", "a.qcow2"]);
    let holder = format!("extant (pid {}", serving.running.pid());
    refused(4, &holder, &["vol", "delete", pool, "raw"]);
    refused(4, &holder, &["vol", "resize", pool, "raw", "9MiB"]);
    refused(4, &holder, &["vol", "download", pool, "raw", out]);
    refused(4, &holder, &["vol", "clone", pool, "a.qcow2", "copy"]);
    refused(
        4,
        &holder,
        &["serve", "--pool", pool, "raw", "--socket", "t"],
    );
    refused(4, &holder, &["image", "resize", image_name, "9MiB"]);
    // As in qemu-img check: the check could not be made.
    refused(1, &holder, &["image", "check", image_name]);
    serving.end();
    // QEMU, which has locks of its own.
    let mut qemu = tool("qemu-io");
    qemu.args(["-f", "qcow2"]).arg(&image);
    let mut qemu = Running::start(qemu.stdin(std::process::Stdio::piped()));
    let holder = format!("qemu-io (pid {}", qemu.pid());
    wait_until("qemu-io", || {
        let holders = extant_hostfs::holders(&image);
        holders.iter().any(|holder| holder.may_write)
    });
    refused(4, &holder, &["vol", "wipe", pool, "a.qcow2"]);
    refused(4, &holder, &["vol", "resize", pool, "a.qcow2", "9MiB"]);
    refused(4, &holder, &["serve", image_name, "--socket", "t"]);
    refused(1, &holder, &["image", "check", image_name]);
    assert!(qemu.is_alive());
    qemu.stop(Signal::TERM);
}

#[test]
fn reader_of_a_pools_image_is_waited_for_and_named() {
    require!(requires::tool("mke2fs"), requires::tool("script"));
    let stand = Stand::new();
    let image = Image::new(64);
    let pool = image.path.to_str().unwrap();
    vol(&["create", pool, "a", "1MiB"]).success();
    let serving = stand.serve(&["--pool", pool, "a", "-r"]);
    let holder = format!("extant (pid {}, reading)", serving.running.pid());
    let mut words = extant();
    words.args(["vol", "create", pool, "b", "1MiB"]);
    let line = extant_testkit::command::line(&words);
    let mut script = tool("script");
    let answer = run(script.args(["-qec", &line, "/dev/null"]));
    assert_eq!(answer.code, Some(4), "{answer}");
    let told: Vec<&str> = answer
        .stdout
        .lines()
        .filter(|line| line.contains(&holder))
        .collect();
    let [waiting, refused] = told[..] else {
        panic!("{answer}")
    };
    assert!(waiting.contains("extant: waiting: "), "{answer}");
    assert!(refused.contains("(waited 1"), "{answer}");
    serving.end();
}

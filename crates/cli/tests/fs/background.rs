//! `--background` inside an image: it yields to the users of the disk below.

use std::path::Path;

use extant_testkit::command;
use extant_testkit::oracle::assert_e2fsck_clean;
use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::{require, requires};

use crate::image::{FORMATS, Image, must};
use crate::support::{Answer, MIB, create, noise, run};

/// A file system whose loop device is the lowest block device: its file is in memory.
fn host() -> Scratch {
    Scratch::builder(Filesystem::Ext4, 256 * MIB)
        .memory(512 * MIB)
        .build()
}

fn device_of(host: &Scratch) -> &str {
    let name = host.device().unwrap().file_name().unwrap();
    name.to_str().unwrap()
}

#[track_caller]
fn inside(image: &Image, words: &[&str]) -> Answer {
    run(&mut image.command(words[0], &words[1..]))
}

#[test]
fn background_inside_an_image_watches_the_disk_below_and_reports_its_pauses() {
    require!(requires::root(), requires::tool("mke2fs"));
    let host = host();
    let image = Image::in_directory(host.path(), FORMATS[0], 128);
    let source = image.work.path().join("source");
    std::fs::write(&source, noise(1, 3 * MIB as usize)).unwrap();
    let source = source.to_str().unwrap();
    let thin = ["create", "/thin", "4M", "--preallocation", "off"];
    inside(&image, &[&thin[..], &["--in", "IMAGE"]].concat()).success();
    let sparse = ["image", "create", "/disk.qcow2", "4M", "--in", "IMAGE"];
    inside(&image, &sparse).success();
    for (words, background) in [
        (
            &["create", "/full", "4M", "--in", "IMAGE"][..],
            "--background",
        ),
        (
            &["create", "/q.qcow2", "4M", "--in", "IMAGE"],
            "--background=50%",
        ),
        (
            &["materialize", "/thin", "--in", "IMAGE"],
            "--background=100%",
        ),
        (
            &["image", "materialize", "/disk.qcow2", "--in", "IMAGE"],
            "--background=25",
        ),
        (
            &["image", "convert", source, "/copy", "--into", "IMAGE"],
            "--background=50%",
        ),
    ] {
        let answer = inside(&image, &[words, &[background, "--json"]].concat()).success();
        assert_eq!(
            answer.text("/background_disk"),
            device_of(&host),
            "{words:?}"
        );
        // At first it is assumed that others use the disk.
        let pauses = answer.json()["gave_way_seconds"].as_f64();
        let may_pause = background != "--background=100%";
        assert!(
            pauses.is_some_and(|seconds| (seconds > 0.0) == may_pause),
            "{answer}"
        );
    }
    let copied = std::fs::read(image.mount().place.join("copy")).unwrap();
    assert!(copied == noise(1, 3 * MIB as usize));
    let words = [
        "create",
        "/told",
        "1M",
        "--in",
        "IMAGE",
        "--background",
        "-v",
    ];
    let told = inside(&image, &words).success();
    let disk = format!("yields to the other users of {}", device_of(&host));
    assert!(told.stdout.contains(&disk), "{told}");
    assert_e2fsck_clean(&image.path);
}

/// The disk that lsblk has below a device node, or the node itself.
fn disk_of(source: &str) -> String {
    let mut lsblk = command::tool("lsblk");
    lsblk.args([
        "--nodeps",
        "--noheadings",
        "--output",
        "PKNAME,KNAME",
        source,
    ]);
    let found = must(&mut lsblk);
    found.split_whitespace().next().unwrap().to_owned()
}

#[test]
fn background_in_an_image_on_a_loop_device_watches_the_disk_of_its_file() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        requires::disk_below_temporary_files()
    );
    let host = Scratch::new(Filesystem::Ext4, 64 * MIB);
    let image = Image::in_directory(host.path(), FORMATS[0], 16);
    let mut findmnt = command::tool("findmnt");
    findmnt.args(["--noheadings", "--output", "SOURCE", "--target"]);
    let source = must(findmnt.arg(std::env::temp_dir()));
    let words = [
        "create",
        "/f",
        "1M",
        "--in",
        "IMAGE",
        "--background",
        "--json",
    ];
    let answer = inside(&image, &words).success();
    assert_eq!(answer.text("/background_disk"), disk_of(source.trim()));
}

#[test]
fn background_in_an_image_in_memory_is_refused_with_the_reason() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        Filesystem::Tmpfs.requirement()
    );
    let host = Scratch::new(Filesystem::Tmpfs, 64 * MIB);
    let image = Image::in_directory(host.path(), FORMATS[0], 16);
    let thin = [
        "create",
        "/thin",
        "4M",
        "--preallocation",
        "off",
        "--in",
        "IMAGE",
    ];
    inside(&image, &thin).success();
    for words in [
        &["create", "/f", "1M"][..],
        &["create", "/f.qcow2", "1M"],
        &["materialize", "/thin"],
    ] {
        let words = [words, &["--in", "IMAGE", "--background=10%"]].concat();
        inside(&image, &words).refused(5, &["background pace", "tmpfs", words[1]]);
    }
    let left = inside(&image, &["fs", "ls", "IMAGE", "/"]).success();
    assert!(
        !left.stdout.contains("/f") && !left.stdout.contains("f.qcow2"),
        "{left}"
    );
}

#[test]
fn share_is_taken_after_an_equals_sign_alone_and_only_within_its_range() {
    let work = extant_testkit::workdir::Workdir::new();
    let at = |name: &str| work.path().join(name);
    for (name, option) in [
        ("a", "--background=10%"),
        ("b", "--background=0.1"),
        ("c", "--background"),
    ] {
        let path: &Path = &at(name);
        let mut before_file = crate::support::extant();
        before_file.args(["create", option]).arg(path).arg("64KiB");
        run(&mut before_file).success();
        assert_eq!(path.metadata().unwrap().len(), 64 << 10);
    }
    for share in ["0%", "0.09%", "101%", "0.125%", "-5%", "ten", ""] {
        let option = format!("--background={share}");
        create(&at("x"), "64KiB", &[&option]).refused(2, &["--background"]);
    }
    assert!(!at("x").exists());
}

//! `extant image resize`, `convert` and `materialize`.

use std::fs;
use std::path::Path;

use extant_testkit::oracle::qemu::{assert_checks, assert_reads_same, qemu, qemu_img, qemu_json};
use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::workdir::Workdir;
use extant_testkit::{command, require, requires};

use crate::outer::Outer;
use crate::support::{Answer, MIB, assert_names, create, extant, lengthen, noise, run};

#[track_caller]
fn image(words: &[&str], files: &[&Path], more: &[&str]) -> Answer {
    run(extant().arg("image").args(words).args(files).args(more))
}

fn mode_of(file: &Path) -> String {
    image(&["info", "--json"], &[file], &[])
        .success()
        .text("/preallocation")
}

#[test]
fn resize_keeps_the_mode_and_wants_a_word_for_less() {
    require!(qemu_img());
    let work = Workdir::new();
    for (name, mode) in [
        ("a.qcow2", "full"),
        ("b.qcow2", "metadata"),
        ("c.raw", "falloc"),
        ("d.raw", "off"),
    ] {
        let file = work.path().join(name);
        create(&file, "4MiB", &["--preallocation", mode]).success();
        let answer = image(&["resize", "--json"], &[&file], &["+2MiB"]).success();
        assert_eq!(answer.number("/capacity_bytes"), 6 * MIB);
        assert_eq!(answer.text("/preallocation"), mode, "{answer}");
        assert_eq!(mode_of(&file), mode, "{name}");
        let less = image(&["resize"], &[&file], &["5MiB"]);
        less.refused(2, &[name, "--shrink"]);
        image(&["resize", "--shrink"], &[&file], &["5MiB"]).success();
        let format = if name.ends_with("raw") {
            "raw"
        } else {
            "qcow2"
        };
        let info = qemu_json(&[&"info", &"--output=json", &"-f", &format, &file]);
        assert_eq!(info["virtual-size"], 5 * MIB);
        image(&["resize"], &[&file], &["8MiB", "--preallocation", "full"]).success();
        if format == "qcow2" {
            assert_checks(&file);
        }
    }
}

#[test]
fn converted_images_hold_the_same_and_materialized_ones_too() {
    require!(qemu_img());
    let work = Workdir::new();
    let raw = work.path().join("a.raw");
    let mut bytes = noise(5, 3 << 20);
    fs::write(&raw, &bytes).unwrap();
    lengthen(&raw, 6 * MIB);
    bytes.resize(6 << 20, 0);
    let thin = work.path().join("thin.qcow2");
    let answer = image(
        &["convert", "--json"],
        &[&raw, &thin],
        &["-o", "cluster_size=4k"],
    )
    .success();
    assert_eq!(answer.text("/format"), "qcow2");
    assert_checks(&thin);
    let same = |one: &Path| {
        qemu(&[
            &"compare", &"-q", &"-f", &"qcow2", &"-F", &"raw", &one, &raw,
        ]);
    };
    same(&thin);
    assert_eq!(mode_of(&thin), "off");
    image(&["materialize"], &[&thin], &[]).success();
    assert_eq!(mode_of(&thin), "full");
    assert_checks(&thin);
    same(&thin);
    let top = work.path().join("top.qcow2");
    create(
        &top,
        "6MiB",
        &["-o", "backing_file=thin.qcow2,backing_fmt=qcow2"],
    )
    .success();
    let one = work.path().join("one.qcow2");
    image(&["convert"], &[&top, &one], &[]).refused(2, &["thin.qcow2", "--chain"]);
    image(
        &["convert", "--chain"],
        &[&top, &one],
        &["--preallocation", "full"],
    )
    .success();
    same(&one);
    image(&["convert"], &[&raw, &one], &[]).refused(4, &["one.qcow2", "file exists"]);
    let over = work.path().join("over.qcow2");
    let words = ["-B", "thin.qcow2", "-F", "qcow2"];
    image(&["convert"], &[&raw, &over], &words).success();
    same(&over);
    assert_checks(&over);
    // All of it is in the backing file.
    let answer = image(&["info", "--json"], &[&over], &[]).success();
    assert_eq!(answer.number("/states/mapped_bytes"), 0, "{answer}");
    let slow = work.path().join("slow.qcow2");
    image(&["convert", "--background"], &[&raw, &slow], &[]).success();
    same(&slow);
    let back = work.path().join("back");
    image(&["convert"], &[&one, &back], &["--preallocation", "full"]).success();
    assert!(fs::read(&back).unwrap() == bytes);
}

#[test]
fn data_file_is_changed_when_its_name_is_to_be_followed() {
    require!(qemu_img());
    let work = Workdir::new();
    let (file, data) = (work.path().join("a.qcow2"), work.path().join("a.data"));
    let words = format!("data_file={}", data.display());
    create(&file, "4MiB", &["--preallocation", "off", "-o", &words]).success();
    image(&["resize"], &[&file], &["6MiB"]).refused(2, &["a.data", "--chain"]);
    image(&["materialize"], &[&file], &[]).refused(2, &["a.data", "--chain"]);
    image(&["resize", "--chain"], &[&file], &["6MiB"]).success();
    image(&["materialize", "--chain"], &[&file], &[]).success();
    assert_checks(&file);
    let answer = image(&["info", "--json", "--chain"], &[&file], &[]).success();
    assert_eq!(answer.text("/preallocation"), "full");
    assert_eq!(fs::metadata(&data).unwrap().len(), 6 * MIB);
}

#[test]
fn dirty_image_is_repaired_on_request_and_when_it_is_changed() {
    require!(qemu_img(), requires::tool("qemu-io"));
    let work = Workdir::new();
    let file = work.path().join("a.qcow2");
    let words = ["--preallocation", "off", "-o", "lazy_refcounts=on"];
    for repairs in [true, false] {
        create(&file, "4MiB", &words).success();
        let mut qemu = command::tool("qemu-io");
        qemu.args(["-f", "qcow2", "-c", "write -P 5 1M 1M", "-c", "abort"]);
        command::run_any_status(qemu.arg(&file)).unwrap();
        let answer = image(&["check"], &[&file], &[]);
        assert_eq!(answer.code, Some(2), "{answer}");
        let repaired = if repairs {
            image(&["check", "--repair", "all"], &[&file], &[])
        } else {
            image(&["resize"], &[&file], &["6MiB"])
        };
        repaired.success();
        assert_checks(&file);
        fs::remove_file(&file).unwrap();
    }
}

#[test]
fn no_space_leaves_the_image_unchanged() {
    require!(qemu_img(), Filesystem::Ext4.requirement());
    let scratch = Scratch::new(Filesystem::Ext4, 24 * MIB);
    let file = scratch.path().join("a.qcow2");
    create(
        &file,
        "64MiB",
        &["--preallocation", "off", "-o", "cluster_size=4k"],
    )
    .success();
    let before = fs::read(&file).unwrap();
    image(&["materialize"], &[&file], &[]).refused(3, &["a.qcow2", "space"]);
    assert!(fs::read(&file).unwrap() == before);
    for mode in ["falloc", "full"] {
        let answer = image(&["resize"], &[&file], &["128MiB", "--preallocation", mode]);
        answer.refused(3, &["a.qcow2", "space"]);
        assert_checks(&file);
        let info = qemu_json(&[&"info", &"--output=json", &file]);
        assert_eq!(info["virtual-size"], 64 * MIB);
    }
    let copy = scratch.path().join("b.raw");
    image(&["convert"], &[&file, &copy], &["--preallocation", "full"]).refused(3, &["space"]);
    assert_names(scratch.path(), &["a.qcow2"]);
}

#[test]
fn images_inside_an_image_are_changed() {
    require!(qemu_img(), requires::tool("mke2fs"));
    let outer = Outer::new();
    let inside = |words: &[&str], more: &[&str]| outer.on(words, "/a.qcow2", more).success();
    inside(&["create"], &["4MiB", "--preallocation", "off"]);
    inside(&["image", "resize"], &["8MiB"]);
    inside(&["image", "materialize"], &[]);
    let answer = inside(&["image", "info", "--json"], &[]);
    assert_eq!(answer.text("/preallocation"), "full");
    assert_checks(&outer.get("/a.qcow2"));
    let raw = outer.beside("a.raw");
    inside(&["image", "convert"], &[raw.to_str().unwrap()]);
    assert_eq!(fs::metadata(&raw).unwrap().len(), 8 * MIB);
    outer.check();
}

#[test]
fn images_are_converted_into_an_image_and_within_one() {
    require!(qemu_img(), requires::tool("mke2fs"));
    let outer = Outer::new();
    let raw = outer.beside("a.raw");
    fs::write(&raw, noise(5, 3 << 20)).unwrap();
    lengthen(&raw, 6 * MIB);
    let convert = |from: &Path, to: &str, more: &[&str]| {
        let mut command = extant();
        command.args(["image", "convert"]).arg(from).arg(to);
        run(command.arg("--into").arg(outer.path()).args(more))
    };
    for mode in ["off", "metadata", "falloc", "full"] {
        let name = format!("/{mode}.qcow2");
        convert(&raw, &name, &["--preallocation", mode]).success();
        // And again from there, beside it.
        let again = format!("/{mode}.again.qcow2");
        let within = [
            "--in",
            outer.path().to_str().unwrap(),
            "--preallocation",
            mode,
        ];
        convert(Path::new(&name), &again, &within).success();
        for name in [name, again] {
            let copy = outer.get(&name);
            assert_checks(&copy);
            assert_reads_same((&copy, "qcow2"), (&raw, "raw"));
            let info = outer.on(&["image", "info", "--json"], &name, &[]).success();
            assert_eq!(info.text("/preallocation"), mode, "{info}");
            outer.remove(&name);
        }
    }
    convert(&raw, "/a.raw", &[]).success();
    convert(&raw, "/a.raw", &[]).refused(4, &["outer.img:/a.raw", "file exists"]);
    convert(
        &raw,
        "/b.raw",
        &["--size", "1TiB", "--preallocation", "full"],
    )
    .refused(3, &["outer.img:/b.raw", "no space"]);
    outer.check();
}

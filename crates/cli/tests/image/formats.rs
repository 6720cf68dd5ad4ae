//! Detection of formats by name and contents, in every command; and its effect on `map` and
//! `materialize`.

use std::fs;
use std::path::{Path, PathBuf};

use extant_space::ExtentState;
use extant_testkit::oracle::qemu::{assert_checks, assert_reads_same, qemu, qemu_img};
use extant_testkit::workdir::Workdir;
use extant_testkit::{oracle, require, requires};

use crate::outer::Outer;
use crate::support::{Answer, MIB, assert_names, create, extant, lengthen, noise, run};

#[track_caller]
fn on(words: &[&str], file: &Path, more: &[&str]) -> Answer {
    run(extant().args(words).arg(file).args(more))
}

/// A thin qcow2 image of 8 MiB with 1 MiB of data.
fn thin(work: &Path, name: &str) -> (PathBuf, PathBuf) {
    let (raw, file) = (work.join("data"), work.join(name));
    fs::write(&raw, noise(3, 1 << 20)).unwrap();
    lengthen(&raw, 8 * MIB);
    qemu(&[&"convert", &"-f", &"raw", &"-O", &"qcow2", &raw, &file]);
    (raw, file)
}

#[test]
fn materialize_of_an_image_makes_the_disk_of_the_guest_real() {
    require!(qemu_img());
    let work = Workdir::new();
    let (raw, file) = thin(work.path(), "a.qcow2");
    let answer = on(&["materialize", "--json"], &file, &[]).success();
    assert_eq!(answer.text("/format"), "qcow2");
    assert_eq!(answer.text("/preallocation"), "full");
    assert_eq!(answer.number("/capacity_bytes"), 8 * MIB);
    assert_eq!(answer.number("/zeroed_bytes"), 7 * MIB, "{answer}");
    assert_eq!(answer.number("/written_bytes"), 7 * MIB, "{answer}");
    let info = on(&["image", "info", "--json"], &file, &[]).success();
    assert_eq!(info.number("/states/written_bytes"), 8 * MIB);
    assert_checks(&file);
    assert_reads_same((&file, "qcow2"), (&raw, "raw"));
    let part = on(&["materialize"], &file, &["--length", "1M"]);
    part.refused(2, &["a.qcow2", "--length", "--format raw"]);
    // The file of another one, as it is.
    let (_, file) = thin(work.path(), "b.qcow2");
    lengthen(&file, 4 * MIB);
    let answer = on(&["materialize", "--json", "--format", "raw"], &file, &[]).success();
    assert_eq!(answer.text("/format"), "raw");
    assert_eq!(answer.number("/capacity_bytes"), 4 * MIB);
    assert!(oracle::filefrag(&file).is_extant());
    let info = on(&["image", "info", "--json"], &file, &[]).success();
    assert_eq!(info.text("/preallocation"), "off");
}

#[test]
fn image_inside_an_image_is_materialized_by_its_disk() {
    require!(qemu_img(), requires::tool("mke2fs"));
    let outer = Outer::new();
    let inside = |words: &[&str], name: &str, more: &[&str]| outer.on(words, name, more);
    inside(&["create"], "/a.qcow2", &["8MiB", "--preallocation", "off"]).success();
    let answer = inside(&["materialize", "--json"], "/a.qcow2", &[]).success();
    assert_eq!(answer.text("/path"), "/a.qcow2");
    assert_eq!(answer.text("/preallocation"), "full");
    let answer = inside(&["map", "--json"], "/a.qcow2", &[]).success();
    assert_eq!(answer.text("/files/0/format"), "qcow2");
    assert_eq!(answer.number("/total/extant_bytes"), 8 * MIB, "{answer}");
    assert_checks(&outer.get("/a.qcow2"));
    outer.check();
}

#[test]
fn map_of_an_image_has_the_device_offsets_of_its_file() {
    require!(qemu_img());
    let work = Workdir::new();
    let (_, file) = thin(work.path(), "a.qcow2");
    let answer = on(&["map", "--json"], &file, &[]).success();
    let shown = &answer.json()["files"][0];
    assert_eq!(shown["size_bytes"], 8 * MIB);
    assert_eq!(shown["summary"]["written_bytes"], MIB);
    assert_eq!(shown["summary"]["hole_bytes"], 7 * MIB);
    let image = on(&["image", "map", "--json"], &file, &[]).success().json();
    let as_file = on(&["map", "--json", "--format", "raw"], &file, &[]).success();
    assert_eq!(as_file.text("/files/0/format"), "raw");
    let extents = as_file.json()["files"][0]["extents"].clone();
    let place_of = |offset: u64| {
        let extents = extents.as_array().unwrap().iter();
        let number =
            |extent: &serde_json::Value, name: &str| extent["logical"][name].as_u64().unwrap();
        let found = extents
            .clone()
            .find(|extent| (number(extent, "start")..number(extent, "end")).contains(&offset));
        let found = found.unwrap();
        found["physical"].as_u64().unwrap() + offset - number(found, "start")
    };
    let first = &shown["extents"][0];
    assert_eq!(first["logical"]["start"], 0);
    assert_eq!(
        first["physical"],
        place_of(image[0]["offset"].as_u64().unwrap())
    );
}

#[test]
fn raw_image_with_qcow2_contents_is_changed_and_copied_only_when_its_format_is_said() {
    require!(qemu_img());
    let work = Workdir::new();
    let (raw, file) = thin(work.path(), "a.img");
    let before = fs::read(&file).unwrap();
    let out = work.path().join("out.raw");
    let words = ["a.img", "looks like a qcow2 image", "--format qcow2", "raw"];
    for command in [&["materialize"][..], &["map"], &["image", "materialize"]] {
        on(command, &file, &[]).refused(5, &words);
    }
    on(&["image", "resize"], &file, &["+1M"]).refused(5, &words);
    on(&["image", "convert"], &file, &[out.to_str().unwrap()]).refused(5, &words);
    on(&["image", "convert"], &file, &["-"]).refused(5, &words);
    assert!(fs::read(&file).unwrap() == before && !out.exists());
    // Inspection reports the actual contents.
    let info = on(&["image", "info", "--json"], &file, &[]).success();
    assert_eq!(info.text("/format"), "qcow2");
    on(
        &["image", "convert", "-f", "qcow2"],
        &file,
        &[out.to_str().unwrap()],
    )
    .success();
    assert_reads_same((&out, "raw"), (&raw, "raw"));
    on(&["image", "resize", "-f", "qcow2"], &file, &["+1M"]).success();
    assert_checks(&file);
}

#[test]
fn foreign_images_are_recognised_by_every_command_and_left_alone() {
    require!(qemu_img());
    let work = Workdir::new();
    let out = work.path().join("out.qcow2");
    let out = out.to_str().unwrap();
    for (format, shown) in [
        ("vmdk", "VMDK"),
        ("vdi", "VDI"),
        ("vhdx", "VHDX"),
        ("vpc", "VHD"),
        ("qed", "QED"),
        ("parallels", "Parallels"),
        ("qcow", "qcow (version 1)"),
    ] {
        let file = work.path().join("a.img");
        qemu(&[&"create", &"-q", &"-f", &format, &file, &"4M"]);
        let before = fs::read(&file).unwrap();
        for (words, more, status) in [
            (&["image", "info"][..], &[][..], 5),
            (&["image", "check"], &[], 1),
            (&["image", "map"], &[], 5),
            (&["image", "measure"], &[], 5),
            (&["image", "resize"], &["+1M"], 5),
            (&["image", "convert"], &[out], 5),
            (&["image", "materialize"], &[], 5),
            (&["materialize"], &[], 5),
            (&["map"], &[], 5),
        ] {
            let answer = on(words, &file, more);
            answer.refused(
                status,
                &[
                    "a.img",
                    &format!("looks like a {shown} image"),
                    "--format raw",
                ],
            );
        }
        assert!(fs::read(&file).unwrap() == before, "{format}");
        assert_names(work.path(), &["a.img", "lock"]);
        let info = on(&["image", "info", "--json", "-f", "raw"], &file, &[]).success();
        assert_eq!(info.number("/size_bytes"), before.len() as u64);
        fs::remove_file(&file).unwrap();
    }
    // A fixed VHD is recognised by its name only.
    let fixed = work.path().join("a.vhd");
    qemu(&[
        &"create",
        &"-q",
        &"-f",
        &"vpc",
        &"-o",
        &"subformat=fixed",
        &fixed,
        &"4M",
    ]);
    on(&["image", "resize"], &fixed, &["+1M"]).refused(5, &["a VHD image"]);
    on(&["materialize"], &fixed, &[]).refused(5, &["a VHD image"]);
}

#[test]
fn compressed_files_are_no_disks_and_are_files() {
    let work = Workdir::new();
    for (name, bytes) in [
        ("a.gz", &[0x1f, 0x8b, 8][..]),
        ("a.xz", b"\xfd7zXZ\0"),
        ("a", &[0x28, 0xb5, 0x2f, 0xfd]),
    ] {
        let file = work.path().join(name);
        fs::write(&file, [bytes, &[7; 8192]].concat()).unwrap();
        on(&["image", "info"], &file, &[]).refused(5, &[name, "compressed", "unpack"]);
        let out = work.path().join("out.raw");
        on(&["image", "convert"], &file, &[out.to_str().unwrap()]).refused(5, &["compressed"]);
        on(&["map"], &file, &[]).success();
        lengthen(&file, MIB);
        on(&["materialize"], &file, &[]).success();
        assert_eq!(oracle::filefrag(&file).bytes(ExtentState::Hole), 0);
    }
}

#[test]
fn names_of_foreign_formats_are_made_only_when_raw_is_said() {
    let work = Workdir::new();
    let source = work.path().join("a.raw");
    create(&source, "1MiB", &[]).success();
    for name in ["b.vmdk", "b.VDI", "b.vhd", "b.vhdx", "b.qed", "b.img.gz"] {
        let file = work.path().join(name);
        create(&file, "1MiB", &[]).refused(5, &[name, "not made here", "--format raw"]);
        on(&["image", "convert"], &source, &[file.to_str().unwrap()])
            .refused(5, &[name, "--format raw"]);
        on(&["image", "create"], &file, &["1M"]).refused(5, &[name]);
        let pool = run(extant()
            .args(["vol", "create"])
            .arg(work.path())
            .args([name, "1MiB"]));
        pool.refused(5, &[name]);
        assert!(!file.exists());
        create(&file, "1MiB", &["--format", "raw"]).success();
        assert_eq!(fs::metadata(&file).unwrap().len(), MIB);
    }
}

#[test]
fn name_and_contents_that_disagree_are_reported() {
    let work = Workdir::new();
    let file = work.path().join("x.qcow2");
    fs::write(&file, [7; 4096]).unwrap();
    let info = on(&["image", "info"], &file, &[]).success();
    assert!(info.stdout.contains("raw image"), "{info}");
    assert!(
        info.stdout.contains("its name is that of a qcow2 image"),
        "{info}"
    );
    let json = on(&["image", "info", "--json"], &file, &[])
        .success()
        .json();
    assert!(json["notes"][0].as_str().unwrap().contains("qcow2"));
    on(&["image", "check"], &file, &[]).refused(1, &["x.qcow2", "its contents are not"]);
    for command in [&["materialize"][..], &["map"], &["image", "materialize"]] {
        on(command, &file, &[]).refused(5, &["its contents are not", "--format raw"]);
    }
    on(&["image", "resize"], &file, &["+1M"]).refused(5, &["its contents are not"]);
    assert_eq!(fs::read(&file).unwrap(), [7; 4096]);
    // A file without metadata cannot be checked, as with qemu-img.
    let raw = work.path().join("x.raw");
    fs::write(&raw, [7; 4096]).unwrap();
    for more in [&[][..], &["--format", "raw"]] {
        let answer = on(&["image", "check"], &raw, more);
        answer.refused(63, &["x.raw", "raw images have no metadata to check"]);
    }
}

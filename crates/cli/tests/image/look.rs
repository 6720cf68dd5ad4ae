//! `extant image info`, `check`, `map` and `measure`.

use std::fs;
use std::os::unix::fs::FileExt;

use extant_testkit::oracle::qemu::{assert_checks, qemu, qemu_img, qemu_json};
use extant_testkit::workdir::Workdir;
use extant_testkit::{require, requires};

use crate::outer::Outer;
use crate::support::{Answer, MIB, create, extant, run};

#[track_caller]
fn image(words: &[&str], file: &std::path::Path) -> Answer {
    run(extant().arg("image").args(words).arg(file))
}

#[test]
fn info_reports_mode_and_names() {
    require!(qemu_img());
    let work = Workdir::new();
    for mode in ["off", "metadata", "falloc", "full"] {
        let file = work.path().join(format!("{mode}.qcow2"));
        create(&file, "4MiB", &["--preallocation", mode]).success();
        let answer = image(&["info", "--json"], &file).success();
        assert_eq!(answer.text("/preallocation"), mode);
        assert_eq!(answer.number("/capacity_bytes"), 4 * MIB);
        let answer = image(&["info"], &file).success();
        assert!(
            answer.stdout.contains(&format!("preallocation {mode}")),
            "{answer}"
        );
    }
    let top = work.path().join("top.qcow2");
    qemu(&[
        &"create",
        &"-q",
        &"-f",
        &"qcow2",
        &"-b",
        &"full.qcow2",
        &"-F",
        &"qcow2",
        &top,
    ]);
    qemu(&[&"snapshot", &"-c", &"before", &top]);
    let answer = image(&["info"], &top).success();
    for words in ["full.qcow2 (\"qcow2\")", "\"before\"", "clusters of 64 KiB"] {
        assert!(answer.stdout.contains(words), "{answer}");
    }
}

#[test]
fn image_without_the_name_of_its_data_file_is_described_and_not_mapped() {
    require!(qemu_img());
    let work = Workdir::new();
    let (file, copy) = (work.path().join("a.qcow2"), work.path().join("copy.raw"));
    let data = format!("data_file={}", work.path().join("a.data").display());
    create(&file, "4MiB", &["--preallocation", "off", "-o", &data]).success();
    qemu(&[&"amend", &"-f", &"qcow2", &"-o", &"data_file=", &file]);
    let theirs = qemu_json(&[&"info", &"--output=json", &file]);
    let ours = image(&["info", "--json"], &file).success();
    let specific = "/format-specific/data";
    assert_eq!(ours.json().pointer(specific), theirs.pointer(specific));
    assert_eq!(
        ours.json().pointer("/qcow2/has_data_file"),
        Some(&true.into())
    );
    let text = image(&["info", "--chain"], &file).success();
    assert!(text.stdout.contains("required, and not named"), "{text}");
    let copy = copy.to_str().unwrap();
    for (words, more) in [
        (&["image", "map"][..], &[][..]),
        (&["image", "map", "--chain"], &[]),
        (&["image", "measure", "--chain"], &[]),
        (&["image", "convert"], &[copy]),
        (&["image", "convert", "--chain"], &[copy]),
        (&["image", "resize", "--chain"], &["6MiB"]),
        (&["image", "materialize", "--chain"], &[]),
    ] {
        let answer = run(extant().args(words).arg(&file).args(more));
        let answer = answer.refused(2, &["a.qcow2", "does not name its data file"]);
        assert!(!answer.stderr.contains("--chain"), "{answer}");
    }
    let layers = run(extant().arg("map").arg(&file));
    assert!(layers.stderr.contains("does not name"), "{layers}");
    // With the name it is whole again, by the advice.
    let with_name = format!("driver=qcow2,file.filename={},", file.display())
        + &data.replace("data_file=", "data-file.filename=");
    qemu(&[&"amend", &"-o", &data, &"--image-opts", &with_name]);
    image(&["map", "--chain"], &file).success();
}

#[test]
fn names_that_are_not_utf8_are_shown() {
    let work = Workdir::new();
    let file = work.path().join("top.qcow2");
    let words = ["-o", "backing_file=bXe,backing_fmt=raw"];
    let mut make = extant();
    make.args(["image", "create", "-u", "-f", "qcow2"])
        .args(words);
    run(make.arg(&file).arg("1MiB")).success();
    let mut bytes = fs::read(&file).unwrap();
    let at = bytes.windows(3).position(|name| name == b"bXe").unwrap();
    bytes[at + 1] = 0xe9;
    fs::write(&file, bytes).unwrap();
    let answer = image(&["info", "--json"], &file).success();
    assert_eq!(answer.text("/qcow2/backing_file"), "b\u{fffd}e");
}

#[test]
fn map_is_qemus_and_chains_are_followed_on_request() {
    require!(qemu_img());
    let work = Workdir::new();
    let base = work.path().join("base.raw");
    fs::write(&base, vec![1; 2 << 20]).unwrap();
    let top = work.path().join("top.qcow2");
    create(
        &top,
        "4MiB",
        &["-o", "backing_file=base.raw,backing_fmt=raw"],
    )
    .success();
    let ours = image(&["map", "--json", "--chain"], &top).success().json();
    let theirs = qemu_json(&[&"map", &"--output=json", &top]);
    for (ours, theirs) in ours
        .as_array()
        .unwrap()
        .iter()
        .zip(theirs.as_array().unwrap())
    {
        for (key, value) in theirs.as_object().unwrap() {
            assert_eq!(&ours[key], value, "{key} of {ours}");
        }
    }
    let alone = image(&["map", "--json"], &top).success().json();
    assert_eq!(alone[0]["present"], false);
    let text = image(&["map", "--chain"], &top).success();
    assert!(text.stdout.contains("written"), "{text}");
}

#[test]
fn check_has_qemus_exit_status_and_repairs_leaks() {
    require!(qemu_img());
    let work = Workdir::new();
    let file = work.path().join("a.qcow2");
    create(&file, "1MiB", &["--preallocation", "metadata"]).success();
    let answer = image(&["check"], &file).success();
    assert!(answer.stdout.contains("clean"), "{answer}");
    let bytes = fs::read(&file).unwrap();
    let word = |at: usize| u64::from_be_bytes(bytes[at..][..8].try_into().unwrap());
    let l2 = word(word(40) as usize) & 0x00ff_ffff_ffff_fe00;
    let open = fs::OpenOptions::new().write(true).open(&file).unwrap();
    // The guest's first cluster is forgotten.
    open.write_all_at(&[0; 8], l2).unwrap();
    let answer = image(&["check", "--json"], &file);
    assert_eq!(
        (answer.code, answer.number("/leaks")),
        (Some(3), 1),
        "{answer}"
    );
    let answer = image(&["check", "--repair", "leaks", "--json"], &file).success();
    assert_eq!(
        (answer.number("/leaks-fixed"), answer.number("/leaks")),
        (1, 0),
        "{answer}"
    );
    assert_checks(&file);
    // Two clusters of the guest are one.
    open.write_all_at(&bytes[l2 as usize + 8..][..8], l2)
        .unwrap();
    let answer = image(&["check"], &file);
    assert_eq!(answer.code, Some(2), "{answer}");
    let answer = image(&["check", "--repair", "leaks"], &file);
    assert_eq!(answer.code, Some(1), "{answer}");
    fs::write(&file, "no image").unwrap();
    assert_eq!(image(&["check"], &file).code, Some(1));
}

#[test]
fn measure_equals_the_result_of_create() {
    let work = Workdir::new();
    let file = work.path().join("a.qcow2");
    create(&file, "10MiB", &["-o", "cluster_size=4k"]).success();
    let words = ["image", "measure", "--json", "--size", "10MiB", "-o"];
    let answer = run(extant()
        .args(words)
        .arg("cluster_size=4k,preallocation=full"))
    .success();
    assert_eq!(
        answer.number("/required_bytes"),
        fs::metadata(&file).unwrap().len()
    );
    let raw = work.path().join("b.raw");
    fs::write(&raw, vec![5; 1 << 20]).unwrap();
    fs::OpenOptions::new()
        .write(true)
        .open(&raw)
        .unwrap()
        .set_len(8 * MIB)
        .unwrap();
    let of_file = image(&["measure", "--json"], &raw).success();
    let rest = of_file.number("/fully_allocated_bytes") - of_file.number("/required_bytes");
    assert_eq!(rest, 7 * MIB, "{of_file}");
}

#[test]
fn images_inside_an_image_are_looked_at() {
    require!(requires::tool("mke2fs"));
    let outer = Outer::new();
    let on = |words: &[&str], more: &[&str]| outer.on(words, "/a.qcow2", more);
    on(&["create"], &["8MiB"]).success();
    let answer = on(&["image", "info", "--json"], &[]).success();
    assert_eq!(answer.text("/preallocation"), "full");
    on(&["image", "check"], &[]).success();
    on(&["image", "map"], &[]).success();
    let outside = on(&["image", "info", "--chain"], &[]);
    outside.refused(5, &["--chain is for files of the host"]);
}

#[test]
fn file_that_is_no_image_is_refused_with_the_offset() {
    let work = Workdir::new();
    let file = work.path().join("a");
    fs::write(&file, vec![0; 4096]).unwrap();
    image(&["info", "--format", "qcow2"], &file).refused(1, &["/a: ", "header.magic"]);
    image(&["info"], &work.path().join("none")).refused(4, &["/none"]);
}

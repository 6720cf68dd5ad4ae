//! The command line of `qemu-img`: its short options, `image create`, `-`, and the fields of its
//! JSON, which it is asked for.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;

use extant_testkit::oracle::qemu::{
    assert_checks, assert_reads_same, qemu, qemu_img, qemu_io, qemu_json,
};
use extant_testkit::workdir::Workdir;
use extant_testkit::{require, requires};
use serde_json::Value;

use crate::support::{Answer, MIB, create, extant, lengthen, noise, run};

/// Runs `extant image` in `work`.
#[track_caller]
fn image(work: &Workdir, words: &[&str]) -> Answer {
    run(extant().arg("image").args(words).current_dir(work.path()))
}

/// A raw image of 4 MiB, a quarter of which is data.
fn source(work: &Workdir) -> Vec<u8> {
    let mut bytes = noise(9, 1 << 20);
    fs::write(work.path().join("a.raw"), &bytes).unwrap();
    lengthen(&work.path().join("a.raw"), 4 * MIB);
    bytes.resize(4 << 20, 0);
    bytes
}

#[test]
fn short_options_equal_those_of_qemu_img() {
    require!(qemu_img());
    let work = Workdir::new();
    source(&work);
    let file = |name: &str| work.path().join(name);
    let convert = [
        "convert",
        "-f",
        "raw",
        "-O",
        "qcow2",
        "-o",
        "cluster_size=4k",
        "-m",
        "2",
        "-W",
        "-p",
        "-U",
        "-r",
        "1G",
        "a.raw",
        "b.img",
    ];
    let answer = image(&work, &convert);
    assert_eq!(answer.code, Some(0), "{answer}");
    assert_checks(&file("b.img"));
    assert_reads_same((&file("b.img"), "qcow2"), (&file("a.raw"), "raw"));
    let info = image(
        &work,
        &["info", "-f", "qcow2", "-U", "--output=json", "b.img"],
    )
    .success();
    assert_eq!(info.number("/cluster-size"), 4096);
    let full = image(
        &work,
        &[
            "convert", "-S", "0", "-O", "raw", "-f", "qcow2", "--json", "b.img", "c.img",
        ],
    );
    assert_eq!(full.success().text("/preallocation"), "full");
    let over = [
        "convert",
        "-O",
        "qcow2",
        "-B",
        "a.raw",
        "-F",
        "raw",
        "a.raw",
        "over.qcow2",
    ];
    image(&work, &over).success();
    assert_reads_same((&file("over.qcow2"), "qcow2"), (&file("a.raw"), "raw"));
    let quiet = image(&work, &["check", "-q", "-U", "-f", "qcow2", "b.img"]).success();
    assert_eq!(quiet.stdout, "");
    image(&work, &["check", "-r", "all", "-f", "qcow2", "b.img"]).success();
    image(&work, &["resize", "-f", "raw", "c.img", "+1M"]).success();
    image(&work, &["measure", "-f", "raw", "-O", "qcow2", "c.img"]).success();
    image(&work, &["map", "-f", "qcow2", "-U", "b.img"]).success();
    image(&work, &["convert", "-S", "4k", "a.raw", "d.raw"]).refused(2, &["-S"]);
    image(&work, &["convert", "a.raw", "a.raw"]).refused(2, &["a.raw", "same file"]);
}

#[test]
fn options_and_commands_that_are_missing_are_refused_by_name() {
    let work = Workdir::new();
    source(&work);
    for (words, named) in [
        (&["convert", "-c", "a.raw", "b.qcow2"][..], "-c"),
        (&["convert", "-n", "a.raw", "b.qcow2"], "-n"),
        (&["convert", "-t", "none", "a.raw", "b.qcow2"], "-t"),
        (
            &["convert", "--target-is-zero", "a.raw", "b"],
            "--target-is-zero",
        ),
        (&["convert", "-l", "s", "a.raw", "b"], "-l"),
        (&["info", "--image-opts", "driver=raw"], "--image-opts"),
        (
            &["create", "--object", "secret", "b.qcow2", "1M"],
            "--object",
        ),
        (&["snapshot", "-l", "a.raw"], "image snapshot"),
        (&["rebase", "-b", "x", "a.raw"], "image rebase"),
        (&["compare", "a.raw", "a.raw"], "image compare"),
    ] {
        image(&work, words).refused(2, &[named, "not supported"]);
    }
    // An option that qemu-img does not have either is an error of the arguments.
    let answer = image(&work, &["convert", "--nonsense", "a.raw", "b"]);
    answer.refused(2, &["--nonsense"]);
    assert!(!work.path().join("b.qcow2").exists());
}

#[test]
fn image_create_has_the_syntax_of_qemu_img() {
    require!(qemu_img());
    let work = Workdir::new();
    let file = |name: &str| work.path().join(name);
    image(
        &work,
        &["create", "-f", "qcow2", "-o", "cluster_size=4k", "a", "8M"],
    )
    .success();
    let info = qemu_json(&[&"info", &"-f", &"qcow2", &"--output=json", &file("a")]);
    assert_eq!(info["virtual-size"], 8 * MIB);
    assert_eq!(info["cluster-size"], 4096);
    // Nothing is preallocated, other than by extant create.
    let ours = image(&work, &["info", "--json", "a"]).success();
    assert_eq!(ours.text("/preallocation"), "off");
    let words = [
        "create",
        "-f",
        "qcow2",
        "-o",
        "preallocation=full",
        "--json",
        "b.qcow2",
        "4M",
    ];
    let made = image(&work, &words).success();
    assert_eq!(made.text("/preallocation"), "full");
    image(&work, &["create", "r", "5000"]).success();
    assert_eq!(fs::metadata(file("r")).unwrap().len(), 5000);
    image(&work, &["create", "b.qcow2", "4M"]).refused(4, &["b.qcow2", "--force"]);
    image(&work, &["create", "--force", "b.qcow2", "4M"]).success();
    // As large as its backing file, unless a size is given.
    let top = ["create", "-f", "qcow2", "-b", "a", "-F", "qcow2", "top"];
    let made = image(&work, &[&top[..], &["--json"]].concat()).success();
    assert_eq!(made.number("/capacity_bytes"), 8 * MIB);
    assert_eq!(made.text("/qcow2/backing_file"), "a");
    assert_checks(&file("top"));
    let sized = [
        "create", "-f", "qcow2", "-u", "-b", "b.qcow2", "-F", "qcow2", "sized", "2M",
    ];
    image(&work, &sized).success();
    let none = ["create", "-f", "qcow2", "-b", "none", "-F", "raw", "x"];
    image(&work, &none).refused(4, &["none"]);
    image(
        &work,
        &["create", "-f", "qcow2", "-u", "-b", "a", "-F", "qcow2", "x"],
    )
    .refused(2, &["size"]);
    image(&work, &["create", "x"]).refused(2, &["size"]);
    assert!(!file("x").exists());
}

#[test]
fn dash_is_standard_output_for_the_bytes_of_a_disk() {
    require!(qemu_img());
    let work = Workdir::new();
    let bytes = source(&work);
    image(&work, &["convert", "a.raw", "a.qcow2"]).success();
    let mut command = extant();
    command.args(["image", "convert", "a.qcow2", "-"]);
    let output = command.current_dir(work.path()).output().unwrap();
    assert!(output.status.success() && output.stdout == bytes);
    image(&work, &["convert", "-O", "qcow2", "a.raw", "-"]).refused(2, &["standard output", "raw"]);
    image(&work, &["convert", "--json", "a.raw", "-"]).refused_json(2, "invalid-argument");
    assert!(!work.path().join("-").exists());
    // A reader that ends early is no success.
    let mut child = extant()
        .args(["image", "convert", "a.qcow2", "-"])
        .current_dir(work.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert!(!child.wait().unwrap().success());
}

#[test]
fn change_of_size_has_one_sign() {
    let work = Workdir::new();
    source(&work);
    let length = || fs::metadata(work.path().join("a.raw")).unwrap().len();
    image(&work, &["resize", "a.raw", "+1M"]).success();
    assert_eq!(length(), 5 * MIB);
    image(&work, &["resize", "a.raw", "-1M"]).refused(2, &["--shrink"]);
    image(&work, &["resize", "--shrink", "a.raw", "-1M"]).success();
    assert_eq!(length(), 4 * MIB);
    image(&work, &["resize", "a.raw", "-1M", "--shrink"]).success();
    assert_eq!(length(), 3 * MIB);
    for wrong in ["++1M", "-+1M", "--1M", "+-1M", "+", "1M+"] {
        let answer = image(&work, &["resize", "a.raw", wrong]);
        assert_eq!(answer.code, Some(2), "{answer}");
    }
    assert_eq!(length(), 3 * MIB);
}

#[test]
fn help_lists_the_options_and_an_empty_one_is_refused() {
    let work = Workdir::new();
    source(&work);
    for words in [
        &["create", "-f", "qcow2", "-o", "help"][..],
        &["convert", "-o", "help", "a.raw", "b.qcow2"],
        &["measure", "-o", "help", "--size", "1M"],
    ] {
        let answer = image(&work, words).success();
        assert!(answer.stdout.contains("cluster_size"), "{answer}");
    }
    let made = run(extant()
        .args(["create", "b.qcow2", "1M", "-o", "help"])
        .current_dir(work.path()));
    assert!(made.success().stdout.contains("refcount_bits"));
    for empty in [",", "", "compat=1.1,,"] {
        image(&work, &["create", "-o", empty, "b.qcow2", "1M"]).refused(2, &["-o"]);
    }
    assert!(!work.path().join("b.qcow2").exists());
}

#[test]
fn copy_reports_lost_preallocation() {
    let work = Workdir::new();
    create(&work.path().join("a.qcow2"), "4MiB", &[]).success();
    let answer = image(&work, &["convert", "a.qcow2", "b.qcow2"]).success();
    assert!(answer.stdout.contains("preallocation off"), "{answer}");
    assert!(answer.stdout.contains("--preallocation full"), "{answer}");
    let json = image(&work, &["convert", "--json", "a.qcow2", "c.qcow2"]).success();
    assert!(
        json.text("/notes/0").contains("preallocation full"),
        "{json}"
    );
    assert!(json.number("/allocated_bytes") < MIB, "{json}");
    for more in [["--preallocation", "off"], ["-o", "preallocation=full"]] {
        let words = [
            &["convert", "--json", "--force", "a.qcow2", "d.qcow2"][..],
            &more,
        ]
        .concat();
        let answer = image(&work, &words).success();
        assert_eq!(
            answer.json()["notes"].as_array().unwrap().len(),
            0,
            "{answer}"
        );
    }
}

/// Every field of `theirs` is in `ours`, with its value.
#[track_caller]
fn assert_holds(ours: &Value, theirs: &Value, place: &str) {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => {
            for (name, value) in theirs {
                let place = format!("{place}/{name}");
                let found = ours.get(name).unwrap_or_else(|| panic!("no {place}"));
                assert_holds(found, value, &place);
            }
        }
        (Value::Array(ours), Value::Array(theirs)) => {
            assert_eq!(ours.len(), theirs.len(), "{place}");
            for (index, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
                assert_holds(ours, theirs, &format!("{place}/{index}"));
            }
        }
        _ => assert_eq!(ours, theirs, "{place}"),
    }
}

/// Makes the image of a kind.
fn make(work: &Path, options: &str, format: &str) {
    let file = work.join("a");
    let _ = fs::remove_file(&file);
    // QEMU takes the name of a data file from where it runs.
    let data = format!("data_file={}", work.join("d.raw").display());
    let options = options.replace("data_file=d.raw", &data);
    let mut words: Vec<&str> = vec!["create", "-q", "-f", format];
    if !options.is_empty() {
        words.extend(["-o", &options]);
    }
    let mut command = extant_testkit::command::tool("qemu-img");
    command.args(words).args(["a", "3M"]).current_dir(work);
    extant_testkit::command::must(&mut command);
}

#[test]
fn json_has_the_fields_of_qemu_img_for_every_kind_of_image() {
    require!(qemu_img(), requires::tool("qemu-io"));
    let work = Workdir::new();
    let file = work.path().join("a");
    source(&work);
    qemu(&[
        &"create",
        &"-q",
        &"-f",
        &"qcow2",
        &"-b",
        &work.path().join("a.raw"),
        &"-F",
        &"raw",
        &work.path().join("base.qcow2"),
    ]);
    let kinds = [
        "",
        "compat=0.10",
        "compat=0.10,cluster_size=4k",
        "cluster_size=512",
        "cluster_size=4k",
        "cluster_size=2M",
        "refcount_bits=1",
        "refcount_bits=64",
        "lazy_refcounts=on",
        "compression_type=zstd",
        "preallocation=metadata",
        "preallocation=falloc",
        "preallocation=full",
        "backing_file=base.qcow2,backing_fmt=qcow2",
        "backing_file=a.raw,backing_fmt=raw,compat=0.10",
        "data_file=d.raw",
        "data_file=d.raw,data_file_raw=on",
        "data_file=d.raw,cluster_size=4k,lazy_refcounts=on",
    ];
    for (kind, contents) in kinds.iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        make(work.path(), kind, "qcow2");
        if contents {
            qemu_io(&file, "qcow2", &["write -P 5 64k 1M", "write -z 2M 64k"]);
            // A refcount of one bit leaves nothing for a snapshot.
            if !kind.contains("data_file") && *kind != "refcount_bits=1" {
                qemu(&[&"snapshot", &"-c", &"first", &file]);
                qemu_io(&file, "qcow2", &["write -P 6 128k 64k"]);
            }
            if !kind.contains("compat=0.10") && !kind.contains("data_file_raw") {
                for (name, grain) in [("one", "64k"), ("two", "4k")] {
                    qemu(&[&"bitmap", &"--add", &"-g", &grain, &file, &name]);
                }
                qemu(&[&"bitmap", &"--disable", &file, &"two"]);
            }
            // Compressed clusters are written as a whole.
            if ["data_file", "preallocation", "cluster_size=2M"]
                .iter()
                .all(|other| !kind.contains(other))
            {
                qemu_io(&file, "qcow2", &["write -c -P 7 1536k 64k"]);
            }
        }
        compare_all(&work, "qcow2", &format!("{kind}, contents {contents}"));
    }
    for size in [5000, 3 * MIB] {
        let raw = fs::File::create(&file).unwrap();
        raw.set_len(size).unwrap();
        raw.write_all_at(&[7; 100], 1000).unwrap();
        raw.sync_all().unwrap();
        compare_all(&work, "raw", &format!("raw of {size}"));
    }
}

fn compare_all(work: &Workdir, format: &str, kind: &str) {
    let file = work.path().join("a");
    let path = file.to_str().unwrap();
    let theirs = |words: &[&dyn AsRef<std::ffi::OsStr>]| qemu_json(words);
    let chain = kind.contains("backing_file") || kind.contains("data_file");
    let more: &[&str] = if chain { &["--chain"] } else { &[] };
    let ours = |words: &[&str], more: &[&str]| {
        let words = [words, &["-f", format, "--output=json"], more, &[path]].concat();
        image(work, &words).success().json()
    };
    let info = theirs(&[&"info", &"-f", &format, &"--output=json", &file]);
    assert_holds(&ours(&["info"], &[]), &info, &format!("info of {kind}: "));
    let infos = theirs(&[
        &"info",
        &"-f",
        &format,
        &"--backing-chain",
        &"--output=json",
        &file,
    ]);
    assert_holds(
        &ours(&["info"], &["--backing-chain"]),
        &infos,
        &format!("chain of {kind}: "),
    );
    let mut measured = theirs(&[
        &"measure",
        &"-f",
        &format,
        &"-O",
        &"qcow2",
        &"--output=json",
        &file,
    ]);
    let ours_measured = ours(&["measure", "-O", "qcow2"], more);
    // Clusters whose space is not written are zeros to us, which a copy leaves out, and data to
    // QEMU.
    let has_unwritten = ["preallocation=falloc", "data_file_raw"];
    if has_unwritten.iter().any(|other| kind.contains(other)) {
        let required = |found: &Value| found["required"].as_u64().unwrap();
        assert!(required(&ours_measured) <= required(&measured), "{kind}");
        measured["required"] = ours_measured["required"].clone();
    }
    assert_holds(&ours_measured, &measured, &format!("measure of {kind}: "));
    if format == "qcow2" {
        let checked = theirs(&[&"check", &"-f", &format, &"--output=json", &file]);
        assert_holds(
            &ours(&["check"], &[]),
            &checked,
            &format!("check of {kind}: "),
        );
    }
}

#[test]
fn disk_of_0_bytes_is_made_and_copied_as_by_qemu_img() {
    require!(qemu_img());
    let work = Workdir::new();
    let file = |name: &str| work.path().join(name);
    qemu(&[&"create", &"-q", &"-f", &"qcow2", &file("a.qcow2"), &"0"]);
    for mode in ["off", "falloc", "full"] {
        let option = format!("preallocation={mode}");
        let made = [
            "create", "-f", "raw", "--force", "-o", &option, "b.raw", "0",
        ];
        image(&work, &made).success();
        assert_eq!(fs::metadata(file("b.raw")).unwrap().len(), 0);
        for (source, format, target) in [
            ("a.qcow2", "qcow2", "c.raw"),
            ("c.raw", "raw", "d.raw"),
            ("d.raw", "raw", "e.qcow2"),
        ] {
            let to = if target == "e.qcow2" { "qcow2" } else { "raw" };
            let words = ["convert", "--force", "-f", format, "-O", to, source, target];
            image(&work, &[&words[..], &["--preallocation", mode]].concat()).success();
            assert_reads_same((&file(source), format), (&file(target), to));
        }
        assert_checks(&file("e.qcow2"));
    }
}

#[test]
fn map_covers_exactly_the_requested_range() {
    require!(qemu_img());
    let work = Workdir::new();
    source(&work);
    image(&work, &["convert", "a.raw", "a.qcow2"]).success();
    let file = work.path().join("a.qcow2");
    for (start, length) in [("0", "4M"), ("512k", "1M"), ("1M", "512"), ("3M", "64M")] {
        let theirs = qemu_json(&[
            &"map",
            &"--output=json",
            &"--start-offset",
            &start,
            &"--max-length",
            &length,
            &file,
        ]);
        let words = [
            "map",
            "--json",
            "--start-offset",
            start,
            "--max-length",
            length,
            "a.qcow2",
        ];
        let ours = image(&work, &words).success().json();
        assert_holds(&ours, &theirs, &format!("map from {start}, {length}"));
    }
}

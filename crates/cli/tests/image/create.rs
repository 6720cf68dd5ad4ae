//! `extant create` of images.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use extant_space::ExtentState;
use extant_testkit::oracle::qemu::{assert_checks, qemu, qemu_img, qemu_json};
use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::workdir::Workdir;
use extant_testkit::{oracle, require, requires, seeds};
use rustix::process::Signal;

use crate::outer::Outer;
use crate::support::{
    MIB, Random, Running, assert_names, create, create_command, device_bytes_written, extant,
    left_written, names, partial_of, run, wait_until,
};

#[test]
fn name_decides_the_format_and_the_option_before_it() {
    require!(qemu_img());
    let work = Workdir::new();
    for (name, more, format) in [
        ("a.qcow2", &[][..], "qcow2"),
        ("b.raw", &[], "raw"),
        ("c", &["--format", "qcow2"], "qcow2"),
        ("d.qcow2", &["--format", "raw"], "raw"),
    ] {
        let file = work.path().join(name);
        create(&file, "3MiB", more).success();
        let info = qemu_json(&[&"info", &"--output=json", &"-f", &format, &file]);
        assert_eq!(info["virtual-size"], 3 * MIB);
        let bytes = fs::read(&file).unwrap();
        assert_eq!(bytes.starts_with(b"QFI\xfb"), format == "qcow2", "{name}");
    }
}

#[test]
fn modes_show_in_the_map_of_the_file_and_in_the_report() {
    require!(qemu_img(), Filesystem::Ext4.requirement());
    let scratch = Scratch::new(Filesystem::Ext4, 96 * MIB);
    for (mode, state, text) in [
        ("off", ExtentState::Hole, "sparse"),
        ("metadata", ExtentState::Hole, "all of it mapped (sparse)"),
        ("falloc", ExtentState::Unwritten, "reserved (unwritten)"),
        ("full", ExtentState::Written, "mapped, zeroed and written"),
    ] {
        let file = scratch.path().join(format!("{mode}.qcow2"));
        let answer = create(&file, "8MiB", &["--preallocation", mode]).success();
        assert!(answer.stdout.contains("qcow2 image of 8 MiB"), "{answer}");
        assert!(answer.stdout.contains(text), "{answer}");
        assert_checks(&file);
        if mode != "off" {
            let bytes = oracle::filefrag(&file).bytes(state);
            assert!(
                bytes >= 8 * MIB || state == ExtentState::Hole,
                "{mode}: {bytes}"
            );
        }
        fs::remove_file(&file).unwrap();
        let words = format!("preallocation={mode},cluster_size=4k,lazy_refcounts=on");
        let answer = create(&file, "8MiB", &["--json", "-o", &words]).success();
        assert_eq!(answer.text("/preallocation"), mode);
        assert_eq!(answer.number("/capacity_bytes"), 8 * MIB);
        assert_eq!(
            answer.number("/size_bytes"),
            fs::metadata(&file).unwrap().len()
        );
        let info = qemu_json(&[&"info", &"--output=json", &file]);
        assert_eq!(info["cluster-size"], 4096);
        assert_checks(&file);
        fs::remove_file(&file).unwrap();
    }
}

#[test]
fn first_part_of_an_image_can_be_real_alone() {
    require!(qemu_img());
    let work = Workdir::new();
    let file = work.path().join("a.qcow2");
    let answer = create(&file, "32MiB", &["--allocation", "2MiB", "--json"]).success();
    assert_eq!(answer.number("/preallocated_bytes"), 2 * MIB);
    assert_eq!(answer.number("/capacity_bytes"), 32 * MIB);
    assert_checks(&file);
    let info = run(extant().args(["image", "info", "--json"]).arg(&file)).success();
    assert_eq!(info.number("/states/written_bytes"), 2 * MIB);
}

#[test]
fn wrong_words_are_refused_and_leave_nothing() {
    let work = Workdir::new();
    let file = work.path().join("a.qcow2");
    for (more, code, words) in [
        (&["-o", "cluster_size=3k"][..], 2, "cluster_size=3072"),
        (&["-o", "backing_file=b"], 2, "backing_fmt"),
        (
            &["-o", "backing_file=b,backing_fmt=of-sixteen-bytes"],
            2,
            "16 bytes, above 15",
        ),
        (&["-o", "extended_l2=on"], 5, "extended_l2"),
        (&["--allocation", "3M"], 2, "more than the size"),
        (
            &["--allocation", "1M", "--preallocation", "off"],
            2,
            "an allocation needs preallocation",
        ),
        (
            &["--format", "raw", "-o", "compat=1.1"],
            2,
            "-o compat is for qcow2",
        ),
        (
            &["--format", "raw", "--preallocation", "metadata"],
            2,
            "metadata",
        ),
    ] {
        create(&file, "2MiB", more).refused(code, &[words]);
        assert_names(work.path(), &["lock"]);
    }
    let words = "backing_file=base.raw,backing_fmt=raw";
    create(&file, "2MiB", &["-o", words, "--preallocation", "full"]).refused(2, &["hide it"]);
    // Only its name exists.
    create(&file, "2MiB", &["-o", words]).refused(4, &["base.raw", "does not exist"]);
    fs::write(work.path().join("base.raw"), [1; 512]).unwrap();
    // With a backing file nothing is preallocated.
    create(&file, "2MiB", &["-o", words]).success();
    let own = "backing_file=a.qcow2,backing_fmt=qcow2";
    create(&file, "2MiB", &["--force", "-o", own]).refused(2, &["its own backing file"]);
    // The target of a protocol is not checked.
    let far = "backing_file=nbd://host/x,backing_fmt=raw";
    create(&file, "2MiB", &["--force", "-o", far]).success();
}

#[test]
fn image_inside_an_image_is_whole_in_every_mode() {
    require!(qemu_img(), requires::tool("mke2fs"));
    let outer = Outer::new();
    for mode in ["off", "metadata", "falloc", "full"] {
        let name = format!("/{mode}.qcow2");
        let more = ["8MiB", "--json", "--preallocation", mode];
        let answer = outer.on(&["create"], &name, &more).success();
        assert_eq!(answer.text("/preallocation"), mode);
        let copy = outer.get(&name);
        assert_checks(&copy);
        let info = qemu_json(&[&"info", &"--output=json", &copy]);
        assert_eq!(info["virtual-size"], 8 * MIB);
    }
    outer.check();
}

#[test]
fn killed_creation_leaves_no_name_and_the_next_run_is_whole() {
    require!(qemu_img(), Filesystem::Ext4.requirement());
    let scratch = Scratch::new(Filesystem::Ext4, 192 * MIB);
    let file = scratch.path().join("a.qcow2");
    let mut random = Random::seeded("--test image");
    for round in 0..12 {
        // Much metadata beside the data: kills fall into both.
        let words = [
            "-o",
            "cluster_size=512",
            "--preallocation",
            ["full", "metadata"][round % 2],
        ];
        let mut command = create_command(&file, "48MiB", &words);
        let running = Running::start(&mut command);
        sleep(Duration::from_millis(random.below(90)));
        running.stop(Signal::KILL);
        if file.exists() {
            assert_checks(&file);
            fs::remove_file(&file).unwrap();
        }
        for left in names(scratch.path()) {
            let left = left.to_string_lossy().into_owned();
            assert!(left.starts_with(".a.qcow2.extant-"), "{left}");
        }
        // Another format adopts the partial file, or begins again: never a byte of the other format
        // remains.
        if round % 3 == 0 {
            create(&file, "48MiB", &["--format", "raw"]).success();
            oracle::assert_zeros(&file, extant_space::ByteRange::new(0, 48 * MIB));
        } else {
            create(&file, "48MiB", &["-o", "cluster_size=4k"]).success();
            assert_checks(&file);
            let zero = scratch.path().join("zero");
            fs::File::create(&zero).unwrap().set_len(48 * MIB).unwrap();
            qemu(&[
                &"compare", &"-q", &"-f", &"qcow2", &"-F", &"raw", &file, &zero,
            ]);
            fs::remove_file(&zero).unwrap();
        }
        fs::remove_file(&file).unwrap();
        assert_names(scratch.path(), &[]);
    }
    seeds::counted(12, "kills");
}

#[test]
fn killed_creation_of_a_full_image_resumes() {
    require!(qemu_img(), Filesystem::Ext4.requirement());
    let scratch = Scratch::new(Filesystem::Ext4, 192 * MIB);
    let file = scratch.path().join("a.qcow2");
    let words = ["--preallocation", "full"];
    let slow = [&words[..], &["--rate", "64M"]].concat();
    let written = || oracle::filefrag(&partial_of(&file)).bytes(ExtentState::Written);
    let mut kept = 0;
    for _ in 0..3 {
        let mut running = Running::start(&mut create_command(&file, "96MiB", &slow));
        wait_until("more that is written", || {
            !running.is_alive() || partial_of(&file).exists() && written() > kept + 4 * MIB
        });
        let (answer, _) = running.stop(Signal::KILL);
        assert_eq!(answer.signal, Some(9), "{answer}");
        assert_names(scratch.path(), &[".a.qcow2.extant-partial"]);
        let now = left_written(&file);
        assert!(now > kept, "{now} of {kept} bytes are left");
        kept = now;
    }
    let before = device_bytes_written(&scratch);
    let answer = create(&file, "96MiB", &[&words[..], &["--json"]].concat()).success();
    let size = fs::metadata(&file).unwrap().len();
    assert_eq!(answer.number("/resumed_bytes"), kept, "{answer}");
    let rest = answer.number("/zeroed_bytes");
    assert_eq!(rest, size - kept, "{answer}");
    // With tables and metadata; all of it again would be far more.
    let on_device = device_bytes_written(&scratch) - before;
    assert!(on_device < rest + 3 * MIB, "{on_device} for {answer}");
    assert_names(scratch.path(), &["a.qcow2"]);
    assert_checks(&file);
    assert!(oracle::filefrag(&file).is_extant());
}

#[test]
fn lack_of_space_leaves_nothing() {
    require!(Filesystem::Ext4.requirement());
    let scratch = Scratch::new(Filesystem::Ext4, 16 * MIB);
    let file = scratch.path().join("a.qcow2");
    for mode in ["falloc", "full"] {
        create(&file, "64MiB", &["--preallocation", mode]).refused(3, &["no space", "missing"]);
        assert_names(scratch.path(), &[]);
    }
    // Tables alone are more than there is.
    let words = ["--preallocation", "metadata", "-o", "cluster_size=512"];
    create(&file, "2GiB", &words).refused(3, &["/a.qcow2", "no space"]);
    assert_names(scratch.path(), &[]);
}

//! The predicted size of a fully allocated image.

use std::path::Path;
use std::sync::Arc;

use extant_hostfs::{Access, HostFile, Pace};
use extant_image::{Format, ImageFile, Preallocation, full_file_bytes, materialize, resize};
use extant_testkit::require;
use extant_testkit::requires::tool;

use crate::support::*;

fn told(image: &Path) -> u64 {
    let file = HostFile::open(image, Access::Read).unwrap();
    full_file_bytes(Arc::new(file)).unwrap()
}

fn size(image: &Path) -> u64 {
    std::fs::metadata(image).unwrap().len()
}

#[track_caller]
fn make_full(image: &Path) {
    let target = ImageFile::host(image, Pace::Full).unwrap();
    silent(|control| materialize(&target, Format::Qcow2, control)).unwrap();
    drop(target);
    assert_checks(image);
}

/// The prediction changes nothing and equals the final size; a fully allocated image does not grow.
#[track_caller]
fn assert_told_truly(image: &Path, what: &str) {
    let before = std::fs::read(image).unwrap();
    let bytes = told(image);
    assert!(std::fs::read(image).unwrap() == before, "{what}");
    make_full(image);
    assert_eq!(size(image), bytes, "{what}");
    assert_eq!(told(image), bytes, "{what}");
    make_full(image);
    assert_eq!(size(image), bytes, "{what}");
}

fn written(ground: &Ground, words: &str) -> std::path::PathBuf {
    let image = ground.path("a.qcow2");
    let bytes = (5 * MIB + 512).to_string();
    qemu(&[
        &"create", &"-q", &"-f", &"qcow2", &"-o", &words, &image, &bytes,
    ]);
    let writes = ["write -P 1 64k 1M", "write -P 2 4M 1M", "write -z 2M 1M"];
    qemu_io(&image, "qcow2", &writes);
    image
}

#[test]
fn file_of_a_full_image_has_the_reported_size() {
    require!(qemu_img(), tool("qemu-io"));
    for words in [
        "compat=1.1",
        "compat=0.10",
        "cluster_size=512",
        "cluster_size=4k,refcount_bits=64",
        "cluster_size=2M",
        "preallocation=metadata",
        "preallocation=falloc",
    ] {
        let ground = Ground::new();
        let thin = written(&ground, words);
        assert_told_truly(&thin, words);

        let shared = written(&ground, words);
        qemu(&[&"snapshot", &"-c", &"one", &shared]);
        qemu_io(&shared, "qcow2", &["write -P 7 100k 200k"]);
        qemu(&[&"snapshot", &"-c", &"two", &shared]);
        assert_told_truly(&shared, &format!("{words}, snapshots"));

        let packed = ground.path("packed.qcow2");
        let source = written(&ground, words);
        let words = words
            .split(',')
            .find(|word| !word.contains("preallocation"));
        let words = words.unwrap_or("compat=1.1");
        qemu(&[
            &"convert", &"-c", &"-f", &"qcow2", &"-O", &"qcow2", &"-o", &words, &source, &packed,
        ]);
        assert_told_truly(&packed, &format!("{words}, compressed"));
    }
}

/// As a crash leaves it, when the file was longer already than its counts.
#[test]
fn unused_end_of_a_file_is_cut_off_and_not_reported() {
    require!(qemu_img(), tool("qemu-io"));
    for words in ["compat=1.1", "cluster_size=4k", "preallocation=metadata"] {
        let ground = Ground::new();
        let expected = told(&written(&ground, words));
        let image = written(&ground, words);
        let file = std::fs::File::options().write(true).open(&image).unwrap();
        file.set_len(1 << 40).unwrap();
        drop(file);
        assert_eq!(told(&image), expected, "{words}");
        make_full(&image);
        assert_eq!(size(&image), expected, "{words}");
    }
}

#[test]
fn file_of_a_resized_full_image_has_the_reported_size() {
    require!(qemu_img());
    for preallocation in Preallocation::ALL {
        for cluster_bytes in [512, 64 * KIB] {
            let ground = Ground::new();
            let image = ground.path("a.qcow2");
            let mut options = qcow2(3 * MIB + 512, preallocation);
            options.qcow2.cluster_bytes = cluster_bytes;
            create(&image, &options);
            let what = format!("{preallocation} {cluster_bytes}");
            for bytes in [7 * MIB, 2 * MIB, 9 * MIB] {
                let target = ImageFile::host(&image, Pace::Full).unwrap();
                let options = extant_image::ResizeOptions {
                    preallocation: Some(Preallocation::Off),
                    may_shrink: true,
                };
                silent(|control| resize(&target, Format::Qcow2, bytes, &options, control)).unwrap();
            }
            assert_told_truly(&image, &what);
        }
    }
}

#[test]
fn image_with_outdated_refcounts_is_not_larger_than_reported() {
    require!(qemu_img(), tool("qemu-io"));
    for cluster in ["512", "64k"] {
        let ground = Ground::new();
        let words = format!("lazy_refcounts=on,cluster_size={cluster}");
        let image = written(&ground, &words);
        // Killed with a write that only the tables know.
        qemu_io_killed(&image, &["write -P 5 2M 1M", "abort"]);
        let before = qemu_json(&[&"info", &"--output=json", &image]);
        assert_eq!(before["dirty-flag"], true, "{before}");
        let bytes = told(&image);
        make_full(&image);
        assert!(size(&image) <= bytes, "{cluster}: {} {bytes}", size(&image));
    }
}

/// `qemu-io` that ends by a signal.
#[track_caller]
fn qemu_io_killed(image: &Path, commands: &[&str]) {
    let mut command = extant_testkit::command::tool("qemu-io");
    command.args(["-f", "qcow2"]);
    for words in commands {
        command.args(["-c", words]);
    }
    let ended = extant_testkit::command::run_any_status(command.arg(image)).unwrap();
    assert!(!ended.status.success(), "{ended:?}");
}

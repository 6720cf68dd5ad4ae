//! Changes in place of images that hold more than one disk, or less: snapshots, bitmaps, a data
//! file.

use std::path::{Path, PathBuf};

use extant_hostfs::Pace;
use extant_image::{
    Format, ImageFile, Preallocation, ResizeOptions, check, materialize, open_path, resize,
};
use extant_space::{ErrorKind, Result};
use extant_testkit::require;
use extant_testkit::requires::tool;

use crate::change::{assert_holds, bytes_of, resized};
use crate::read::checked;
use crate::support::*;

const SIZE: u64 = 5 * MIB + 512;

/// An image of QEMU with data at several places.
fn made(ground: &Ground, words: &str) -> PathBuf {
    let image = ground.path("a.qcow2");
    let size = SIZE.to_string();
    match words {
        "" => qemu(&[&"create", &"-q", &"-f", &"qcow2", &image, &size]),
        _ => qemu(&[
            &"create", &"-q", &"-f", &"qcow2", &"-o", &words, &image, &size,
        ]),
    };
    let writes = ["write -P 1 64k 1M", "write -P 2 4M 1M", "write -P 3 5M 512"];
    qemu_io(&image, "qcow2", &writes);
    image
}

/// Contents of a snapshot, as a raw file.
fn snapshot(ground: &Ground, image: &Path, name: &str) -> Vec<u8> {
    let copy = ground.path("copy.qcow2");
    std::fs::copy(image, &copy).unwrap();
    qemu(&[&"snapshot", &"-a", &name, &copy]);
    assert_checks(&copy);
    bytes_of(&copy)
}

fn made_full(image: &Path) -> Result<()> {
    let target = ImageFile::host(image, Pace::Full)?;
    silent(|control| materialize(&target, Format::Qcow2, control)).map(drop)
}

#[test]
fn snapshots_keep_their_disks_while_theirs_is_resized_and_made_full() {
    require!(qemu_img(), tool("qemu-io"));
    for words in ["", "cluster_size=512", "cluster_size=2M,refcount_bits=8"] {
        let ground = Ground::new();
        let image = made(&ground, words);
        let first = bytes_of(&image);
        qemu(&[&"snapshot", &"-c", &"one", &image]);
        qemu_io(
            &image,
            "qcow2",
            &["write -P 7 100k 200k", "write -z 4200k 300k"],
        );
        let second = bytes_of(&image);
        qemu(&[&"snapshot", &"-c", &"two", &image]);
        let mut bytes = second.clone();
        for (size, preallocation) in [
            (7 * MIB, Preallocation::Metadata),
            (4 * MIB + 100 * KIB + 512, Preallocation::Off),
            (9 * MIB + 512, Preallocation::Off),
            (10 * MIB, Preallocation::Full),
        ] {
            resized(&image, size, Some(preallocation), true)
                .unwrap_or_else(|error| panic!("{words} {size}: {error}"));
            assert_checks(&image);
            bytes.resize(size as usize, 0);
            assert_holds(&ground, &image, &bytes);
            assert!(snapshot(&ground, &image, "one") == first, "{words} {size}");
            assert!(snapshot(&ground, &image, "two") == second, "{words} {size}");
        }
        made_full(&image).unwrap_or_else(|error| panic!("{words}: {error}"));
        assert_checks(&image);
        assert_holds(&ground, &image, &bytes);
        let layer = open_path(&image, None, extant_image::ReferencedFiles::Ignore).unwrap();
        let info = layer.info().unwrap();
        assert_eq!(info.preallocation, Preallocation::Full, "{words} {info:?}");
        assert!(snapshot(&ground, &image, "one") == first, "{words}");
        assert!(snapshot(&ground, &image, "two") == second, "{words}");
        // Nothing is shared any more: writes stay in place.
        qemu(&[&"snapshot", &"-d", &"one", &image]);
        qemu(&[&"snapshot", &"-d", &"two", &image]);
        assert_checks(&image);
        assert_holds(&ground, &image, &bytes);
    }
}

/// The same image compressed, each cluster for itself.
fn compressed(ground: &Ground, image: &Path, words: &str) -> PathBuf {
    let packed = ground.path("packed.qcow2");
    qemu(&[
        &"convert", &"-c", &"-f", &"qcow2", &"-O", &"qcow2", &"-o", &words, &image, &packed,
    ]);
    assert!(checked(&packed).compressed_clusters > 0);
    packed
}

#[test]
fn compressed_clusters_are_expanded_in_full_images_and_where_the_disk_ends() {
    require!(qemu_img(), tool("qemu-io"));
    let all = [
        "compression_type=zlib",
        "compression_type=zstd",
        "cluster_size=4k",
        "cluster_size=2M",
        "compat=0.10",
    ];
    for words in all {
        let ground = Ground::new();
        let image = made(&ground, "");
        let mut bytes = bytes_of(&image);
        let packed = compressed(&ground, &image, words);
        // Some of it is compressed no more, and QEMU keeps the rest for the snapshot.
        qemu_io(&packed, "qcow2", &["write -P 9 4M 300k"]);
        bytes[4 << 20..][..300 << 10].fill(9);
        qemu(&[&"snapshot", &"-c", &"one", &packed]);
        made_full(&packed).unwrap_or_else(|error| panic!("{words}: {error}"));
        assert_checks(&packed);
        assert_holds(&ground, &packed, &bytes);
        assert!(snapshot(&ground, &packed, "one") == bytes, "{words}");
        let layer = open_path(&packed, None, extant_image::ReferencedFiles::Ignore).unwrap();
        let states = layer.info().unwrap().states;
        assert_eq!(states.written, SIZE, "{words}: {states:?}");
        assert_eq!(checked(&packed).compressed_clusters, 0, "{words}");
    }
    for words in ["cluster_size=64k", "cluster_size=4k,compression_type=zstd"] {
        let ground = Ground::new();
        let image = made(&ground, "");
        let mut bytes = bytes_of(&image);
        let packed = compressed(&ground, &image, words);
        // Inside a compressed cluster, with data behind the new end.
        for size in [4 * MIB + 512, 3 * MIB, 64 * KIB + 1024, 2 * MIB + 512] {
            resized(&packed, size, Some(Preallocation::Off), true).unwrap();
            bytes.resize(size as usize, 0);
            assert_checks(&packed);
            assert_holds(&ground, &packed, &bytes);
        }
    }
}

#[test]
fn snapshots_that_do_not_tell_their_size_are_not_resized() {
    require!(qemu_img(), tool("qemu-io"));
    let ground = Ground::new();
    let image = made(&ground, "compat=0.10");
    qemu(&[&"snapshot", &"-c", &"one", &image]);
    let before = std::fs::read(&image).unwrap();
    let error = resized(&image, 9 * MIB, None, false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("version 2"), "{error}");
    assert!(std::fs::read(&image).unwrap() == before);
    // Full it can be: its size stays.
    made_full(&image).unwrap();
    assert_checks(&image);
}

/// The bitmap that QEMU has loaded, if it takes the image.
#[track_caller]
fn bitmaps(image: &Path) -> String {
    qemu_io(image, "qcow2", &["write -P 9 0 512"]);
    let info = qemu_json(&[&"info", &"--output=json", &image]);
    let bitmaps = &info["format-specific"]["data"]["bitmaps"];
    bitmaps.to_string()
}

#[test]
fn bitmaps_cover_the_larger_disk_and_stay_right_in_a_full_one() {
    require!(qemu_img(), tool("qemu-io"));
    for (words, granularity, sizes) in [
        ("", "64k", [6 * MIB, 9 * MIB]),
        // The table gets longer, then it moves.
        ("cluster_size=512", "512", [7 * MIB, 140 * MIB]),
    ] {
        let ground = Ground::new();
        let image = made(&ground, words);
        for name in ["one", "two"] {
            qemu(&[&"bitmap", &"--add", &"-g", &granularity, &image, &name]);
        }
        let told = bitmaps(&image);
        assert!(told.contains("one") && told.contains("two"), "{told}");
        let mut bytes = bytes_of(&image);
        for size in sizes {
            resized(&image, size, Some(Preallocation::Off), false)
                .unwrap_or_else(|error| panic!("{words} {size}: {error}"));
            assert_checks(&image);
            bytes.resize(size as usize, 0);
            assert_holds(&ground, &image, &bytes);
            assert_eq!(bitmaps(&image), told, "{words} {size}");
            let end = (size - 512).to_string();
            qemu_io(&image, "qcow2", &[&format!("write -P 8 {end} 512")]);
            bytes = bytes_of(&image);
            assert_checks(&image);
        }
        let error = resized(&image, MIB, None, true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("bitmaps"), "{error}");
        made_full(&image).unwrap();
        assert_checks(&image);
        assert_holds(&ground, &image, &bytes);
        assert_eq!(bitmaps(&image), told, "{words}");
    }
}

#[test]
fn data_file_is_resized_and_made_full_with_its_image() {
    require!(qemu_img(), tool("qemu-io"));
    for raw in ["off", "on"] {
        let ground = Ground::new();
        let data = ground.path("a.data");
        let words = format!("data_file={},data_file_raw={raw}", data.display());
        let image = made(&ground, &words);
        let error = resized(&image, 9 * MIB, None, false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("a.data"), "{error}");
        let mut bytes = bytes_of(&image);
        let target = || {
            ImageFile::host(&image, Pace::Full)
                .and_then(ImageFile::with_named_files)
                .unwrap()
        };
        for (size, preallocation) in [
            (7 * MIB, Preallocation::Metadata),
            (4 * MIB + 100 * KIB + 512, Preallocation::Off),
            (8 * MIB, Preallocation::Off),
            (9 * MIB, Preallocation::Full),
        ] {
            let options = ResizeOptions {
                preallocation: Some(preallocation),
                may_shrink: true,
            };
            let target = target();
            silent(|control| resize(&target, Format::Qcow2, size, &options, control))
                .unwrap_or_else(|error| panic!("{raw} {size}: {error}"));
            drop(target);
            assert_checks(&image);
            bytes.resize(size as usize, 0);
            assert_holds(&ground, &image, &bytes);
            if raw == "on" {
                assert!(std::fs::read(&data).unwrap() == bytes, "{size}");
            }
        }
        let target = target();
        silent(|control| materialize(&target, Format::Qcow2, control)).unwrap();
        drop(target);
        assert_checks(&image);
        assert_holds(&ground, &image, &bytes);
        let layer = open_path(&image, None, extant_image::ReferencedFiles::Open).unwrap();
        assert_eq!(layer.info().unwrap().preallocation, Preallocation::Full);
    }
}

#[test]
fn stale_bytes_of_a_data_file_do_not_come_back() {
    require!(qemu_img(), tool("qemu-io"));
    let ground = Ground::new();
    let data = ground.path("a.data");
    let image = made(&ground, &format!("data_file={}", data.display()));
    qemu_io(&image, "qcow2", &["discard 1M 64k"]);
    let bytes = bytes_of(&image);
    // Unmapped clusters, and those beyond the end of the disk.
    let mut stale = std::fs::read(&data).unwrap();
    stale.resize(8 << 20, 0xee);
    stale[2 << 20..3 << 20].fill(0xee);
    std::fs::write(&data, stale).unwrap();
    let target = ImageFile::host(&image, Pace::Full)
        .and_then(ImageFile::with_named_files)
        .unwrap();
    let options = ResizeOptions {
        preallocation: Some(Preallocation::Off),
        may_shrink: false,
    };
    silent(|control| resize(&target, Format::Qcow2, 7 * MIB, &options, control)).unwrap();
    silent(|control| materialize(&target, Format::Qcow2, control)).unwrap();
    drop(target);
    let mut bytes = bytes;
    bytes.resize(7 << 20, 0);
    assert_checks(&image);
    assert_holds(&ground, &image, &bytes);
}

/// An image left by a user that was killed before it wrote the refcounts.
fn dirty(ground: &Ground, words: &str) -> PathBuf {
    let image = made(ground, words);
    let mut qemu = extant_testkit::command::tool("qemu-io");
    qemu.args(["-f", "qcow2", "-c", "write -P 5 2M 1M"]);
    qemu.args(["-c", "write -P 6 256k 64k", "-c", "abort"])
        .arg(&image);
    let ended = extant_testkit::command::run_any_status(&mut qemu).unwrap();
    assert!(!ended.status.success());
    let info = qemu_json(&[&"info", &"--output=json", &image]);
    assert_eq!(info["dirty-flag"], true, "{info}");
    image
}

fn corruptions(image: &Path) -> u64 {
    let file = extant_hostfs::HostFile::open_read(image).unwrap();
    let report = silent(|control| check(std::sync::Arc::new(file), 5, control)).unwrap();
    report.corruptions + report.leaks
}

#[test]
fn image_of_a_killed_qemu_gets_its_refcounts_before_it_is_changed() {
    require!(qemu_img(), tool("qemu-io"));
    for words in [
        "lazy_refcounts=on",
        "lazy_refcounts=on,cluster_size=512",
        "lazy_refcounts=on,refcount_bits=64,cluster_size=4k",
    ] {
        let ground = Ground::new();
        let image = dirty(&ground, words);
        assert!(corruptions(&image) > 0, "{words}");
        let mut bytes = bytes_of(&image);
        let copy = ground.path("copy.qcow2");
        std::fs::copy(&image, &copy).unwrap();
        let file = extant_hostfs::HostFile::open(&copy, extant_hostfs::Access::ReadWrite).unwrap();
        let file = std::sync::Arc::new(file);
        let repaired =
            silent(|control| extant_image::rebuild_refcounts(file.clone(), control)).unwrap();
        assert!(repaired > 0);
        assert_eq!(corruptions(&copy), 0);
        assert_checks(&copy);
        assert_holds(&ground, &copy, &bytes);
        let info = qemu_json(&[&"info", &"--output=json", &copy]);
        assert_ne!(info["dirty-flag"], true, "{info}");
        let again = silent(|control| extant_image::rebuild_refcounts(file, control)).unwrap();
        assert_eq!(again, 0);

        resized(&image, 9 * MIB, Some(Preallocation::Metadata), false).unwrap();
        assert_checks(&image);
        bytes.resize(9 << 20, 0);
        assert_holds(&ground, &image, &bytes);
    }
}

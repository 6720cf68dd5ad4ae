//! Copies: every format and mode into every other, and what QEMU makes into ours.

use std::path::Path;

use extant_image::{
    BackingFile, Conversion, CopyOptions, Follow, Format, ImageOptions, Preallocation, convert,
    open_path,
};
use extant_space::{CancelToken, Control, ErrorKind, Progress};
use extant_testkit::require;

use crate::support::*;

const SIZE: u64 = 5 * MIB + 512;

/// Data, holes and zeros, at odd places.
fn source(ground: &Ground) -> std::path::PathBuf {
    let raw = ground.path("source.raw");
    let mut bytes = vec![0; SIZE as usize];
    for (start, length, value) in [
        (0, 700, 1),
        (100_000, 200_000, 2),
        (1 << 20, 1 << 20, 3),
        (SIZE as usize - 100, 100, 4),
    ] {
        bytes[start..start + length].fill(value);
    }
    std::fs::write(&raw, &bytes).unwrap();
    // Zeros that are written, and holes.
    let file = std::fs::OpenOptions::new().write(true).open(&raw).unwrap();
    rustix::fs::fallocate(
        &file,
        rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE,
        3 << 20,
        1 << 20,
    )
    .unwrap();
    raw
}

#[track_caller]
fn converted(from: &Path, to: &Path, options: &ImageOptions) {
    let layer = open_path(from, None, Follow::Named).unwrap();
    let file = extant_hostfs::CreateOptions::new(1);
    silent(|control| convert(&layer, to, options, &file, CopyOptions::default(), control))
        .unwrap_or_else(|error| panic!("{error}: {options:?}"));
}

#[test]
fn every_mode_and_shape_holds_the_same_bytes() {
    require!(qemu_img());
    let ground = Ground::new();
    let raw = source(&ground);
    let (image, again) = (ground.path("a.qcow2"), ground.path("again.raw"));
    for cluster_bytes in [512, 4096, 64 * KIB, 2 * MIB] {
        for preallocation in Preallocation::ALL {
            let mut options = qcow2(SIZE, preallocation);
            options.qcow2.cluster_bytes = cluster_bytes;
            converted(&raw, &image, &options);
            assert_checks(&image);
            assert_reads_same((&image, "qcow2"), (&raw, "raw"));
            let layer = open_path(&image, None, Follow::Nothing).unwrap();
            let info = layer.info().unwrap();
            // Such large clusters all have data.
            if cluster_bytes < 2 * MIB || preallocation != Preallocation::Off {
                assert_eq!(info.preallocation, preallocation, "{options:?} {info:?}");
            }
            let mut options = ImageOptions::new(Format::Raw, SIZE);
            if preallocation != Preallocation::Metadata {
                options.preallocation = preallocation;
            }
            converted(&image, &again, &options);
            assert_reads_same((&again, "raw"), (&raw, "raw"));
            let layer = open_path(&again, Some(Format::Raw), Follow::Nothing).unwrap();
            let states = layer.info().unwrap().states;
            match options.preallocation {
                Preallocation::Off => assert!(states.hole >= 3 * MIB, "{states:?}"),
                Preallocation::Full => assert_eq!(states.written, SIZE),
                _ => assert_eq!(states.hole, 0),
            }
            std::fs::remove_file(&image).unwrap();
            std::fs::remove_file(&again).unwrap();
        }
    }
}

#[test]
fn thin_copies_have_clusters_for_data_alone() {
    require!(qemu_img());
    let ground = Ground::new();
    let raw = source(&ground);
    let (ours, theirs) = (ground.path("ours.qcow2"), ground.path("theirs.qcow2"));
    converted(&raw, &ours, &qcow2(SIZE, Preallocation::Off));
    qemu(&[&"convert", &"-f", &"raw", &"-O", &"qcow2", &raw, &theirs]);
    assert_checks(&ours);
    let mapped = |path: &Path| {
        let layer = open_path(path, None, Follow::Nothing).unwrap();
        layer.info().unwrap().states.mapped
    };
    assert_eq!(mapped(&ours), mapped(&theirs));
    let space = |path: &Path| {
        std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(path).unwrap()) * 512
    };
    assert!(
        space(&ours) <= space(&theirs) + 64 * KIB,
        "{} {}",
        space(&ours),
        space(&theirs)
    );
}

#[test]
fn chains_compressed_and_larger_copies_are_whole() {
    require!(qemu_img());
    let ground = Ground::new();
    let raw = source(&ground);
    let compressed = ground.path("compressed.qcow2");
    qemu(&[
        &"convert",
        &"-c",
        &"-f",
        &"raw",
        &"-O",
        &"qcow2",
        &raw,
        &compressed,
    ]);
    let top = ground.path("top.qcow2");
    let mut options = qcow2(SIZE, Preallocation::Off);
    options.qcow2.backing = Some(BackingFile {
        name: "compressed.qcow2".into(),
        format: "qcow2".into(),
    });
    create(&top, &options);
    let copy = ground.path("copy.qcow2");
    converted(&top, &copy, &qcow2(2 * SIZE, Preallocation::Full));
    assert_checks(&copy);
    assert_reads_same((&copy, "qcow2"), (&raw, "raw"));
    let info = qemu_json(&[&"info", &"--output=json", &copy]);
    assert_eq!(info["virtual-size"], 2 * SIZE);
    assert!(info.get("backing-filename").is_none());
}

#[test]
fn copy_that_cannot_be_is_refused_and_leaves_nothing() {
    let ground = Ground::new();
    let raw = source(&ground);
    let layer = open_path(&raw, None, Follow::Nothing).unwrap();
    let make = |options: &ImageOptions| {
        Conversion::new(&layer, options, CopyOptions::default())
            .err()
            .unwrap()
    };
    let smaller = qcow2(MIB, Preallocation::Off);
    assert_eq!(make(&smaller).kind(), ErrorKind::InvalidArgument);
    let mut backed = qcow2(SIZE, Preallocation::Off);
    backed.qcow2.backing = Some(BackingFile {
        name: "b".into(),
        format: "raw".into(),
    });
    assert_eq!(make(&backed).kind(), ErrorKind::Unsupported);
    let cancel = CancelToken::new();
    let sink = |_: Progress| cancel.cancel();
    let file = extant_hostfs::CreateOptions::new(1);
    let image = ground.path("a.qcow2");
    for preallocation in Preallocation::ALL {
        let options = qcow2(SIZE, preallocation);
        let copy = CopyOptions {
            threads: 2,
            rate: std::num::NonZeroU64::new(1 << 20),
        };
        let control = Control::new(&cancel, &sink);
        let error = convert(&layer, &image, &options, &file, copy, control).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        assert!(!image.exists() && !ground.path(".a.qcow2.extant-filling").exists());
    }
}

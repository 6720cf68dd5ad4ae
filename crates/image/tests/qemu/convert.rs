//! Copies: every format and mode into every other, and QEMU's images into ours.

use std::path::Path;

use extant_image::{
    BackingFile, Conversion, CopyOptions, Format, ImageOptions, Preallocation, ReferencedFiles,
    convert, open_path,
};
use extant_space::{CancelToken, Control, ErrorKind, ExtentState, Progress};
use extant_testkit::oracle::{filefrag, filefrag_count};
use extant_testkit::require;
use extant_testkit::requires::tool;
use extant_testkit::scratch::{Filesystem, Scratch};

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
    let layer = open_path(from, None, ReferencedFiles::Open).unwrap();
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
            let layer = open_path(&image, None, ReferencedFiles::Ignore).unwrap();
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
            let layer = open_path(&again, Some(Format::Raw), ReferencedFiles::Ignore).unwrap();
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
        let layer = open_path(path, None, ReferencedFiles::Ignore).unwrap();
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
fn copy_of_many_threads_is_few_extents_and_leaves_written_zeros_out() {
    require!(Filesystem::Ext4.requirement());
    const DATA: usize = 130 << 20;
    let scratch = Scratch::new(Filesystem::Ext4, 512 * MIB);
    let ground = Ground::new();
    let raw = ground.path("source.raw");
    let mut bytes: Vec<u8> = (0..DATA).map(|at| (at / 512 % 251) as u8 + 1).collect();
    let zeros = 20 << 20..30 << 20;
    bytes[zeros.clone()].fill(0);
    std::fs::write(&raw, &bytes).unwrap();
    let copy = scratch.path().join("copy.raw");
    let layer = open_path(&raw, Some(Format::Raw), ReferencedFiles::Ignore).unwrap();
    let options = ImageOptions::new(Format::Raw, DATA as u64);
    let threads = CopyOptions {
        threads: 8,
        ..CopyOptions::default()
    };
    let file = extant_hostfs::CreateOptions::new(1);
    silent(|control| convert(&layer, &copy, &options, &file, threads, control)).unwrap();
    assert!(std::fs::read(&copy).unwrap() == bytes);
    let map = filefrag(&copy);
    assert_eq!(map.bytes(ExtentState::Written), (DATA - zeros.len()) as u64);
    assert_eq!(map.bytes(ExtentState::Unwritten), 0);
    // Three allocations, and one more piece for the hole; the file system may have room in pieces.
    let extents = filefrag_count(&copy);
    assert!(extents <= 12, "{extents} extents");
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
fn copy_over_a_backing_file_has_only_differing_clusters() {
    require!(qemu_img(), tool("qemu-io"));
    let ground = Ground::new();
    let raw = source(&ground);
    // Longer than the disk at first, and with data where the disk has zeros; then shorter.
    for (base_bytes, compat) in [(SIZE + 3 * MIB, "1.1"), (SIZE / 2, "0.10")] {
        for cluster_bytes in [512, 64 * KIB, 2 * MIB] {
            let base = ground.path("base.qcow2");
            let size = (base_bytes / 512 * 512).to_string();
            qemu(&[&"create", &"-q", &"-f", &"qcow2", &base, &size]);
            let mut whole = std::fs::read(&raw).unwrap();
            whole.resize(base_bytes as usize / 512 * 512, 0xab);
            let part = ground.path("part.raw");
            std::fs::write(&part, whole).unwrap();
            qemu(&[
                &"convert", &"-n", &"-f", &"raw", &"-O", &"qcow2", &part, &base,
            ]);
            qemu_io(
                &base,
                "qcow2",
                &["write -P 9 150k 10k", "write -P 9 700k 100k"],
            );
            let mut options = qcow2(2 * SIZE, Preallocation::Off);
            options.qcow2.cluster_bytes = cluster_bytes;
            if compat == "0.10" {
                options.qcow2.version = extant_image::format::Version::V2;
            }
            options.qcow2.backing = Some(BackingFile {
                name: "base.qcow2".into(),
                format: "qcow2".into(),
            });
            let top = ground.path("top.qcow2");
            converted(&raw, &top, &options);
            assert_checks(&top);
            let long = ground.path("long.raw");
            let mut bytes = std::fs::read(&raw).unwrap();
            bytes.resize(2 * SIZE as usize, 0);
            std::fs::write(&long, bytes).unwrap();
            assert_reads_same((&top, "qcow2"), (&long, "raw"));
            let layer = open_path(&top, None, ReferencedFiles::Ignore).unwrap();
            let mapped = layer.info().unwrap().states.mapped;
            let most = 120 * KIB + 4 * cluster_bytes;
            // Behind the end of the shorter one all data differs.
            let behind = if base_bytes < SIZE { SIZE } else { 0 };
            assert!(mapped <= most + behind, "{cluster_bytes}: {mapped}");
            let info = qemu_json(&[&"info", &"--output=json", &top]);
            assert_eq!(info["backing-filename"], "base.qcow2");
            std::fs::remove_file(&top).unwrap();
            std::fs::remove_file(&base).unwrap();
        }
    }
}

#[test]
fn copy_that_cannot_be_is_refused_and_leaves_nothing() {
    let ground = Ground::new();
    let raw = source(&ground);
    let layer = open_path(&raw, None, ReferencedFiles::Ignore).unwrap();
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
            ..CopyOptions::default()
        };
        let control = Control::new(&cancel, &sink);
        let error = convert(&layer, &image, &options, &file, copy, control).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        assert!(!image.exists() && !ground.path(".a.qcow2.extant-filling").exists());
    }
}

#[test]
fn thin_copy_of_a_full_image_ends_with_its_data() {
    require!(qemu_img(), tool("qemu-io"));
    let ground = Ground::new();
    let (full, thin) = (ground.path("full.qcow2"), ground.path("thin.qcow2"));
    create(&full, &qcow2(64 * MIB, Preallocation::Full));
    for (writes, file_bytes_max) in [
        (&[][..], MIB),
        (&["write -P 1 2M 1M"][..], 5 * MIB),
        (&["write -P 1 2M 1M", "write -P 2 62M 64k"], 66 * MIB),
    ] {
        qemu_io(&full, "qcow2", writes);
        let mut again = qcow2(64 * MIB, Preallocation::Off);
        again.qcow2.cluster_bytes = 64 * KIB;
        let _ = std::fs::remove_file(&thin);
        converted(&full, &thin, &again);
        let file_bytes = std::fs::metadata(&thin).unwrap().len();
        assert!(file_bytes <= file_bytes_max, "{writes:?}: {file_bytes}");
        assert_checks(&thin);
        assert_reads_same((&full, "qcow2"), (&thin, "qcow2"));
        // QEMU continues after that end.
        qemu_io(&thin, "qcow2", &["write -P 3 32M 3M"]);
        assert_checks(&thin);
    }
}

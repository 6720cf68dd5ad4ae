//! Images of QEMU, read, mapped and checked by us.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use extant_hostfs::{Access, CreateOptions, HostFile};
use extant_image::format::{Extensions, Header};
use extant_image::{
    CheckReport, CopyOptions, Format, ImageExtent, Layer, Preallocation, ReferencedFiles, check,
    convert, open_path, repair_leaks,
};
use extant_space::{ByteRange, ErrorKind};
use extant_testkit::requires::tool;
use extant_testkit::{command, require};
use serde_json::Value;

use crate::support::*;

/// Bytes that the tests' images have.
const SIZE: u64 = 5 * MIB + 512;

/// Makes an image with qemu-img.
#[track_caller]
fn made(image: &Path, words: &str, more: &[&str]) {
    let mut command = command::tool("qemu-img");
    command.args(["create", "-q", "-f", "qcow2"]);
    if !words.is_empty() {
        command.args(["-o", words]);
    }
    command.args(more).arg(image);
    if !more.contains(&"-b") {
        command.arg(SIZE.to_string());
    }
    command::run(&mut command).unwrap_or_else(|failure| panic!("{failure}"));
}

const WRITES: [&str; 5] = [
    "write -P 1 0 64k",
    "write -P 2 200k 300k",
    "write -P 3 1M 1M",
    "write -z 1100k 128k",
    "write -P 4 5M 512",
];

fn layer(image: &Path) -> Layer {
    open_path(image, None, ReferencedFiles::Open).unwrap_or_else(|error| panic!("{error}"))
}

fn extents(layer: &Layer) -> Vec<ImageExtent> {
    let mut extents = Vec::new();
    let all = ByteRange::new(0, layer.virtual_bytes());
    layer
        .for_each_extent(all, &mut |extent| {
            extents.push(extent);
            Ok(std::ops::ControlFlow::Continue(()))
        })
        .unwrap();
    extents
}

/// The map equals QEMU's, and reports at least as many zeros.
#[track_caller]
fn assert_same_map(image: &Path) {
    let layer = layer(image);
    let format = layer.format().name();
    let theirs = qemu_json(&[&"map", &"--output=json", &"-f", &format, &image]);
    let ours = extents(&layer);
    let mut at = 0;
    for extent in &ours {
        assert_eq!(extent.guest.start(), at);
        at = extent.guest.end();
    }
    assert_eq!(at, layer.virtual_bytes());
    for entry in theirs.as_array().unwrap() {
        let number = |name: &str| entry[name].as_u64();
        let start = number("start").unwrap();
        let range = ByteRange::new(start, start + number("length").unwrap());
        for extent in &ours {
            let Some(common) = extent.guest.intersection(range) else {
                continue;
            };
            let what = format!("{extent:?}\n{entry}\n{theirs}");
            assert_eq!(entry["data"], extent.is_data, "{what}");
            assert_eq!(entry["present"], extent.is_present, "{what}");
            assert_eq!(number("depth").unwrap(), u64::from(extent.depth), "{what}");
            assert!(extent.is_zero || entry["zero"] == false, "{what}");
            let moved = |offset: u64, from: u64| offset + (common.start() - from);
            assert_eq!(
                number("offset").map(|offset| moved(offset, start)),
                extent
                    .offset
                    .map(|offset| moved(offset, extent.guest.start())),
                "{what}"
            );
        }
    }
}

/// We read the same bytes as QEMU.
#[track_caller]
fn assert_same_bytes(ground: &Ground, image: &Path) {
    let layer = layer(image);
    let raw = ground.path("as-raw");
    let format = layer.format().name();
    qemu(&[&"convert", &"-f", &format, &"-O", &"raw", &image, &raw]);
    let theirs = std::fs::read(&raw).unwrap();
    assert_eq!(theirs.len() as u64, layer.virtual_bytes());
    let mut ours = vec![0xee; theirs.len()];
    // Odd pieces, across clusters.
    let piece = 100_003;
    for (index, part) in ours.chunks_mut(piece).enumerate() {
        layer.read_at(part, (index * piece) as u64).unwrap();
    }
    assert!(ours == theirs, "{}", image.display());
    std::fs::remove_file(&raw).unwrap();
}

pub fn checked(image: &Path) -> CheckReport {
    let file = Arc::new(HostFile::open_read(image).unwrap());
    silent(|control| check(file, 100, control)).unwrap()
}

/// Our check counts the same errors as QEMU's.
#[track_caller]
fn assert_same_check(image: &Path) -> CheckReport {
    let ours = checked(image);
    let mut command = command::tool("qemu-img");
    command
        .args(["check", "--output=json", "-f", "qcow2"])
        .arg(image);
    let output = command::run_any_status(&mut command).unwrap();
    let theirs: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", command::describe(&output)));
    let number = |name: &str| theirs[name].as_u64().unwrap_or(0);
    let what = format!("{ours:?}\n{theirs}");
    assert_eq!(number("corruptions"), ours.corruptions, "{what}");
    assert_eq!(number("leaks"), ours.leaks, "{what}");
    assert_eq!(number("total-clusters"), ours.total_clusters, "{what}");
    assert_eq!(
        number("allocated-clusters"),
        ours.allocated_clusters,
        "{what}"
    );
    assert_eq!(
        number("compressed-clusters"),
        ours.compressed_clusters,
        "{what}"
    );
    assert_eq!(number("image-end-offset"), ours.image_end_bytes, "{what}");
    ours
}

/// Everything that is asked of an image that QEMU made.
#[track_caller]
fn assert_understood(ground: &Ground, image: &Path) {
    assert_same_map(image);
    assert_same_bytes(ground, image);
    let report = assert_same_check(image);
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn images_of_every_option_are_understood() {
    require!(qemu_img(), tool("qemu-io"));
    let ground = Ground::new();
    let image = ground.path("a.qcow2");
    for words in [
        "",
        "compat=0.10",
        "cluster_size=512,refcount_bits=1",
        "cluster_size=4k,refcount_bits=64",
        "cluster_size=2M,refcount_bits=2",
        "preallocation=metadata",
        "preallocation=falloc,cluster_size=4k",
        "preallocation=full,compat=0.10",
        "lazy_refcounts=on",
    ] {
        made(&image, words, &[]);
        // Files of QEMU may end inside a cluster.
        assert_same_map(&image);
        assert_same_check(&image);
        qemu_io(&image, "qcow2", &WRITES);
        assert_understood(&ground, &image);
        let info = layer(&image).info().unwrap();
        assert_eq!(info.virtual_bytes, SIZE);
        std::fs::remove_file(&image).unwrap();
    }
}

#[test]
fn preallocation_is_reported_as_found() {
    require!(qemu_img());
    let ground = Ground::new();
    for preallocation in Preallocation::ALL {
        let (ours, theirs) = (ground.path("ours.qcow2"), ground.path("theirs.qcow2"));
        create(&ours, &qcow2(SIZE, preallocation));
        made(&theirs, &format!("preallocation={preallocation}"), &[]);
        for image in [&ours, &theirs] {
            let info = layer(image).info().unwrap();
            assert_eq!(info.preallocation, preallocation, "{info:?}");
            std::fs::remove_file(image).unwrap();
        }
    }
}

fn base(ground: &Ground, size: u64) -> PathBuf {
    let base = ground.path("base.raw");
    let bytes: Vec<u8> = (0..size).map(|at| (at / 4096 % 251) as u8).collect();
    std::fs::write(&base, bytes).unwrap();
    base
}

#[test]
fn chains_are_read_where_they_are_allowed_and_not_else() {
    require!(qemu_img(), tool("qemu-io"));
    let ground = Ground::new();
    base(&ground, 3 * MIB + 1024);
    let (middle, top) = (ground.path("middle.qcow2"), ground.path("top.qcow2"));
    made(&middle, "cluster_size=4k", &["-b", "base.raw", "-F", "raw"]);
    qemu_io(
        &middle,
        "qcow2",
        &["write -P 9 100k 50k", "write -z 300k 64k"],
    );
    made(&top, "", &["-b", "middle.qcow2", "-F", "qcow2"]);
    qemu(&[&"resize", &"-q", &"-f", &"qcow2", &top, &"5M"]);
    qemu_io(&top, "qcow2", &["write -P 8 1M 64k"]);
    assert_same_map(&top);
    assert_same_bytes(&ground, &top);
    let alone = open_path(&top, None, ReferencedFiles::Ignore).unwrap();
    let error = alone.check_complete().unwrap_err();
    assert!(error.to_string().contains("middle.qcow2"), "{error}");
    alone.read_at(&mut [0; 4096], MIB).unwrap();
    let error = alone.read_at(&mut [0; 4096], 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    // A chain that leads to itself ends.
    qemu(&[
        &"rebase",
        &"-u",
        &"-q",
        &"-f",
        &"qcow2",
        &"-b",
        &"top.qcow2",
        &"-F",
        &"qcow2",
        &middle,
    ]);
    assert!(open_path(&top, None, ReferencedFiles::Open).is_err());
}

/// Writes an extension before those of the header. There is no backing file, or its name is stored
/// behind the extensions.
fn insert_extension(image: &Path, kind: u32, data: &[u8]) {
    let mut bytes = std::fs::read(image).unwrap();
    let word = |bytes: &[u8], at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let (name, start) = (word(&bytes, 12), word(&bytes, 100) as usize);
    let mut added = [kind.to_be_bytes(), (data.len() as u32).to_be_bytes()].concat();
    added.extend(data);
    added.resize(added.len().next_multiple_of(8), 0);
    if name > 0 {
        bytes[12..16].copy_from_slice(&(name + added.len() as u32).to_be_bytes());
    }
    bytes.copy_within(start..4096 - added.len(), start + added.len());
    bytes[start..][..added.len()].copy_from_slice(&added);
    std::fs::write(image, bytes).unwrap();
}

#[test]
fn last_extension_of_a_type_is_valid_as_in_qemu() {
    require!(qemu_img(), tool("qemu-io"));
    let ground = Ground::new();
    let (base, image) = (ground.path("base.qcow2"), ground.path("a.qcow2"));
    made(&base, "", &[]);
    qemu_io(&base, "qcow2", &WRITES);
    made(&image, "", &["-b", "base.qcow2", "-F", "qcow2"]);
    insert_extension(&image, Extensions::BACKING_FORMAT, b"raw");
    assert_same_map(&image);
    assert_same_bytes(&ground, &image);
    let info = layer(&image).info().unwrap().qcow2.unwrap();
    assert_eq!(info.backing_format.as_deref(), Some("qcow2"));
    std::fs::remove_file(&image).unwrap();

    let data = ground.path("data.raw");
    made(&image, &format!("data_file={}", data.display()), &[]);
    qemu_io(&image, "qcow2", &WRITES);
    insert_extension(&image, Extensions::DATA_FILE, b"/does/not/exist");
    assert_same_map(&image);
    assert_same_bytes(&ground, &image);
    std::fs::remove_file(&image).unwrap();

    made(&image, "", &[]);
    qemu(&[&"bitmap", &"--add", &image, &"bits"]);
    let whole = std::fs::read(&image).unwrap();
    // Two bitmaps in a directory at the start of a cluster that has another use.
    let mut other = [0; 24];
    (other[3], other[15], other[21]) = (2, 32, 1);
    insert_extension(&image, Extensions::BITMAPS, &other);
    assert!(assert_same_check(&image).is_clean());
    // The reserved field of an extension that is not the last.
    std::fs::write(&image, &whole).unwrap();
    other[7] = 1;
    insert_extension(&image, Extensions::BITMAPS, &other);
    let mut theirs = command::tool("qemu-img");
    theirs.args(["check", "-f", "qcow2"]).arg(&image);
    let status = command::run_any_status(&mut theirs).unwrap().status;
    assert!(!status.success());
    assert!(checked(&image).corruptions > 0);
}

#[test]
fn empty_name_of_a_backing_file_means_none_as_in_qemu() {
    require!(qemu_img(), tool("qemu-io"));
    let ground = Ground::new();
    base(&ground, SIZE);
    let image = ground.path("a.qcow2");
    made(&image, "", &["-b", "base.raw", "-F", "raw"]);
    qemu_io(&image, "qcow2", &WRITES);
    let mut bytes = std::fs::read(&image).unwrap();
    // backing_file_size
    bytes[16..20].fill(0);
    std::fs::write(&image, &bytes).unwrap();
    assert_understood(&ground, &image);
    assert_eq!(layer(&image).header().unwrap().backing_file, None);
}

#[test]
fn compressed_clusters_are_read() {
    require!(qemu_img());
    let ground = Ground::new();
    let base = base(&ground, SIZE);
    let image = ground.path("a.qcow2");
    for words in [
        "compression_type=zlib",
        "compression_type=zstd",
        "compression_type=zlib,cluster_size=4k",
        "compat=0.10",
    ] {
        qemu(&[
            &"convert", &"-c", &"-f", &"raw", &"-O", &"qcow2", &"-o", &words, &base, &image,
        ]);
        assert_understood(&ground, &image);
        assert!(checked(&image).compressed_clusters > 0);
        std::fs::remove_file(&image).unwrap();
    }
}

#[test]
fn data_files_snapshots_and_bitmaps_are_counted() {
    require!(qemu_img(), tool("qemu-io"));
    let ground = Ground::new();
    for words in ["", ",data_file_raw=on", ",preallocation=falloc"] {
        let (image, data) = (ground.path("a.qcow2"), ground.path("a.data"));
        made(&image, &format!("data_file={}{words}", data.display()), &[]);
        qemu_io(&image, "qcow2", &WRITES);
        assert_understood(&ground, &image);
        std::fs::remove_file(&image).unwrap();
        std::fs::remove_file(&data).unwrap();
    }
    let image = ground.path("s.qcow2");
    made(&image, "cluster_size=4k", &[]);
    qemu_io(&image, "qcow2", &WRITES);
    qemu(&[&"snapshot", &"-c", &"one", &image]);
    qemu_io(&image, "qcow2", &["write -P 5 32k 64k"]);
    qemu(&[&"snapshot", &"-c", &"two", &image]);
    qemu(&[&"bitmap", &"--add", &image, &"bits"]);
    qemu_io(&image, "qcow2", &["write -P 6 0 8k"]);
    assert_understood(&ground, &image);
    let info = layer(&image).info().unwrap().qcow2.unwrap();
    assert!(info.has_bitmaps);
    let names: Vec<_> = info.snapshots.iter().map(|one| &*one.name).collect();
    assert_eq!(names, ["one", "two"]);
    assert_eq!(info.snapshots[0].virtual_bytes, Some(SIZE));
}

#[test]
fn damage_is_counted_as_qemu_counts_it_and_leaks_are_repaired() {
    require!(qemu_img(), tool("qemu-io"));
    let ground = Ground::new();
    let image = ground.path("a.qcow2");
    let whole = {
        made(&image, "cluster_size=64k", &[]);
        qemu_io(&image, "qcow2", &WRITES);
        std::fs::read(&image).unwrap()
    };
    let file = HostFile::open_read(&image).unwrap();
    let header = Header::read(&file).unwrap();
    let word = |at: u64| u64::from_be_bytes(whole[at as usize..][..8].try_into().unwrap());
    let l2 = word(header.l1_offset) & 0x00ff_ffff_ffff_fe00;
    let block = word(header.refcount_table_offset);
    let last = whole.len() as u64 / (64 * KIB) - 1;
    let cases: [(&str, u64, Vec<u8>); 10] = [
        ("a leak behind all uses", l2 + 80 * 8, vec![0; 8]),
        ("a count too high", block + last * 2, vec![0, 2]),
        ("a count too low", block + last * 2, vec![0, 0]),
        ("a leak", l2, vec![0; 8]),
        (
            "copied on no single use",
            l2,
            (word(l2) & !(1 << 63)).to_be_bytes().to_vec(),
        ),
        (
            "a cluster used twice",
            l2 + 8,
            word(l2).to_be_bytes().to_vec(),
        ),
        (
            "an offset inside a cluster",
            l2,
            (word(l2) | 0x200).to_be_bytes().to_vec(),
        ),
        (
            "an offset past the end",
            l2,
            (1_u64 << 63 | 1 << 40).to_be_bytes().to_vec(),
        ),
        ("L1 not copied", header.l1_offset, l2.to_be_bytes().to_vec()),
        (
            "an L2 table inside a cluster",
            header.l1_offset,
            (l2 + 0x200).to_be_bytes().to_vec(),
        ),
    ];
    for (what, at, wrong) in cases {
        let mut bytes = whole.clone();
        bytes[at as usize..][..wrong.len()].copy_from_slice(&wrong);
        std::fs::write(&image, &bytes).unwrap();
        let ours = checked(&image);
        let output = command::run_any_status(
            command::tool("qemu-img")
                .args(["check", "--output=json", "-f", "qcow2"])
                .arg(&image),
        )
        .unwrap();
        let theirs: Value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        let number = |name: &str| theirs[name].as_u64().unwrap_or(0);
        let shown = format!("{what}: {ours:?}\n{}", command::describe(&output));
        assert_eq!(number("corruptions") > 0, ours.corruptions > 0, "{shown}");
        assert_eq!(number("leaks") > 0, ours.leaks > 0, "{shown}");
        assert_eq!(number("image-end-offset"), ours.image_end_bytes, "{shown}");
        assert!(!ours.is_clean(), "{shown}");
        let file = Arc::new(HostFile::open(&image, Access::ReadWrite).unwrap());
        match silent(|control| repair_leaks(file, control)) {
            // Copied flags follow their counts.
            Ok(count) => {
                assert!(ours.leaks > 0 && count <= ours.leaks, "{shown}");
                assert_checks(&image);
            }
            Err(error) => {
                assert!(ours.corruptions > 0, "{error}: {shown}");
                assert!(std::fs::read(&image).unwrap() == bytes, "{shown}");
            }
        }
    }
    // Unused clusters are freed.
    let mut bytes = whole.clone();
    bytes[l2 as usize..][..8].fill(0);
    std::fs::write(&image, &bytes).unwrap();
    let file = Arc::new(HostFile::open(&image, Access::ReadWrite).unwrap());
    assert_eq!(silent(|control| repair_leaks(file, control)).unwrap(), 1);
    assert_checks(&image);
}

#[test]
fn cluster_past_the_largest_file_is_zeros_as_in_qemu() {
    require!(qemu_img(), tool("qemu-io"));
    let ground = Ground::new();
    let (image, copy) = (ground.path("a.qcow2"), ground.path("copy.qcow2"));
    made(&image, "", &[]);
    qemu_io(&image, "qcow2", &WRITES);
    let mut bytes = std::fs::read(&image).unwrap();
    let header = Header::read(&HostFile::open_read(&image).unwrap()).unwrap();
    let word = |at: u64| u64::from_be_bytes(bytes[at as usize..][..8].try_into().unwrap());
    let l2 = word(header.l1_offset) & 0x00ff_ffff_ffff_fe00;
    // The largest offsets of an entry. ext4 has files of 16 TiB, XFS of 8 EiB.
    for (index, offset) in [(3, 1_u64 << 55), (17, 0x00ff_ffff_ffff_0000)] {
        let at = (l2 + index * 8) as usize;
        bytes[at..at + 8].copy_from_slice(&(1 << 63 | offset).to_be_bytes());
    }
    std::fs::write(&image, &bytes).unwrap();
    assert_same_map(&image);
    assert_same_bytes(&ground, &image);
    assert!(layer(&image).info().unwrap().states.hole > 0);
    let options = qcow2(SIZE, Preallocation::Off);
    let (file, copies) = (CreateOptions::new(1), CopyOptions::default());
    silent(|control| convert(&layer(&image), &copy, &options, &file, copies, control)).unwrap();
    assert_reads_same((&copy, "qcow2"), (&image, "qcow2"));
}

#[test]
fn hostile_tables_are_errors_and_findings_with_a_place() {
    let ground = Ground::new();
    let image = ground.path("a.qcow2");
    let mut options = qcow2(64 * MIB, Preallocation::Metadata);
    options.qcow2.cluster_bytes = 4096;
    create(&image, &options);
    // A sparse file of almost 8 EiB with the header of an image.
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(&image)
        .unwrap();
    if file.set_len(1 << 43).is_ok() {
        let file = Arc::new(HostFile::open_read(&image).unwrap());
        let error = silent(|control| check(file, 10, control)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
    }
    file.set_len(8 * MIB).unwrap();
    let report = checked(&image);
    assert!(report.corruptions > 0 && report.findings.len() <= 100);
    let layer = open_path(&image, Some(Format::Qcow2), ReferencedFiles::Ignore).unwrap();
    // Data behind the end of the file reads as zeros.
    let mut bytes = [1; 4096];
    layer.read_at(&mut bytes, 63 * MIB).unwrap();
    assert_eq!(bytes, [0; 4096]);
    // No table is left.
    file.set_len(20 * KIB).unwrap();
    match open_path(&image, None, ReferencedFiles::Ignore) {
        Ok(layer) => assert_eq!(
            layer.read_at(&mut bytes, 0).unwrap_err().kind(),
            ErrorKind::Corrupt
        ),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt),
    }
}

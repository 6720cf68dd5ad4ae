//! A file in an ext4 file system in a thin qcow2 image in a file of the host: `fallocate` inside is
//! an allocation on the host, in as few extents, by the maps of qemu-img and filefrag.

use std::path::Path;
use std::sync::Arc;

use extant_blockdev::{Device, Persistence};
use extant_ext4::Assign;
use extant_image::Format;
use extant_image::device::{DeviceOptions, ImageDevice};
use extant_space::{ByteRange, Extent, FallocateMode, SpaceFile, SyncMode};
use extant_testkit::oracle::filefrag;
use extant_testkit::oracle::qemu::{assert_checks, qemu, qemu_img, qemu_json};
use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::{mke2fs, require, requires};

use crate::{MIB, make, open};

const FILE: u64 = 256 * MIB;
const PIECE: u64 = 16 << 10;
const CLUSTER: u64 = 64 << 10;
/// Without copies of the superblock, which interrupt free space.
const ONE_SUPERBLOCK: [&str; 4] = ["-O", "sparse_super2", "-E", "num_backup_sb=0"];

fn options() -> DeviceOptions {
    DeviceOptions {
        format: Some(Format::Qcow2),
        ..DeviceOptions::default()
    }
}

/// A new file system of `bytes` in a disk.
fn format(disk: &ImageDevice, bytes: u64) {
    let options = ["-t ext4 -b 4096", &ONE_SUPERBLOCK.join(" ")].join(" ");
    let pieces = mke2fs(&options, bytes);
    for (at, piece) in (0..).zip(pieces.chunks(CLUSTER as usize)) {
        if piece.iter().any(|&byte| byte != 0) {
            disk.write_at(piece, at * CLUSTER, Persistence::Cached)
                .unwrap();
        }
    }
}

/// Allocates a file, and writes all of it in random order.
fn fill(filesystem: &extant_ext4::Filesystem) -> Vec<Extent> {
    let file = make(filesystem, "file");
    let whole = ByteRange::new(0, FILE);
    file.fallocate(FallocateMode::Allocate, whole).unwrap();
    let mut pieces: Vec<u64> = (0..FILE / PIECE).collect();
    fastrand::Rng::with_seed(9).shuffle(&mut pieces);
    for (number, piece) in pieces.into_iter().enumerate() {
        let bytes = (piece + 1).to_le_bytes().repeat(PIECE as usize / 8);
        file.write_at(&bytes, piece * PIECE).unwrap();
        if number % 1000 == 999 {
            file.sync(SyncMode::Data).unwrap();
        }
    }
    file.sync(SyncMode::All).unwrap();
    file.extents(whole).unwrap()
}

fn joined(places: impl IntoIterator<Item = ByteRange>) -> Vec<ByteRange> {
    let mut pieces: Vec<ByteRange> = Vec::new();
    for place in places {
        match pieces.last_mut() {
            Some(last) if last.end() == place.start() => {
                *last = ByteRange::new(last.start(), place.end());
            }
            _ => pieces.push(place),
        }
    }
    pieces
}

fn places(extents: &[Extent]) -> Vec<ByteRange> {
    let place = |extent: &Extent| {
        let start = extent.physical.expect("it has a place");
        ByteRange::new(start, start + extent.logical.len())
    };
    joined(extents.iter().map(place))
}

/// The bytes of the image's file that hold `ranges` of its disk, by qemu-img.
fn in_image(path: &Path, ranges: &[ByteRange]) -> Vec<ByteRange> {
    let map = qemu_json(&[&"map", &"-f", &"qcow2", &"--output=json", &path]);
    let mut found = Vec::new();
    for range in ranges {
        for run in map.as_array().unwrap() {
            let number = |name: &str| run[name].as_u64();
            let (start, length) = (number("start").unwrap(), number("length").unwrap());
            let run = ByteRange::new(start, start + length);
            if let Some(part) = run.intersection(*range) {
                let at = number("offset").expect("mapped") + (part.start() - start);
                found.push(ByteRange::new(at, at + part.len()));
            }
        }
    }
    joined(found)
}

/// The bytes of the host's disk that hold `ranges` of a file, by filefrag.
fn on_disk(path: &Path, ranges: &[ByteRange]) -> Vec<ByteRange> {
    let extents = filefrag(path).extents;
    let parts = ranges
        .iter()
        .flat_map(|range| extents.iter().filter_map(|extent| extent.clip(*range)));
    let places = places(&parts.collect::<Vec<_>>());
    let there: u64 = places.iter().map(|place| place.len()).sum();
    let all: u64 = ranges.iter().map(|range| range.len()).sum();
    assert_eq!(there, all, "all of it has a place on the host");
    places
}

/// Extents of the host's disk that hold the file.
fn extents_on_host(assign: Assign) -> Vec<ByteRange> {
    let host = Scratch::builder(Filesystem::Ext4, 1024 * MIB)
        .mkfs_options(&ONE_SUPERBLOCK)
        .build();
    let path = host.path().join("disk.qcow2");
    let size = 512 * MIB;
    let bytes = size.to_string();
    qemu(&[&"create", &"-q", &"-f", &"qcow2", &path, &bytes]);
    let disk = Arc::new(ImageDevice::open(&path, &options()).unwrap());
    format(&disk, size);
    let filesystem = open(disk.clone(), assign);
    let guest = places(&fill(&filesystem));
    filesystem.close().unwrap();
    drop(disk);
    assert_checks(&path);
    let image = in_image(&path, &guest);
    on_disk(&path, &image)
}

#[test]
fn file_in_an_image_in_a_host_file_has_three_extents_on_the_host_at_most() {
    require!(
        requires::root(),
        Filesystem::Ext4.requirement(),
        qemu_img(),
        requires::tool("mke2fs"),
        requires::tool("filefrag")
    );
    let allocated = extents_on_host(Assign::Require);
    assert!(allocated.len() <= 3, "{allocated:?}");
    // Clusters in the order of the writes, which is random.
    let on_demand = extents_on_host(Assign::Off).len();
    assert!(on_demand > 100, "{on_demand}");
}

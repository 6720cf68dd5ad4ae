//! Space: its reports, how it is freed, and behaviour without any.

use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use extant_blockdev::{
    Assigned, Device, Features, LoopDevice, LoopOptions, MemoryDevice, Persistence, RangeStatus,
    ZeroedSpace, Zeroing,
};
use extant_ext4 as ext4;
use extant_hostfs::{Access, HostFile};
use extant_image::device::{DeviceOptions, ImageAccess, ImageDevice};
use extant_space::{ByteRange, ErrorKind, ExtentFlags, ExtentState, SpaceFile};
use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::{mke2fs, require, requires};

use crate::support::{
    Ground, KIB, MIB, assert_checks, assert_checks_in_use, assert_reads, followed, open, open_with,
    pattern, qcow2_options, qemu, qemu_img, read, write,
};

const CLUSTER: u64 = 64 * KIB;

fn clusters(range: std::ops::Range<u64>) -> ByteRange {
    ByteRange::new(range.start * CLUSTER, range.end * CLUSTER)
}

/// Runs of one status, in clusters.
fn status(device: &impl Device) -> Vec<(std::ops::Range<u64>, RangeStatus)> {
    let mut runs: Vec<(std::ops::Range<u64>, RangeStatus)> = Vec::new();
    let take = &mut |range: ByteRange, status| {
        let range = range.start() / CLUSTER..range.end().div_ceil(CLUSTER);
        match runs.last_mut() {
            Some((last, same)) if *same == status => last.end = range.end,
            _ => runs.push((range, status)),
        }
        ControlFlow::Continue(())
    };
    device.status(device.geometry().range(), take).unwrap();
    runs
}

fn state_at(device: &impl Device, cluster: u64) -> (ExtentState, ExtentFlags) {
    let mut found = None;
    let first = ByteRange::new(cluster * CLUSTER, cluster * CLUSTER + 512);
    let take = &mut |extent: extant_space::Extent| {
        found.get_or_insert((extent.state, extent.flags));
        ControlFlow::Continue(())
    };
    device.extents(first, take).unwrap();
    found.expect("an extent")
}

fn allocated_bytes(path: &Path) -> u64 {
    File::open(path).unwrap().metadata().unwrap().blocks() * 512
}

#[test]
fn status_and_extents_include_the_layers_below() {
    require!(qemu_img());
    let ground = Ground::new();
    let path = ground.qcow2("image.qcow2", "", 16 * CLUSTER);
    let image = open(&path);
    write(&image, 0, &pattern(0, 2 * CLUSTER, 1));
    image
        .write_zeroes(clusters(4..6), Zeroing::ALLOCATED)
        .unwrap();
    image.write_zeroes(clusters(8..10), Zeroing::ANY).unwrap();
    assert_eq!(image.assign(clusters(12..14)).unwrap(), Assigned::Done);
    image.flush().unwrap();
    let data = status(&image);
    let holes: Vec<_> = data
        .iter()
        .filter(|(_, status)| *status == RangeStatus::Hole)
        .cloned()
        .collect();
    let range = |(range, _): &(std::ops::Range<u64>, RangeStatus)| range.clone();
    assert_eq!(
        holes.iter().map(range).collect::<Vec<_>>(),
        [2..4, 6..12, 14..16],
        "{data:?}"
    );
    assert_eq!(data[0], (0..2, RangeStatus::Data));
    if image.geometry().features.contains(Features::EXTENTS) {
        let none = ExtentFlags::empty();
        assert_eq!(state_at(&image, 0), (ExtentState::Written, none));
        assert_eq!(state_at(&image, 3), (ExtentState::Hole, none));
        assert_eq!(state_at(&image, 8), (ExtentState::Hole, none));
        assert_eq!(state_at(&image, 13), (ExtentState::Unwritten, none));
    }
    drop(image);
    assert_checks(&path);
}

#[test]
fn compressed_and_shared_clusters_are_reported() {
    require!(qemu_img());
    let ground = Ground::new();
    let raw = ground.path("a.raw");
    std::fs::write(&raw, pattern(0, 4 * CLUSTER, 1)).unwrap();
    let path = ground.path("a.qcow2");
    qemu(&[
        &"convert", &"-c", &"-f", &"raw", &"-O", &"qcow2", &raw, &path,
    ]);
    let image = open(&path);
    write(&image, 0, &[7; 512]);
    drop(image);
    qemu(&[&"snapshot", &"-c", &"one", &path]);
    let image = open(&path);
    assert_eq!(
        state_at(&image, 0),
        (ExtentState::Written, ExtentFlags::SHARED)
    );
    assert_eq!(
        state_at(&image, 1),
        (ExtentState::Written, ExtentFlags::ENCODED)
    );
}

#[test]
fn assigned_clusters_lie_in_one_run_and_keep_data() {
    require!(qemu_img());
    let ground = Ground::new();
    let path = ground.qcow2("image.qcow2", "", 64 * MIB);
    let image = open(&path);
    let data = pattern(0, CLUSTER, 3);
    write(&image, 5 * CLUSTER, &data);
    for _ in 0..2 {
        assert_eq!(
            image.assign(ByteRange::new(0, 64 * MIB)).unwrap(),
            Assigned::Done
        );
    }
    assert_eq!(read(&image, 5 * CLUSTER, CLUSTER), data);
    drop(image);
    assert_checks(&path);
    let map = qemu(&[&"map", &"-f", &"qcow2", &path]);
    let info = qemu(&[&"check", &"-f", &"qcow2", &path]);
    assert!(
        info.contains("1024/1024 = 100.00% allocated"),
        "{info}{map}"
    );
    // Before, behind and instead of the one that was there: three runs at most.
    let offsets: Vec<u64> = runs_of(&path);
    assert!(offsets.len() <= 3, "{offsets:x?}");
}

/// File offsets of the runs of the image.
fn runs_of(path: &Path) -> Vec<u64> {
    let map = qemu(&[&"map", &"-f", &"qcow2", &"--output=json", &path]);
    let map: serde_json::Value = serde_json::from_str(&map).unwrap();
    let runs = map.as_array().unwrap().iter();
    let mut end = None;
    let mut starts = Vec::new();
    for run in runs {
        let offset = run["offset"].as_u64();
        let length = run["length"].as_u64().unwrap();
        if let Some(offset) = offset {
            if end != Some(offset) {
                starts.push(offset);
            }
            end = Some(offset + length);
        }
    }
    starts
}

#[test]
fn discarded_clusters_give_their_space_back_and_are_used_again() {
    require!(qemu_img());
    let ground = Ground::new();
    let path = ground.qcow2("image.qcow2", "", 32 * MIB);
    let image = open(&path);
    write(&image, 0, &pattern(0, 16 * MIB, 1));
    image.flush().unwrap();
    let full = allocated_bytes(&path);
    image.discard(ByteRange::new(0, 16 * MIB)).unwrap();
    image.flush().unwrap();
    assert!(allocated_bytes(&path) < full - 15 * MIB, "{full}");
    write(&image, 16 * MIB, &pattern(0, 16 * MIB, 2));
    image.flush().unwrap();
    assert_eq!(read(&image, 0, MIB), vec![0; MIB as usize]);
    drop(image);
    assert_checks(&path);
    // Nothing was appended to the file.
    assert!(std::fs::metadata(&path).unwrap().len() < 18 * MIB);
    // Another opening finds the freed clusters by a scan.
    let image = open(&path);
    image.discard(ByteRange::new(16 * MIB, 32 * MIB)).unwrap();
    drop(image);
    assert_checks(&path);
    let image = open(&path);
    write(&image, 0, &pattern(0, 16 * MIB, 3));
    drop(image);
    assert_checks(&path);
    assert!(std::fs::metadata(&path).unwrap().len() < 18 * MIB);
    let mut bytes = pattern(0, 16 * MIB, 3);
    bytes.resize(32 * MIB as usize, 0);
    assert_reads(&path, &bytes);
}

#[test]
fn zeroes_that_must_stay_allocated_take_space() {
    require!(qemu_img());
    let ground = Ground::new();
    let path = ground.qcow2("image.qcow2", "", 8 * MIB);
    let image = open(&path);
    let zeroing = Zeroing {
        space: ZeroedSpace::Allocated,
        ..Zeroing::ANY
    };
    image
        .write_zeroes(ByteRange::new(0, 4 * MIB), zeroing)
        .unwrap();
    image.flush().unwrap();
    assert!(allocated_bytes(&path) >= 4 * MIB);
    image
        .write_zeroes(ByteRange::new(0, 4 * MIB), Zeroing::ANY)
        .unwrap();
    image.flush().unwrap();
    assert!(allocated_bytes(&path) < 2 * MIB);
    drop(image);
    assert_checks(&path);
}

#[test]
fn full_disk_fails_writes_alone_and_later_ones_succeed() {
    require!(requires::root(), Filesystem::Ext4.requirement(), qemu_img());
    let scratch = Scratch::new(Filesystem::Ext4, 24 * MIB);
    for cluster in ["4k", "64k"] {
        let path = scratch.path().join(format!("{cluster}.qcow2"));
        let options = format!("cluster_size={cluster}");
        qemu(&[
            &"create", &"-q", &"-f", &"qcow2", &"-o", &options, &path, &"1G",
        ]);
        let image = open(&path);
        let mut random = fastrand::Rng::with_seed(5);
        let (mut written, mut failures) = (Vec::new(), 0);
        for number in 0..4000 {
            // Far from each other, so that L2 tables are needed as well.
            let offset = random.u64(..GIB / (16 * KIB)) * 16 * KIB;
            match image.write_at(
                &pattern(offset, 16 * KIB, number),
                offset,
                Persistence::Cached,
            ) {
                Ok(()) => written.push((offset, number)),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                    failures += 1;
                }
            }
            if number % 500 == 499 {
                image.flush().unwrap();
            }
        }
        assert!(failures > 100 && written.len() > 100, "{failures}");
        image.flush().unwrap();
        assert_checks_in_use(&path);
        for (offset, number) in written.iter().rev().take(50) {
            let is_last = |other: &&(u64, u64)| other.0 == *offset;
            let (_, last) = written.iter().rev().find(is_last).expect("itself");
            assert_eq!(
                read(&image, *offset, 16 * KIB),
                pattern(*offset, 16 * KIB, *last),
                "{number}"
            );
        }
        // Space is freed, and writing continues.
        let (given_back, kept) = written.split_at(written.len() / 2);
        let kept_offsets: Vec<u64> = kept.iter().map(|(offset, _)| *offset).collect();
        for (offset, _) in given_back
            .iter()
            .filter(|(offset, _)| !kept_offsets.contains(offset))
        {
            image
                .discard(ByteRange::new(*offset, offset + CLUSTER))
                .unwrap();
        }
        image.flush().unwrap();
        for number in 0..20 {
            let offset = number * 64 * KIB;
            image
                .write_at(&pattern(offset, 4096, 9), offset, Persistence::Cached)
                .unwrap();
        }
        image.flush().unwrap();
        drop(image);
        assert_checks(&path);
        std::fs::remove_file(&path).unwrap();
    }
}

const GIB: u64 = 1 << 30;

#[test]
fn image_in_a_file_without_a_path_is_read_and_written() {
    require!(qemu_img());
    let ground = Ground::new();
    let path = ground.qcow2("image.qcow2", "cluster_size=4k", 4 * MIB);
    let file = Arc::new(HostFile::open(&path, Access::ReadWrite).unwrap());
    let store = Arc::new(LoopDevice::new(file, LoopOptions::default()).unwrap());
    let image = ImageDevice::open_store(store, &qcow2_options()).unwrap();
    let bytes = pattern(0, 4 * MIB, 4);
    write(&image, 0, &bytes);
    drop(image);
    assert_checks(&path);
    assert_reads(&path, &bytes);
}

#[test]
fn image_inside_an_ext4_file_system_is_read_and_written() {
    require!(qemu_img(), requires::tool("mke2fs"));
    let ground = Ground::new();
    let path = ground.qcow2("image.qcow2", "", 8 * MIB);
    let disk = MemoryDevice::new(64 * MIB);
    disk.write_at(&mke2fs("-t ext4", 64 * MIB), 0, Persistence::Cached)
        .unwrap();
    let filesystem = ext4::Filesystem::open(Arc::new(disk), ext4::Options::default()).unwrap();
    let new = ext4::NewNode {
        kind: ext4::NewKind::Regular,
        permissions: 0o644,
        uid: 0,
        gid: 0,
        umask: 0,
    };
    let node = filesystem
        .root()
        .unwrap()
        .create(b"image.qcow2", &new)
        .unwrap();
    let file = Arc::new(node.file().unwrap());
    file.write_at(&std::fs::read(&path).unwrap(), 0).unwrap();
    let store = LoopDevice::new(file.clone(), LoopOptions::default()).unwrap();
    let image = ImageDevice::open_store(Arc::new(store), &qcow2_options()).unwrap();
    let mut bytes = pattern(0, 8 * MIB, 4);
    write(&image, 0, &bytes);
    image.discard(ByteRange::new(2 * MIB, 5 * MIB)).unwrap();
    bytes[2 << 20..5 << 20].fill(0);
    image.flush().unwrap();
    assert_eq!(
        state_at(&image, 0),
        (ExtentState::Written, ExtentFlags::empty())
    );
    assert_eq!(read(&image, 0, 8 * MIB), bytes);
    drop(image);
    let mut contents = vec![0; file.size().unwrap() as usize];
    file.read_at(&mut contents, 0).unwrap();
    std::fs::write(&path, contents).unwrap();
    assert_checks(&path);
    assert_reads(&path, &bytes);
}

#[test]
fn chain_of_backing_files_reads_through_to_the_last() {
    require!(qemu_img());
    let ground = Ground::new();
    let base = ground.path("base.raw");
    std::fs::write(&base, pattern(0, MIB + 512, 1)).unwrap();
    ground.qcow2(
        "middle.qcow2",
        "backing_file=base.raw,backing_fmt=raw",
        2 * MIB,
    );
    let top = ground.qcow2(
        "top.qcow2",
        "backing_file=middle.qcow2,backing_fmt=qcow2",
        4 * MIB,
    );
    let image = open_with(&top, &followed());
    write(&image, 100 * KIB, &[9; 4096]);
    let mut expected = pattern(0, MIB + 512, 1);
    expected.resize(4 * MIB as usize, 0);
    expected[100 * 1024..][..4096].fill(9);
    assert_eq!(read(&image, 0, 4 * MIB), expected);
    assert_eq!(
        state_at(&image, 0),
        (ExtentState::Written, ExtentFlags::SHARED)
    );
    assert_eq!(
        state_at(&image, 3 * MIB / CLUSTER),
        (ExtentState::Hole, ExtentFlags::empty())
    );
    let told = status(&image);
    assert_eq!(told.last().unwrap().1, RangeStatus::Hole, "{told:?}");
    drop(image);
    assert_checks(&top);
    assert_reads(&top, &expected);
}

#[test]
fn file_that_ends_inside_a_cluster_reads_as_zeros_behind_its_end() {
    require!(qemu_img());
    let ground = Ground::new();
    let path = ground.qcow2("image.qcow2", "", 4 * MIB);
    let image = open(&path);
    write(&image, 0, &[5; 512]);
    write(&image, CLUSTER, &pattern(0, 4096, 1));
    drop(image);
    let file = File::options().write(true).open(&path).unwrap();
    let end = file.metadata().unwrap().len();
    // The second cluster is the last; its remainder ends inside a sector.
    file.set_len(end - CLUSTER + 1000).unwrap();
    let mut expected = vec![0; CLUSTER as usize];
    expected[..512].fill(5);
    expected.extend(pattern(0, 1000, 1));
    expected.resize(2 * CLUSTER as usize, 0);
    let read_only = DeviceOptions {
        access: ImageAccess::ReadOnly,
        ..qcow2_options()
    };
    let image = open_with(&path, &read_only);
    assert_eq!(read(&image, 0, 2 * CLUSTER), expected);
    assert_eq!(status(&image)[0].1, RangeStatus::Data);
    drop(image);
    let image = open(&path);
    assert_eq!(read(&image, 0, 2 * CLUSTER), expected);
    write(&image, CLUSTER + 8192, &[1; 512]);
    drop(image);
    assert_checks(&path);
}

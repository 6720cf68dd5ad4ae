//! Images directly on a disk, which does not read as zeros and keeps its size.

use std::path::Path;

use extant_blockdev::{Device, Persistence};
use extant_hostfs::{CreateOptions, Existing, Pace};
use extant_image::device::ImageDevice;
use extant_image::{
    Format, ImageFile, ImageInfo, ImageOptions, Layer, Preallocation, ReferencedFiles,
    ResizeOptions, ResizeReport, create, materialize, open_path, resize,
};
use extant_space::{CancelToken, Control, ErrorKind, Result, Silent, SpaceFile};
use extant_testkit::oracle::qemu::qemu_io;
use extant_testkit::scratch::{DirectIo, LoopDevice};
use extant_testkit::{require, requires};

use crate::support::{
    Ground, MIB, assert_checks, assert_reads, open, pattern, qcow2_options, qemu_img, read, write,
};

const DISK: u64 = 48 * MIB;
const SIZE: u64 = 24 * MIB;

fn silent<T>(work: impl FnOnce(Control<'_>) -> T) -> T {
    work(Control::new(&CancelToken::new(), &Silent))
}

fn made(disk: &Path, virtual_bytes: u64, preallocation: Preallocation, force: bool) -> Result<()> {
    let mut options = ImageOptions::new(Format::Qcow2, virtual_bytes);
    options.preallocation = preallocation;
    made_with(disk, &options, force)
}

fn made_with(disk: &Path, options: &ImageOptions, force: bool) -> Result<()> {
    let mut file = CreateOptions::new(1);
    if force {
        file.existing = Existing::Replace;
    }
    silent(|control| create(disk, options, &file, control)).map(drop)
}

fn resized(disk: &Path, bytes: u64, preallocation: Option<Preallocation>) -> Result<ResizeReport> {
    let target = ImageFile::host(disk, Pace::Full)?;
    let options = ResizeOptions {
        preallocation,
        may_shrink: true,
    };
    silent(|control| resize(&target, Format::Qcow2, bytes, &options, control))
}

fn made_full(disk: &Path) -> Result<()> {
    let target = ImageFile::host(disk, Pace::Full)?;
    silent(|control| materialize(&target, Format::Qcow2, control)).map(drop)
}

fn info(disk: &Path) -> ImageInfo {
    let layer = open_path(disk, Some(Format::Qcow2), ReferencedFiles::Ignore).unwrap();
    layer.info().unwrap()
}

/// QEMU finds the image clean, and reads these bytes in it.
#[track_caller]
fn assert_holds(ground: &Ground, disk: &Path, bytes: &[u8]) {
    assert_checks(disk);
    let copy = ground.path("copy.qcow2");
    std::fs::write(&copy, std::fs::read(disk).unwrap()).unwrap();
    assert_reads(&copy, bytes);
}

#[test]
fn image_on_a_disk_that_held_something_else_reads_as_it_was_written() {
    require!(qemu_img(), requires::root());
    for preallocation in Preallocation::ALL {
        let ground = Ground::new();
        let file = ground.path("disk");
        std::fs::write(&file, vec![0xee; DISK as usize]).unwrap();
        let disk = LoopDevice::attach(&file);
        made(disk.path(), SIZE, preallocation, true).unwrap();
        assert_checks(disk.path());
        let mut bytes = vec![0; SIZE as usize];
        for round in 0..2 {
            let image = open(disk.path());
            assert_eq!(image.geometry().size, SIZE);
            assert!(read(&image, 0, SIZE) == bytes, "{preallocation} {round}");
            for at in (round..20).step_by(3) {
                let data = pattern(at * MIB, MIB / 2, round);
                write(&image, at * MIB + 512, &data);
                let start = (at * MIB + 512) as usize;
                bytes[start..start + data.len()].copy_from_slice(&data);
            }
            image.flush().unwrap();
            drop(image);
            assert_checks(disk.path());
        }
        let file = extant_hostfs::HostFile::open_read(disk.path()).unwrap();
        assert_eq!(file.size().unwrap(), DISK);
        let layer = Layer::open(std::sync::Arc::new(file), Format::Qcow2).unwrap();
        let mut found = vec![1; SIZE as usize];
        layer.read_at(&mut found, 0).unwrap();
        assert!(found == bytes, "{preallocation}");
        assert_holds(&ground, disk.path(), &bytes);
    }
}

#[test]
fn image_on_a_disk_is_resized_and_made_full_and_shows_nothing_old() {
    require!(qemu_img(), requires::tool("qemu-io"), requires::root());
    for (sector_bytes, cluster_bytes) in [(512, 65_536), (4096, 512), (4096, 2 << 20)] {
        for preallocation in Preallocation::ALL {
            let what = format!("sectors of {sector_bytes}, {cluster_bytes}, {preallocation}");
            let ground = Ground::new();
            let file = ground.path("disk");
            std::fs::write(&file, vec![0xee; DISK as usize]).unwrap();
            let disk = LoopDevice::attach_with(&file, DirectIo::Off, sector_bytes);
            let mut options = ImageOptions::new(Format::Qcow2, 4 * MIB);
            options.preallocation = preallocation;
            options.qcow2.cluster_bytes = cluster_bytes;
            made_with(disk.path(), &options, true).unwrap();
            qemu_io(disk.path(), "qcow2", &["write -P 1 1M 2M"]);
            let mut bytes = vec![0; 4 << 20];
            bytes[1 << 20..3 << 20].fill(1);
            // Its current mode is kept; mapped clusters have their space on a disk.
            let kept = info(disk.path()).preallocation;
            if preallocation != Preallocation::Off {
                assert_eq!(kept, Preallocation::Full, "{what}");
            }
            for (size, asked) in [
                (6 * MIB + 512, None),
                (3 * MIB + 512, None),
                (5 * MIB + 4096, Some(Preallocation::Full)),
                (2 * MIB + 512, None),
                (7 * MIB, Some(Preallocation::Metadata)),
                (8 * MIB, Some(Preallocation::Off)),
            ] {
                let report = resized(disk.path(), size, asked)
                    .unwrap_or_else(|error| panic!("{what} {size}: {error}"));
                assert_eq!(report.new_bytes, size);
                if asked.is_none() && size > report.old_bytes {
                    assert_eq!(report.preallocation, kept, "{what} {size}");
                }
                bytes.resize(size as usize, 0);
                assert_holds(&ground, disk.path(), &bytes);
            }
            made_full(disk.path()).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_holds(&ground, disk.path(), &bytes);
            let found = info(disk.path());
            assert_eq!(found.preallocation, Preallocation::Full, "{what}");
            assert_eq!(found.states.written, 8 * MIB, "{what}");
            assert_eq!(found.file_bytes, DISK, "{what}");
            // Clusters of their own: QEMU writes to them where they are.
            qemu_io(disk.path(), "qcow2", &["write -P 2 6M 2M"]);
            bytes[6 << 20..8 << 20].fill(2);
            assert_holds(&ground, disk.path(), &bytes);
        }
    }
}

#[test]
fn image_on_a_disk_grows_as_far_as_the_disk_has_room() {
    require!(qemu_img(), requires::tool("qemu-io"), requires::root());
    let ground = Ground::new();
    let file = ground.path("disk");
    std::fs::write(&file, vec![0xee; DISK as usize]).unwrap();
    let disk = LoopDevice::attach(&file);
    made(disk.path(), SIZE, Preallocation::Full, true).unwrap();
    qemu_io(disk.path(), "qcow2", &["write -P 1 20M 4M"]);
    let mut bytes = vec![0; SIZE as usize];
    bytes[20 << 20..].fill(1);
    let before = std::fs::read(disk.path()).unwrap();
    let error = resized(disk.path(), 2 * DISK, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(error.to_string().contains("missing"), "{error}");
    assert!(std::fs::read(disk.path()).unwrap() == before);
    // A thin image may exceed the disk; it cannot become fully allocated.
    resized(disk.path(), 2 * DISK, Some(Preallocation::Off)).unwrap();
    bytes.resize(2 * DISK as usize, 0);
    assert_holds(&ground, disk.path(), &bytes);
    let error = made_full(disk.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert_holds(&ground, disk.path(), &bytes);
    // Space freed by a smaller disk is used again.
    for _ in 0..3 {
        resized(disk.path(), MIB, None).unwrap();
        bytes.truncate(1 << 20);
        resized(disk.path(), DISK - MIB, Some(Preallocation::Full)).unwrap();
        bytes.resize((DISK - MIB) as usize, 0);
        assert_holds(&ground, disk.path(), &bytes);
    }
    assert_eq!(info(disk.path()).states.written, DISK - MIB);
}

#[test]
fn disk_in_use_is_not_changed() {
    require!(qemu_img(), requires::root());
    let ground = Ground::new();
    let file = ground.path("disk");
    std::fs::write(&file, vec![0xee; DISK as usize]).unwrap();
    let disk = LoopDevice::attach(&file);
    made(disk.path(), SIZE, Preallocation::Off, true).unwrap();
    let served = open(disk.path());
    for error in [
        resized(disk.path(), DISK, None).unwrap_err(),
        made_full(disk.path()).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    }
    drop(served);
    resized(disk.path(), DISK, None).unwrap();
}

#[test]
fn disk_is_overwritten_only_when_that_is_said_and_the_image_fits() {
    require!(qemu_img(), requires::root());
    let ground = Ground::new();
    let file = ground.path("disk");
    let before = vec![0xee; DISK as usize];
    std::fs::write(&file, &before).unwrap();
    let disk = LoopDevice::attach(&file);
    let error = made(disk.path(), SIZE, Preallocation::Off, false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    let error = made(disk.path(), DISK, Preallocation::Full, true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(std::fs::read(disk.path()).unwrap() == before);
    // A thin one may be larger; writes that no longer fit are refused, and the rest is unchanged.
    made(disk.path(), 2 * DISK, Preallocation::Off, true).unwrap();
    let held = open(disk.path());
    let error = made(disk.path(), SIZE, Preallocation::Off, true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse);
    let data = pattern(0, MIB, 1);
    let mut at = 0;
    let error = loop {
        match held.write_at(&data, at * MIB, Persistence::Cached) {
            Ok(()) => at += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(at * MIB > DISK - 4 * MIB, "{at}");
    held.flush().unwrap();
    drop(held);
    assert_checks(disk.path());
    let image = ImageDevice::open(disk.path(), &qcow2_options()).unwrap();
    for number in 0..at {
        assert!(read(&image, number * MIB, MIB) == data, "{number}");
    }
}

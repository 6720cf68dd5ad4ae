//! Images that lie directly on a disk, which is not zeros and keeps its size.

use std::path::Path;

use extant_blockdev::{Device, Persistence};
use extant_hostfs::{CreateOptions, Existing, Pace};
use extant_image::device::ImageDevice;
use extant_image::{Format, ImageOptions, Layer, Preallocation, Target, create, materialize};
use extant_space::{CancelToken, Control, ErrorKind, Result, Silent, SpaceFile};
use extant_testkit::scratch::LoopDevice;
use extant_testkit::{require, requires};

use crate::support::{
    Ground, MIB, assert_checks, assert_reads, open, pattern, qcow2_options, qemu_img, read, write,
};

const DISK: u64 = 48 * MIB;
const SIZE: u64 = 24 * MIB;

fn made(disk: &Path, virtual_bytes: u64, preallocation: Preallocation, force: bool) -> Result<()> {
    let mut options = ImageOptions::new(Format::Qcow2, virtual_bytes);
    options.preallocation = preallocation;
    let mut file = CreateOptions::new(1);
    if force {
        file.existing = Existing::Replace;
    }
    let (cancel, silent) = (CancelToken::new(), Silent);
    create(disk, &options, &file, Control::new(&cancel, &silent)).map(drop)
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
        let target = Target::host(disk.path(), Pace::Full).unwrap();
        let cancel = CancelToken::new();
        let control = Control::new(&cancel, &Silent);
        let error = materialize(&target, Format::Qcow2, control).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        drop(target);
        let file = extant_hostfs::HostFile::open_read(disk.path()).unwrap();
        assert_eq!(file.size().unwrap(), DISK);
        let layer = Layer::open(std::sync::Arc::new(file), Format::Qcow2).unwrap();
        let mut found = vec![1; SIZE as usize];
        layer.read_at(&mut found, 0).unwrap();
        assert!(found == bytes, "{preallocation}");
        let copy = ground.path("copy.qcow2");
        std::fs::write(&copy, std::fs::read(disk.path()).unwrap()).unwrap();
        assert_reads(&copy, &bytes);
    }
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
    // A thin one may be larger; what does not fit any more is refused, and the rest stays.
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

//! Power cuts while a file of an ext4 file system in a qcow2 image gets space that is written in
//! every layer: the file system, the image, the device below.

use std::ops::ControlFlow;
use std::sync::Arc;

use extant_blockdev::simulation::{CrashDevice, CrashOptions};
use extant_blockdev::{Device, MemoryDevice, Persistence};
use extant_ext4::{DeviceZeroes, File, Filesystem, NewKind, NewNode, Options};
use extant_image::device::ImageDevice;
use extant_provision::{Provisioner, Shared};
use extant_space::{
    ByteRange, CancelToken, Control, ExtentState, FallocateMode, Silent, SpaceFile, SyncMode,
};
use extant_testkit::oracle::assert_e2fsck_clean;
use extant_testkit::{mke2fs, require, requires};

use crate::power;
use crate::support::{Ground, KIB, MIB, pattern, qcow2_options, qemu_img};

const DISK: u64 = 4 * MIB;
const FILE: u64 = 192 * KIB;
/// Data in the file before it is written through.
const DATA: u64 = 70 * KIB;
const DATA_BYTES: u64 = 30 * KIB;

fn open(image: Arc<ImageDevice>, zeroes: DeviceZeroes) -> Filesystem {
    let options = Options {
        zeroes,
        ..Options::default()
    };
    Filesystem::open(image, options).unwrap()
}

fn file(filesystem: &Filesystem, name: &str) -> Option<File> {
    let node = filesystem.root().unwrap().lookup(name.as_bytes());
    node.ok().map(|node| node.file().unwrap())
}

fn make(filesystem: &Filesystem, name: &str) -> File {
    let new = NewNode {
        kind: NewKind::Regular,
        permissions: 0o644,
        uid: 0,
        gid: 0,
        umask: 0,
    };
    let root = filesystem.root().unwrap();
    root.create(name.as_bytes(), &new).unwrap().file().unwrap()
}

fn materialize(file: &File) {
    let (cancel, reporter) = (CancelToken::new(), Silent);
    let control = Control::new(&cancel, &reporter);
    let whole = ByteRange::new(0, FILE);
    Provisioner::new(file, whole, control)
        .materialize(Shared::Refuse)
        .unwrap_or_else(|error| panic!("{error}"));
}

/// An image with a file system, whose file is written in the file system only.
fn base(ground: &Ground, cluster: &str) -> MemoryDevice {
    let path = ground.qcow2("image.qcow2", &format!("cluster_size={cluster}"), DISK);
    let image = Arc::new(ImageDevice::open(&path, &qcow2_options()).unwrap());
    let made = mke2fs("-t ext4 -b 1024 -J size=1 -N 64", DISK);
    for (at, piece) in (0..).step_by(4 << 10).zip(made.chunks(4 << 10)) {
        if piece.iter().any(|&byte| byte != 0) {
            image.write_at(piece, at, Persistence::Cached).unwrap();
        }
    }
    let filesystem = open(image.clone(), DeviceZeroes::MayUnmap);
    let file = make(&filesystem, "named");
    file.fallocate(FallocateMode::WriteZeroes, ByteRange::new(0, FILE))
        .unwrap();
    file.write_at(&pattern(DATA, DATA_BYTES, 1), DATA).unwrap();
    file.sync(SyncMode::All).unwrap();
    drop(file);
    filesystem.close().unwrap();
    drop(image);
    let device = MemoryDevice::new(power::FILE);
    let bytes = std::fs::read(&path).unwrap();
    for (at, piece) in (0..).step_by(4 << 10).zip(bytes.chunks(4 << 10)) {
        if piece.iter().any(|&byte| byte != 0) {
            device.write_at(piece, at, Persistence::Cached).unwrap();
        }
    }
    device
}

/// Bytes of the file that some layer below holds no written space for.
fn missing_below(file: &File) -> u64 {
    let mut missing = 0;
    file.for_each_extent_below(ByteRange::new(0, FILE), &mut |found| {
        if found.extent.state != ExtentState::Written {
            missing += found.extent.logical.len();
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    missing
}

fn contents(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.size().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn space_written_through_an_image_survives_every_power_cut() {
    require!(
        qemu_img(),
        requires::tool("mke2fs"),
        requires::tool("e2fsck")
    );
    for cluster in ["4k", "64k"] {
        let ground = Ground::new();
        let disk = power::file_of(CrashDevice::new(base(&ground, cluster)));
        let mut data = vec![0; FILE as usize];
        data[DATA as usize..][..DATA_BYTES as usize].copy_from_slice(&pattern(DATA, DATA_BYTES, 1));
        {
            let image = ImageDevice::open_store(disk.clone(), &qcow2_options()).unwrap();
            let filesystem = open(Arc::new(image), DeviceZeroes::Written);
            let named = file(&filesystem, "named").unwrap();
            assert!(
                missing_below(&named) > FILE / 2,
                "{}",
                missing_below(&named)
            );
            materialize(&named);
            disk.device.mark("1");
            let new = make(&filesystem, "new");
            new.fallocate(FallocateMode::WriteZeroes, ByteRange::new(0, FILE))
                .unwrap();
            new.sync(SyncMode::All).unwrap();
            disk.device.mark("2");
            drop((named, new));
            filesystem.close().unwrap();
        }
        let options = CrashOptions {
            states_max: 12,
            ..CrashOptions::seeded(3)
        };
        let (mut cuts, mut found) = (0, 0);
        for crash in disk.device.log().crashes(options) {
            cuts += 1;
            let what = format!("{cluster}: {crash}");
            power::assert_never_corrupt(&crash, &what);
            let promised = crash
                .mark()
                .map_or(0, |mark| mark.parse::<usize>().unwrap());
            let left = power::file_of(crash.image.snapshot());
            let image = Arc::new(ImageDevice::open_store(left, &qcow2_options()).unwrap());
            let filesystem = open(image.clone(), DeviceZeroes::Written);
            for (number, name) in ["named", "new"].into_iter().enumerate() {
                let Some(file) = file(&filesystem, name) else {
                    assert!(number == 1 && promised < 2, "{name} is gone: {what}");
                    continue;
                };
                let before = contents(&file);
                let is_whole = before.len() as u64 == FILE;
                let is_right = match number {
                    0 => before == data,
                    _ => before.iter().all(|&byte| byte == 0),
                };
                assert!(is_right, "{name} shows something else: {what}");
                if number < promised {
                    assert!(is_whole, "{name} is cut: {what}");
                    assert_eq!(missing_below(&file), 0, "{name}: {what}");
                } else if is_whole {
                    found += usize::from(missing_below(&file) > 0);
                }
                materialize(&file);
                assert!(contents(&file) == before, "{name} has changed: {what}");
                assert!(!is_whole || missing_below(&file) == 0, "{name}: {what}");
            }
            filesystem.close().unwrap();
            if cuts % 100 == 1 {
                let mut bytes = vec![0; DISK as usize];
                image.read_at(&mut bytes, 0).unwrap();
                let path = ground.path("inside");
                std::fs::write(&path, bytes).unwrap();
                assert_e2fsck_clean(&path);
            }
        }
        println!("{cluster}: {cuts} cuts, {found} files not written below yet");
        assert!(cuts >= 100 && found >= 20, "{cluster}: {cuts}, {found}");
    }
}

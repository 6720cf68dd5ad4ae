//! The stack of ASSIGN_RANGE (docs/background.md) with a qcow2 image in the place of the loop
//! device: a device in memory, our ext4 engine, a qcow2 image in a file of it, the engine again on
//! the disk in the image, a file in that. Space allocated for the innermost file is allocated at
//! every level.
//! `host`: the same over a file of the host.

mod host;

use std::ops::ControlFlow;
use std::sync::Arc;

use extant_blockdev::{Device, LoopDevice, LoopOptions, MemoryDevice, Persistence};
use extant_ext4::{Assign, File, Filesystem, NewKind, NewNode, Options};
use extant_image::device::{DeviceOptions, ImageDevice};
use extant_image::{Format, ImageExtent, ImageOptions, Layer, NewImage, Preallocation};
use extant_space::{ByteRange, CancelToken, Control, FallocateMode, Silent, SpaceFile, SyncMode};
use extant_testkit::command::{run, tool};
use extant_testkit::oracle::assert_e2fsck_clean;
use extant_testkit::workdir::Workdir;
use extant_testkit::{mke2fs, require, requires};

const MIB: u64 = 1 << 20;
const OUTER: u64 = 256 * MIB;
const INNER: u64 = 96 * MIB;
const FILE: u64 = 32 * MIB;
const BLOCK: u64 = 4096;
const STRIDE: u64 = 16 * BLOCK;
const MKE2FS: &str = "-t ext4 -b 4096";

fn open(device: Arc<dyn Device>, assign: Assign) -> Filesystem {
    let options = Options {
        assign,
        ..Options::default()
    };
    Filesystem::open(device, options).unwrap()
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

fn file(filesystem: &Filesystem, name: &str) -> Arc<File> {
    let node = filesystem.root().unwrap().lookup(name.as_bytes()).unwrap();
    Arc::new(node.file().unwrap())
}

fn image(outer: &Filesystem) -> Arc<ImageDevice> {
    let below = LoopDevice::new(file(outer, "disk.qcow2"), LoopOptions::default()).unwrap();
    let options = DeviceOptions {
        format: Some(Format::Qcow2),
        ..DeviceOptions::default()
    };
    Arc::new(ImageDevice::open_store(Arc::new(below), &options).unwrap())
}

/// A device with all of it, but for the file inside.
fn build(preallocation: Preallocation) -> Arc<MemoryDevice> {
    let ground = Arc::new(MemoryDevice::from_bytes(&mke2fs(MKE2FS, OUTER)));
    let outer = open(ground.clone(), Assign::Try);
    let mut options = ImageOptions::new(Format::Qcow2, INNER);
    options.preallocation = preallocation;
    let new = NewImage::new(&options).unwrap();
    let cancel = CancelToken::new();
    let target = make(&outer, "disk.qcow2");
    target.resize(new.file_bytes()).unwrap();
    if preallocation == Preallocation::Falloc {
        let whole = ByteRange::new(0, new.file_bytes());
        target.fallocate(FallocateMode::Allocate, whole).unwrap();
    }
    new.write_metadata(&target, Control::new(&cancel, &Silent))
        .unwrap();
    drop(target);
    let disk = image(&outer);
    for (at, piece) in mke2fs(MKE2FS, INNER).chunks(MIB as usize).enumerate() {
        if piece.iter().any(|&byte| byte != 0) {
            disk.write_at(piece, at as u64 * MIB, Persistence::Cached)
                .unwrap();
        }
    }
    drop(disk);
    outer.close().unwrap();
    ground
}

/// Works on the file inside, and closes everything.
fn inside(ground: &Arc<MemoryDevice>, assign: Assign, work: impl FnOnce(&Filesystem)) {
    let outer = open(ground.clone(), Assign::Try);
    let disk = image(&outer);
    let inner = open(disk.clone(), assign);
    work(&inner);
    inner.close().unwrap();
    disk.flush().unwrap();
    drop(disk);
    outer.close().unwrap();
}

/// Ranges of the inner file on the device; `None` if a part of it is not allocated.
fn places(ground: &Arc<MemoryDevice>) -> Option<Vec<ByteRange>> {
    let mut guest = Vec::new();
    let inner_places = |inner: &Filesystem| {
        for extent in file(inner, "file")
            .extents(ByteRange::new(0, FILE))
            .unwrap()
        {
            let start = extent.physical.expect("it is allocated inside");
            guest.push(ByteRange::new(start, start + extent.logical.len()));
        }
    };
    inside(&Arc::new(ground.snapshot()), Assign::Off, inner_places);
    let outer = open(Arc::new(ground.snapshot()), Assign::Off);
    let below = file(&outer, "disk.qcow2");
    let layer = Layer::open(below.clone(), Format::Qcow2).unwrap();
    let mut pieces: Vec<ByteRange> = Vec::new();
    let mut mapped = Vec::new();
    for range in guest {
        let visit = &mut |extent: ImageExtent| {
            mapped.push((extent.offset, extent.guest.len()));
            Ok(ControlFlow::Continue(()))
        };
        layer.for_each_extent(range, visit).unwrap();
    }
    for (offset, length) in mapped {
        let offset = offset?;
        let range = ByteRange::new(offset, offset + length);
        for extent in below.extents(range).unwrap() {
            let start = extent.physical?;
            let end = start + extent.logical.len();
            match pieces.last_mut() {
                Some(last) if last.end() == start => *last = ByteRange::new(last.start(), end),
                _ => pieces.push(ByteRange::new(start, end)),
            }
        }
    }
    Some(pieces)
}

/// The program of ASSIGN_RANGE (docs/background.md): 4 KiB at a stride of 64 KiB, from the last
/// offset down to the first, with a sync after each pass.
fn write_all_over(file: &File) {
    for pass in 0..STRIDE / BLOCK {
        let first = STRIDE - (pass + 1) * BLOCK;
        for offset in (first..FILE).step_by(STRIDE as usize) {
            file.write_at(&block(offset), offset).unwrap();
        }
        file.sync(SyncMode::All).unwrap();
    }
}

fn block(offset: u64) -> Vec<u8> {
    (offset + 1).to_le_bytes().repeat(BLOCK as usize / 8)
}

/// No check finds an error at any level.
fn assert_clean(ground: &Arc<MemoryDevice>) {
    let work = Workdir::new();
    let path = |name: &str| work.path().join(name);
    let mut bytes = vec![0; OUTER as usize];
    ground.read_at(&mut bytes, 0).unwrap();
    std::fs::write(path("outer"), bytes).unwrap();
    assert_e2fsck_clean(&path("outer"));
    let outer = open(ground.clone(), Assign::Off);
    let below = file(&outer, "disk.qcow2");
    let mut bytes = vec![0; below.size().unwrap() as usize];
    below.read_at(&mut bytes, 0).unwrap();
    std::fs::write(path("disk.qcow2"), bytes).unwrap();
    let must = |command: &mut std::process::Command| {
        run(command).unwrap_or_else(|failure| panic!("{failure}"));
    };
    must(
        tool("qemu-img")
            .args(["check", "-q", "-f", "qcow2"])
            .arg(path("disk.qcow2")),
    );
    must(
        tool("qemu-img")
            .args(["convert", "-f", "qcow2", "-O", "raw"])
            .args([path("disk.qcow2"), path("inner")]),
    );
    assert_e2fsck_clean(&path("inner"));
}

#[test]
fn file_inside_a_qcow2_image_has_its_place_below_and_writes_add_no_pieces() {
    require!(
        requires::tool("mke2fs"),
        requires::tool("e2fsck"),
        requires::tool("qemu-img")
    );
    let whole = ByteRange::new(0, FILE);
    for preallocation in Preallocation::ALL {
        if preallocation == Preallocation::Full {
            // There is nothing left to give.
            continue;
        }
        let ground = build(preallocation);
        inside(&ground, Assign::Require, |inner| {
            let file = make(inner, "file");
            file.fallocate(FallocateMode::Allocate, whole).unwrap();
        });
        let before = places(&ground).expect("all of it has a place");
        assert!(before.len() <= 3, "{preallocation}: {before:?}");
        inside(&ground, Assign::Require, |inner| {
            write_all_over(&file(inner, "file"))
        });
        assert_eq!(places(&ground).as_ref(), Some(&before), "{preallocation}");
        inside(&ground, Assign::Off, |inner| {
            let (file, mut found) = (file(inner, "file"), vec![0; BLOCK as usize]);
            for offset in (0..FILE).step_by(BLOCK as usize) {
                file.read_at(&mut found, offset).unwrap();
                assert!(found == block(offset), "{preallocation}: block at {offset}");
            }
        });
        assert_clean(&ground);
    }
}

#[test]
fn file_inside_a_thin_image_has_no_place_below_without_assign() {
    require!(requires::tool("mke2fs"));
    let ground = build(Preallocation::Off);
    inside(&ground, Assign::Off, |inner| {
        let file = make(inner, "file");
        let whole = ByteRange::new(0, FILE);
        file.fallocate(FallocateMode::Allocate, whole).unwrap();
    });
    assert_eq!(places(&ground), None);
}

//! Power cuts while an image in a file of an ext4 file system becomes fully allocated, in every
//! layer below.

use std::ops::ControlFlow;
use std::sync::Arc;

use extant_blockdev::MemoryDevice;
use extant_blockdev::simulation::{CrashDevice, CrashOptions};
use extant_ext4::{File, Filesystem, NewKind, NewNode, Options};
use extant_image::{
    Format, ImageFile, ImageOptions, Layer, NewImage, Preallocation, check, materialize,
};
use extant_space::{ByteRange, ExtentState, SpaceFile, SyncMode};
use extant_testkit::{mke2fs, require, requires};

use crate::silent;

const KIB: u64 = 1 << 10;
const GUEST: u64 = 96 * KIB;
const CLUSTER: u64 = 4 * KIB;

fn open(device: Arc<dyn extant_blockdev::Device>) -> Filesystem {
    Filesystem::open(device, Options::default()).unwrap()
}

/// The file system, with a thin image whose clusters in the middle have data.
fn base(preallocation: Preallocation) -> MemoryDevice {
    let bytes = mke2fs("-t ext4 -b 1024 -J size=1 -N 64", 4 << 20);
    let device = Arc::new(MemoryDevice::from_bytes(&bytes));
    let filesystem = open(device.clone());
    let new = NewNode {
        kind: NewKind::Regular,
        permissions: 0o644,
        uid: 0,
        gid: 0,
        umask: 0,
    };
    let root = filesystem.root().unwrap();
    let node = root.create(b"disk.qcow2", &new).unwrap();
    let file = Arc::new(node.file().unwrap());
    let mut options = ImageOptions::new(Format::Qcow2, GUEST);
    options.qcow2.cluster_bytes = CLUSTER;
    options.preallocation = preallocation;
    let new = NewImage::new(&options).unwrap();
    file.resize(new.file_bytes()).unwrap();
    silent(|control| new.write_metadata(&*file, control)).unwrap();
    if preallocation == Preallocation::Metadata {
        let layer = Layer::open(file.clone(), Format::Qcow2).unwrap();
        let middle = ByteRange::new(GUEST / 3, GUEST / 2);
        layer
            .for_each_extent(middle, &mut |extent| {
                let data = vec![7; extent.guest.len() as usize];
                file.write_at(&data, extent.offset.unwrap())?;
                Ok(ControlFlow::Continue(()))
            })
            .unwrap();
    }
    file.sync(SyncMode::All).unwrap();
    drop((root, node, file));
    filesystem.close().unwrap();
    Arc::into_inner(device).expect("closed")
}

fn image(filesystem: &Filesystem) -> Arc<File> {
    let node = filesystem.root().unwrap().lookup(b"disk.qcow2").unwrap();
    Arc::new(node.file().unwrap())
}

fn guest(file: &Arc<File>) -> Vec<u8> {
    let layer = Layer::open(file.clone(), Format::Qcow2).unwrap();
    let mut data = vec![0; GUEST as usize];
    layer.read_at(&mut data, 0).unwrap();
    data
}

fn make_full(file: &Arc<File>, what: &str) {
    let target = ImageFile::held(file.clone());
    silent(|control| materialize(&target, Format::Qcow2, control))
        .unwrap_or_else(|error| panic!("{what}: {error}"));
}

/// Bytes of the image's file that are not written, in it or below.
fn missing(file: &File) -> u64 {
    let whole = ByteRange::new(0, file.size().unwrap());
    let mut missing = 0;
    let mut count = |state, bytes| {
        if state != ExtentState::Written {
            missing += bytes;
        }
    };
    for extent in file.extents(whole).unwrap() {
        count(extent.state, extent.logical.len());
    }
    file.for_each_extent_below(whole, &mut |found| {
        count(found.extent.state, found.extent.logical.len());
        ControlFlow::Continue(())
    })
    .unwrap();
    missing
}

#[test]
fn materialize_through_a_file_system_survives_every_power_cut() {
    require!(requires::tool("mke2fs"));
    for preallocation in [Preallocation::Off, Preallocation::Metadata] {
        let base = base(preallocation);
        let disk = Arc::new(CrashDevice::new(base));
        let filesystem = open(disk.clone());
        let file = image(&filesystem);
        let data = guest(&file);
        assert!(missing(&file) > 0);
        make_full(&file, "without a cut");
        disk.mark("1");
        assert!(file.size().unwrap() > GUEST);
        drop(file);
        filesystem.close().unwrap();
        let log = Arc::into_inner(disk).expect("closed").into_log();
        let options = CrashOptions {
            states_max: 8,
            ..CrashOptions::seeded(5)
        };
        let (mut cuts, mut found) = (0, 0);
        for crash in log.crashes(options) {
            cuts += 1;
            let what = format!("{preallocation}: {crash}");
            let filesystem = open(Arc::new(crash.image.snapshot()));
            let file = image(&filesystem);
            let report = silent(|control| check(file.clone(), 4, control)).unwrap();
            assert_eq!(report.corruptions, 0, "{what}: {report:?}");
            assert!(guest(&file) == data, "{what}: data");
            let is_missing = missing(&file) > 0;
            assert!(
                !is_missing || crash.mark().is_none(),
                "{what}: reported as full"
            );
            found += usize::from(is_missing);
            make_full(&file, &what);
            assert_eq!(missing(&file), 0, "{what}");
            assert!(guest(&file) == data, "{what}: data has changed");
        }
        println!("{preallocation}: {cuts} cuts, {found} not full yet");
        assert!(
            cuts >= 50 && found >= 20,
            "{preallocation}: {cuts}, {found}"
        );
    }
}

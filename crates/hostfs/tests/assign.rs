//! `assign`, and `materialize` with [`Reach::Layers`], on stacks of the kernel's file systems and
//! loop devices. The state of each layer is that of filefrag.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use extant_hostfs::{MaterializeOptions, Reach, assign, materialize};
use extant_space::{
    ByteRange, CancelToken, Control, ErrorKind, Extent, ExtentState, FallocateMode, LayerStates,
    Result, Silent, SpaceFile,
};
use extant_testkit::command::{must, text, tool};
use extant_testkit::scratch::{DirectIo, Filesystem, Mount, Scratch};
use extant_testkit::workdir::Workdir;
use extant_testkit::{oracle, require, requires};

const MIB: u64 = 1 << 20;
const FILE_BYTES: u64 = 64 * MIB;

/// ext4 on a loop device over a sparse file in `below`.
fn level(below: &Scratch, size: u64, direct_io: DirectIo) -> Scratch {
    let level = Scratch::builder(Filesystem::Ext4, size).backed_in(below.path());
    match direct_io {
        DirectIo::On => level.sector_bytes(4096).direct_io().build(),
        DirectIo::Off => level.build(),
    }
}

fn control<R>(run: impl FnOnce(Control<'_>) -> R) -> R {
    run(Control::new(&CancelToken::new(), &Silent))
}

fn assigned(path: &Path) -> Result<Vec<LayerStates>> {
    control(|control| assign(path, None, control)).map(|report| report.layers)
}

/// The extents of `files`, of which each one stores those of the one before, that store all bytes
/// of the first; the places of the last one are on the last device.
fn layers_by_filefrag(files: &[&Path]) -> Vec<Vec<Extent>> {
    let mut layers = Vec::new();
    let mut places = vec![ByteRange::new(0, FILE_BYTES)];
    for file in files {
        let map = oracle::filefrag(file).with_holes();
        let clip = |place: &ByteRange| -> Vec<Extent> {
            map.iter()
                .filter_map(|extent| extent.clip(*place))
                .collect()
        };
        let found: Vec<Extent> = places.iter().flat_map(clip).collect();
        places = found
            .iter()
            .filter_map(|extent| ByteRange::at(extent.physical?, extent.logical.len()))
            .collect();
        layers.push(found);
    }
    layers
}

fn bytes_in(layer: &[Extent], state: ExtentState) -> u64 {
    let found = layer.iter().filter(|extent| extent.state == state);
    found.map(|extent| extent.logical.len()).sum()
}

/// A sparse file with some data, which is returned with its place.
fn sparse_with_data(path: &Path) -> (Vec<u8>, u64) {
    let file = File::create(path).unwrap();
    file.set_len(FILE_BYTES).unwrap();
    let data: Vec<u8> = (0..3 * MIB + 77).map(|at| (at % 251) as u8 + 1).collect();
    let offset = 20 * MIB + 12_345;
    file.write_all_at(&data, offset).unwrap();
    file.sync_all().unwrap();
    (data, offset)
}

#[track_caller]
fn assert_contents(path: &Path, (data, offset): &(Vec<u8>, u64)) {
    let bytes = fs::read(path).unwrap();
    let start = *offset as usize;
    assert!(bytes[start..][..data.len()] == **data, "data has changed");
    let rest = bytes[..start].iter().chain(&bytes[start + data.len()..]);
    assert!(rest.into_iter().all(|&byte| byte == 0), "not zeros");
}

#[test]
fn assign_allocates_every_layer_keeps_data_and_does_nothing_again() {
    for (filesystem, direct_io) in [
        (Filesystem::Ext4, DirectIo::Off),
        (Filesystem::Ext4, DirectIo::On),
        (Filesystem::Xfs, DirectIo::Off),
        (Filesystem::Xfs, DirectIo::On),
    ] {
        require!(
            requires::root(),
            filesystem.requirement(),
            requires::tool("mke2fs"),
            requires::tool("filefrag"),
            requires::disk_below_temporary_files()
        );
        let outer = Scratch::new(filesystem, 512 * MIB);
        let middle = level(&outer, 320 * MIB, direct_io);
        let inner = level(&middle, 192 * MIB, direct_io);
        let file = inner.path().join("file");
        let data = sparse_with_data(&file);
        let files = [
            &*file,
            inner.backing_file().unwrap(),
            middle.backing_file().unwrap(),
            outer.backing_file().unwrap(),
        ];
        let reported = assigned(&file).unwrap();
        let seen = layers_by_filefrag(&files);
        for (depth, layer) in seen.iter().enumerate() {
            let at = format!("layer {depth} on {filesystem}, {direct_io:?}");
            assert_eq!(bytes_in(layer, ExtentState::Hole), 0, "{at}");
            assert!(layer.len() < 24, "{} extents, {at}", layer.len());
            if let Some(below) = depth.checked_sub(1) {
                let report = &reported[below];
                let written = bytes_in(layer, ExtentState::Written);
                assert_eq!((report.written_bytes, report.hole_bytes), (written, 0));
                assert_eq!(report.layer, files[depth].to_str().unwrap());
            }
        }
        assert_eq!(reported.len(), 3);
        assigned(&file).unwrap();
        assert_eq!(layers_by_filefrag(&files), seen, "the second assign");
        assert_contents(&file, &data);
    }
}

#[test]
fn assign_follows_partitions_and_offsets_of_loop_devices() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("addpart"),
        requires::tool("losetup"),
        requires::disk_below_temporary_files()
    );
    let work = Workdir::new();
    let disk = work.path().join("disk.img");
    File::create(&disk).unwrap().set_len(256 * MIB).unwrap();
    // The partition, which begins at 10 MiB, and the same bytes by the offset of a loop device.
    let mut losetup = tool("losetup");
    losetup.args(["--find", "--show", "--offset", "10485760", "--sizelimit"]);
    let node = text(losetup.arg("209715200").arg(&disk)).unwrap();
    let device = PathBuf::from(node.trim_end());
    let guard = Detach(device.clone());
    let mut mke2fs = tool("mke2fs");
    must(mke2fs.args(["-q", "-F", "-t", "ext4"]).arg(&device));
    let place = work.directory("mounted");
    let check = |device: &Path, name: &str| {
        let mount = Mount::new("ext4", device, &place, "");
        let file = place.join(name);
        File::create(&file).unwrap().set_len(FILE_BYTES).unwrap();
        let layers = assigned(&file).unwrap();
        assert_eq!(layers[0].layer, disk.to_str().unwrap());
        let top = oracle::filefrag(&file).extents;
        let below = oracle::filefrag(&disk).with_holes();
        for extent in top {
            let start = extent.physical.unwrap() + 10 * MIB;
            let range = ByteRange::at(start, extent.logical.len()).unwrap();
            let parts = below.iter().filter_map(|extent| extent.clip(range));
            assert_eq!(bytes_in(&parts.collect::<Vec<_>>(), ExtentState::Hole), 0);
        }
        drop(mount);
    };
    check(&device, "by-offset");
    drop(guard);
    let mut losetup = tool("losetup");
    // With this flag the partition is removed with the device.
    losetup.args(["--find", "--show", "--partscan"]).arg(&disk);
    let node = text(&mut losetup).unwrap();
    let guard = Detach(PathBuf::from(node.trim_end()));
    // Announced to the kernel, which need not know any kind of partition table.
    let mut addpart = tool("addpart");
    must(addpart.arg(&guard.0).args(["1", "20480", "409600"]));
    let partition = PathBuf::from(format!("{}p1", node.trim_end()));
    check(&partition, "by-partition");
    drop(guard);
}

/// Detaches a loop device.
struct Detach(PathBuf);

impl Drop for Detach {
    fn drop(&mut self) {
        must(tool("losetup").arg("--detach").arg(&self.0));
    }
}

#[test]
fn assign_beside_a_writer_changes_no_data() {
    require!(
        requires::root(),
        Filesystem::Ext4.requirement(),
        requires::tool("mke2fs"),
        requires::disk_below_temporary_files()
    );
    let outer = Scratch::new(Filesystem::Ext4, 256 * MIB);
    let inner = level(&outer, 160 * MIB, DirectIo::Off);
    let path = inner.path().join("file");
    File::create(&path).unwrap().set_len(FILE_BYTES).unwrap();
    let ended = AtomicBool::new(false);
    let written = thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            let mut count = 0_u64;
            while !ended.load(Ordering::Relaxed) || count < 500 {
                let block = (count * 7919) % (FILE_BYTES / 4096);
                let byte = (block % 255) as u8 + 1;
                file.write_all_at(&[byte; 4096], block * 4096).unwrap();
                count += 1;
            }
            count
        });
        for _ in 0..5 {
            assigned(&path).unwrap();
        }
        ended.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    let bytes = fs::read(&path).unwrap();
    for count in 0..written.min(FILE_BYTES / 4096) {
        let block = (count * 7919) % (FILE_BYTES / 4096);
        let seen = &bytes[(block * 4096) as usize..][..4096];
        assert!(seen.iter().all(|&byte| byte == (block % 255) as u8 + 1));
    }
}

#[test]
fn materialize_through_the_layers_writes_each_of_them_and_keeps_data() {
    for direct_io in [DirectIo::Off, DirectIo::On] {
        require!(
            requires::root(),
            Filesystem::Ext4.requirement(),
            requires::tool("mke2fs"),
            requires::tool("filefrag"),
            requires::disk_below_temporary_files()
        );
        let outer = Scratch::new(Filesystem::Ext4, 256 * MIB);
        let inner = level(&outer, 160 * MIB, direct_io);
        let file = inner.path().join("file");
        let data = sparse_with_data(&file);
        let files = [
            &*file,
            inner.backing_file().unwrap(),
            outer.backing_file().unwrap(),
        ];
        let through = MaterializeOptions {
            reach: Reach::Layers,
            ..MaterializeOptions::default()
        };
        let written = || control(|control| materialize(&file, &through, control)).unwrap();
        written();
        let all_written = || {
            let layers = layers_by_filefrag(&files);
            (layers.iter()).all(|layer| bytes_in(layer, ExtentState::Written) == FILE_BYTES)
        };
        assert!(all_written(), "{direct_io:?}");
        // Zeros that are written in the file, and unwritten or holes in the file below.
        let zeros: Vec<Extent> = layers_by_filefrag(&files)[1].clone();
        let backing = OpenOptions::new()
            .write(true)
            .open(inner.backing_file().unwrap())
            .unwrap();
        let below =
            extant_hostfs::HostFile::from_file(backing, inner.backing_file().unwrap()).unwrap();
        let hollow = |from: u64, mode| {
            let mut at = 0;
            for extent in &zeros {
                let wanted = ByteRange::new(from, from + 8 * MIB);
                let top = ByteRange::new(at, at + extent.logical.len());
                at = top.end();
                if let Some(part) = top.intersection(wanted) {
                    let start = extent.logical.start() + (part.start() - top.start());
                    let range = ByteRange::at(start, part.len()).unwrap();
                    below.fallocate(mode, range).unwrap();
                }
            }
        };
        hollow(2 * MIB, FallocateMode::ZeroRangeKeepSize);
        hollow(40 * MIB, FallocateMode::PunchHole);
        assert!(!all_written());
        let again = written();
        assert_eq!(again.zeroed_bytes, 0);
        assert_eq!(again.zeroed_below_bytes, 16 * MIB);
        assert!(all_written());
        assert_contents(&file, &data);
    }
}

#[test]
fn materialize_writes_all_of_three_layers() {
    for direct_io in [DirectIo::Off, DirectIo::On] {
        require!(
            requires::root(),
            Filesystem::Ext4.requirement(),
            requires::tool("mke2fs"),
            requires::tool("filefrag"),
            requires::disk_below_temporary_files()
        );
        let outer = Scratch::new(Filesystem::Ext4, 512 * MIB);
        let middle = level(&outer, 320 * MIB, direct_io);
        let inner = level(&middle, 192 * MIB, direct_io);
        let file = inner.path().join("file");
        let data = sparse_with_data(&file);
        let through = MaterializeOptions {
            reach: Reach::Layers,
            ..MaterializeOptions::default()
        };
        control(|control| materialize(&file, &through, control)).unwrap();
        let files = [&inner, &middle, &outer].map(|level| level.backing_file().unwrap());
        let files = [&[&*file], &files[..]].concat();
        for (depth, layer) in layers_by_filefrag(&files).iter().enumerate() {
            let written = bytes_in(layer, ExtentState::Written);
            assert_eq!(written, FILE_BYTES, "layer {depth}, {direct_io:?}");
        }
        assert_contents(&file, &data);
    }
}

#[test]
fn layer_that_may_not_be_changed_is_named_before_anything_changes() {
    require!(
        requires::root(),
        Filesystem::Ext4.requirement(),
        requires::tool("mke2fs"),
        requires::tool("chattr"),
        requires::disk_below_temporary_files()
    );
    let outer = Scratch::new(Filesystem::Ext4, 128 * MIB);
    let inner = level(&outer, 96 * MIB, DirectIo::Off);
    let path = inner.path().join("file");
    File::create(&path).unwrap().set_len(FILE_BYTES).unwrap();
    let backing = inner.backing_file().unwrap();
    must(tool("chattr").arg("+i").arg(backing));
    let refused = assigned(&path);
    let allocated = std::os::unix::fs::MetadataExt::blocks(&fs::metadata(&path).unwrap());
    must(tool("chattr").arg("-i").arg(backing));
    let error = refused.unwrap_err().to_string();
    assert!(error.contains(backing.to_str().unwrap()), "{error}");
    assert_eq!(allocated, 0);
    assigned(&path).unwrap();
}

#[test]
fn shared_space_below_is_reported_by_assign_and_refused_by_materialize() {
    require!(
        requires::root(),
        Filesystem::Xfs.requirement(),
        requires::tool("mke2fs"),
        requires::tool("filefrag"),
        requires::tool("cp"),
        requires::disk_below_temporary_files()
    );
    let outer = Scratch::new(Filesystem::Xfs, 512 * MIB);
    let inner = level(&outer, 160 * MIB, DirectIo::Off);
    let path = inner.path().join("file");
    let data = sparse_with_data(&path);
    let backing = inner.backing_file().unwrap();
    let copy = outer.path().join("copy");
    must(tool("cp").arg("--reflink=always").args([backing, &copy]));
    let reported = assigned(&path).unwrap();
    let below = layers_by_filefrag(&[&path, backing]).remove(1);
    let shared = below
        .iter()
        .filter(|extent| extent.flags.contains(extant_space::ExtentFlags::SHARED));
    let shared: u64 = shared.map(|extent| extent.logical.len()).sum();
    assert!(shared >= 3 * MIB, "{shared}");
    assert_eq!(reported[0].shared_bytes, shared);
    assert_eq!(bytes_in(&below, ExtentState::Hole), 0);
    let through = MaterializeOptions {
        reach: Reach::Layers,
        ..MaterializeOptions::default()
    };
    let refused = control(|control| materialize(&path, &through, control)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::CopyOnWrite, "{refused}");
    let said = refused.to_string();
    assert!(said.contains(backing.to_str().unwrap()), "{said}");
    assert_contents(&path, &data);
}

#[test]
fn layer_that_is_not_known_is_refused_by_name_before_anything_changes() {
    let filesystem = Filesystem::Btrfs;
    require!(requires::root(), filesystem.requirement());
    let scratch = Scratch::new(filesystem, filesystem.size_bytes_min().max(64 * MIB));
    let path = scratch.path().join("file");
    File::create(&path).unwrap().set_len(MIB).unwrap();
    let error = assigned(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("btrfs"), "{error}");
    let blocks = std::os::unix::fs::MetadataExt::blocks(&fs::metadata(&path).unwrap());
    assert_eq!(blocks, 0);
}

#[test]
fn file_below_that_was_removed_ends_the_known_layers() {
    require!(
        requires::root(),
        Filesystem::Ext4.requirement(),
        requires::tool("mke2fs")
    );
    let outer = Scratch::new(Filesystem::Ext4, 128 * MIB);
    let inner = level(&outer, 96 * MIB, DirectIo::Off);
    let path = inner.path().join("file");
    File::create(&path).unwrap().set_len(MIB).unwrap();
    fs::remove_file(inner.backing_file().unwrap()).unwrap();
    // The name that the kernel gives it now is another file's.
    let shown = format!("{} (deleted)", inner.backing_file().unwrap().display());
    fs::write(shown, "another file").unwrap();
    let error = assigned(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("/dev/loop"), "{error}");
}

#[test]
fn full_file_system_below_is_named() {
    require!(
        requires::root(),
        Filesystem::Ext4.requirement(),
        requires::tool("mke2fs"),
        requires::disk_below_temporary_files()
    );
    let outer = Scratch::new(Filesystem::Ext4, 64 * MIB);
    let inner = level(&outer, 160 * MIB, DirectIo::Off);
    let path = inner.path().join("file");
    File::create(&path).unwrap().set_len(FILE_BYTES).unwrap();
    let error = assigned(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(
        error
            .to_string()
            .contains(inner.backing_file().unwrap().to_str().unwrap()),
        "{error}"
    );
}

//! `materialize` against a model: no byte of data changes, no hole is left.
//!
//! A file is built by random operations that a vector of bytes follows; after
//! `materialize` of a random range the bytes must still be the vector's, and the
//! range must be written by the judgement of filefrag.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use extant_hostfs::{
    CopyOnWrite, CreateOptions, Exclusion, HostFile, MaterializeOptions, Shared, create,
    materialize,
};
use extant_space::{
    ByteRange, CancelToken, Control, ErrorKind, ExtentState, FallocateMode, Preallocation, Remedy,
    Silent, SpaceFile,
};
use extant_testkit::faulty::{Faults, Faulty};
use extant_testkit::scratch::{Filesystem, Mount, Scratch};
use extant_testkit::{oracle, require, requires};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

const SIZE_MAX: u64 = 3 << 20;

#[derive(Clone, Debug)]
enum Step {
    Write { at: u64, len: u64, byte: u8 },
    Allocate { at: u64, len: u64 },
    Punch { at: u64, len: u64 },
    Zero { at: u64, len: u64 },
    Resize { len: u64 },
}

fn place() -> impl Strategy<Value = (u64, u64)> {
    // Half of the places are whole blocks.
    prop_oneof![
        (0..SIZE_MAX, 1..300_000u64),
        (0..SIZE_MAX / 4096, 1..80u64).prop_map(|(at, len)| (at * 4096, len * 4096)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (place(), 1u8..).prop_map(|((at, len), byte)| Step::Write { at, len, byte }),
        place().prop_map(|(at, len)| Step::Allocate { at, len }),
        place().prop_map(|(at, len)| Step::Punch { at, len }),
        place().prop_map(|(at, len)| Step::Zero { at, len }),
        (0..SIZE_MAX).prop_map(|len| Step::Resize { len }),
    ]
}

/// Does `step` to the file and to the model. Operations that the file system refuses are left out
/// of both.
fn apply(file: &HostFile, model: &mut Vec<u8>, step: &Step) {
    let range = |at: u64, len: u64| ByteRange::at(at, len).unwrap();
    let grow = |model: &mut Vec<u8>, end: u64| {
        if model.len() < end as usize {
            model.resize(end as usize, 0);
        }
    };
    match *step {
        Step::Write { at, len, byte } => {
            file.write_at(&vec![byte; len as usize], at).unwrap();
            grow(model, at + len);
            model[at as usize..(at + len) as usize].fill(byte);
        }
        Step::Allocate { at, len } => {
            match file.fallocate(FallocateMode::Allocate, range(at, len)) {
                Ok(()) => grow(model, at + len),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}"),
            }
        }
        Step::Punch { at, len } => match file.fallocate(FallocateMode::PunchHole, range(at, len)) {
            Ok(()) => zero(model, at, len),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}"),
        },
        Step::Zero { at, len } => {
            match file.fallocate(FallocateMode::ZeroRangeKeepSize, range(at, len)) {
                Ok(()) => zero(model, at, len),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}"),
            }
        }
        Step::Resize { len } => {
            file.resize(len).unwrap();
            model.resize(len as usize, 0);
        }
    }
}

fn zero(model: &mut [u8], at: u64, len: u64) {
    let end = model.len().min((at + len) as usize);
    if (at as usize) < end {
        model[at as usize..end].fill(0);
    }
}

fn assert_written(path: &Path, range: ByteRange) {
    let map = oracle::filefrag(path).with_holes();
    for extent in map.iter().filter_map(|extent| extent.clip(range)) {
        assert!(extent.is_extant(), "{extent:?} in {map:?}");
    }
}

fn check(filesystem: Filesystem) {
    require!(requires::root(), filesystem.requirement());
    let scratch = Scratch::new(filesystem, 512 << 20);
    let has_map = filesystem != Filesystem::Tmpfs;
    check_at(filesystem.name(), scratch.path(), Exclusion::Lease, has_map);
    if filesystem.is_ext() && filesystem != Filesystem::Ext2 {
        let mut scratch = scratch;
        scratch.unmount();
        oracle::assert_e2fsck_clean(scratch.device().unwrap());
    }
}

/// `has_map`: filefrag sees which parts are written.
fn check_at(filesystem: &str, directory: &Path, exclusion: Exclusion, has_map: bool) {
    let path = directory.join("file");
    // Each case is a new file: proptest reports a failing case with its steps.
    let mut runner = TestRunner::new(Config {
        cases: 40,
        failure_persistence: None,
        ..Config::default()
    });
    let cases = (
        prop::collection::vec(step(), 1..12),
        prop::option::of(place()),
    );
    let result = runner.run(&cases, |(steps, range)| {
        let _ = fs::remove_file(&path);
        make_empty(&path);
        let mut model = Vec::new();
        {
            let file = HostFile::open(&path, extant_hostfs::Access::ReadWrite).unwrap();
            for step in &steps {
                apply(&file, &mut model, step);
            }
        }
        let options = MaterializeOptions {
            range: range.map(|(at, len)| ByteRange::at(at, len).unwrap()),
            exclusion,
            ..MaterializeOptions::default()
        };
        let cancel = CancelToken::new();
        let report = materialize(&path, &options, Control::new(&cancel, &Silent)).unwrap();
        prop_assert!(fs::read(&path).unwrap() == model, "data changed");
        if has_map {
            assert_written(&path, report.range);
        }
        let again = materialize(&path, &options, Control::new(&cancel, &Silent)).unwrap();
        prop_assert!(fs::read(&path).unwrap() == model, "data changed");
        if exclusion == Exclusion::Lease {
            prop_assert_eq!(again.zeroed_bytes, 0, "written twice");
            prop_assert_eq!(again.already_written_bytes, report.range.len());
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{filesystem}: {error}");
    }
}

/// An empty file whose written space stays in place.
fn make_empty(path: &Path) {
    let mut options = CreateOptions::new(1);
    options.preallocation = Preallocation::Off;
    options.copy_on_write = CopyOnWrite::Disable;
    create(path, &options, Control::new(&CancelToken::new(), &Silent)).unwrap();
    OpenOptions::new()
        .write(true)
        .open(path)
        .unwrap()
        .set_len(0)
        .unwrap();
}

macro_rules! on {
    ($($name:ident: $filesystem:ident;)*) => {
        $(
            #[test]
            fn $name() {
                check(Filesystem::$filesystem);
            }
        )*
    };
}

on! {
    data_on_ext4_is_kept_and_holes_are_written: Ext4;
    data_on_ext4_with_1k_blocks_is_kept_and_holes_are_written: Ext4SmallBlocks;
    data_on_ext4_with_bigalloc_is_kept_and_holes_are_written: Ext4Bigalloc;
    data_on_ext2_is_kept_and_holes_are_written: Ext2;
    data_on_xfs_is_kept_and_holes_are_written: Xfs;
    data_on_btrfs_without_cow_is_kept_and_holes_are_written: Btrfs;
    data_on_tmpfs_is_kept_and_holes_are_written: Tmpfs;
    data_on_overlay_is_kept_and_holes_are_written: Overlay;
}

#[test]
fn data_on_a_foreign_server_is_kept_and_holes_are_written() {
    require!(Faulty::requirement());
    let fuse = Faulty::new(64 << 20, Faults::default());
    check_at("FUSE", fuse.path(), Exclusion::Shared, false);
}

/// A sparse file with data at its start.
fn sparse(directory: &Path) -> std::path::PathBuf {
    let path = directory.join("thin");
    let file = File::create(&path).unwrap();
    file.write_all_at(b"data", 0).unwrap();
    file.set_len(1 << 20).unwrap();
    path
}

#[track_caller]
fn assert_refused_until_shared(path: &Path, word: &str) {
    let cancel = CancelToken::new();
    let control = Control::new(&cancel, &Silent);
    let before = oracle::allocated_bytes(path);
    let error = materialize(path, &MaterializeOptions::default(), control).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains(word), "{error}");
    assert_eq!(error.remedies(), [Remedy::ShareAccess]);
    assert_eq!(
        oracle::allocated_bytes(path),
        before,
        "refused, but changed"
    );
    let options = MaterializeOptions {
        exclusion: Exclusion::Shared,
        ..MaterializeOptions::default()
    };
    materialize(path, &options, control).unwrap();
    assert!(fs::read(path).unwrap().starts_with(b"data"));
}

#[test]
fn file_system_of_a_foreign_server_is_refused_until_shared_is_asked_for() {
    require!(Faulty::requirement());
    let fuse = Faulty::new(64 << 20, Faults::default());
    assert_refused_until_shared(&sparse(fuse.path()), "fuse");
}

#[test]
fn overlay_over_a_file_system_not_seen_is_refused_until_shared_is_asked_for() {
    require!(
        requires::root(),
        Filesystem::Tmpfs.requirement(),
        Filesystem::Overlay.requirement()
    );
    let scratch = Scratch::new(Filesystem::Tmpfs, 64 << 20);
    let directory = |name: &str| {
        let path = scratch.path().join(name);
        fs::create_dir(&path).unwrap();
        path
    };
    let [lower, upper, work, place] = ["lower", "upper", "work", "place"].map(directory);
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        lower.display(),
        upper.display(),
        work.display()
    );
    let overlay = Mount::new("overlay", Path::new("overlay"), &place, &options);
    let path = sparse(overlay.path());
    let cancel = CancelToken::new();
    let control = Control::new(&cancel, &Silent);
    materialize(&path, &MaterializeOptions::default(), control).unwrap();
    // As in a container: the path of the layer leads nowhere.
    let layer = |name| scratch.path().join(name);
    fs::rename(layer("upper"), layer("elsewhere")).unwrap();
    fs::remove_file(&path).unwrap();
    assert_refused_until_shared(&sparse(overlay.path()), "overlay");
}

#[test]
fn file_open_elsewhere_is_refused_until_shared_is_asked_for() {
    require!(requires::root(), Filesystem::Ext4.requirement());
    let scratch = Scratch::new(Filesystem::Ext4, 128 << 20);
    let path = scratch.path().join("file");
    let other = File::create(&path).unwrap();
    other.set_len(1 << 20).unwrap();
    let cancel = CancelToken::new();
    let control = Control::new(&cancel, &Silent);
    let error = materialize(&path, &MaterializeOptions::default(), control).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert_eq!(oracle::allocated_bytes(&path), 0, "refused, but changed");
    let options = MaterializeOptions {
        exclusion: Exclusion::Shared,
        ..MaterializeOptions::default()
    };
    materialize(&path, &options, control).unwrap();
    assert_written(&path, ByteRange::new(0, 1 << 20));
}

#[test]
fn reflinked_file_is_refused_and_unshared_when_asked() {
    require!(requires::root(), Filesystem::Xfs.requirement());
    let scratch = Scratch::new(Filesystem::Xfs, 512 << 20);
    let (path, clone) = (scratch.path().join("file"), scratch.path().join("clone"));
    let data: Vec<u8> = (0..1_000_000u32).map(|n| (n % 251) as u8).collect();
    fs::write(&path, &data).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    rustix::fs::ioctl_ficlone(File::create(&clone).unwrap(), File::open(&path).unwrap()).unwrap();
    let cancel = CancelToken::new();
    let control = Control::new(&cancel, &Silent);
    let error = materialize(&path, &MaterializeOptions::default(), control).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CopyOnWrite);
    let options = MaterializeOptions {
        shared: Shared::Unshare,
        ..MaterializeOptions::default()
    };
    let report = materialize(&path, &options, control).unwrap();
    assert!(report.unshared_bytes >= 1_000_000);
    assert_eq!(fs::read(&path).unwrap(), data);
    assert_eq!(fs::read(&clone).unwrap(), data);
    assert!(oracle::filefrag(&path).is_extant());
}

#[test]
fn data_in_the_page_cache_only_is_seen_before_zeros_are_written() {
    require!(requires::root(), Filesystem::Ext4.requirement());
    let scratch = Scratch::new(Filesystem::Ext4, 256 << 20);
    let path = scratch.path().join("file");
    {
        let file = HostFile::open(&path, extant_hostfs::Access::ReadWriteCreate).unwrap();
        // Unwritten on the disk, while data over it waits in memory.
        file.fallocate(FallocateMode::Allocate, ByteRange::new(0, 8 << 20))
            .unwrap();
        file.write_at(&[7; 4 << 20], 2 << 20).unwrap();
    }
    let cancel = CancelToken::new();
    let report = materialize(
        &path,
        &MaterializeOptions::default(),
        Control::new(&cancel, &Silent),
    )
    .unwrap();
    assert_eq!(report.zeroed_bytes, 4 << 20);
    let mut bytes = vec![0; 8 << 20];
    File::open(&path)
        .unwrap()
        .read_exact_at(&mut bytes, 0)
        .unwrap();
    assert!(bytes[2 << 20..6 << 20].iter().all(|&byte| byte == 7));
    assert!(bytes[..2 << 20].iter().all(|&byte| byte == 0));
    assert_eq!(oracle::filefrag(&path).bytes(ExtentState::Written), 8 << 20);
}

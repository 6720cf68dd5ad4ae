//! Operations on volumes.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;

use extant_hostfs::{Access, HostFile};
use extant_pool::{CloneMethod, Operation, Resize, Upload, WipeMethod};
use extant_space::{ByteRange, ErrorKind, ExtentState, Preallocation, SpaceFile};
use extant_testkit::require;
use extant_testkit::scratch::Filesystem;

use crate::stand::{
    MIB, assert_at_rest, assert_mixed, clone, create, download, in_memory, materialize, mixed,
    name, names, part, perform, pool_at, resize, unshare, upload, wipe,
};

#[test]
fn created_volume_has_the_requested_properties() {
    for filesystem in [Filesystem::Ext4, Filesystem::Xfs] {
        require!(filesystem.requirement());
        let scratch = in_memory(filesystem, 512 * MIB);
        let pool = pool_at(scratch.path());
        for (volume, preallocation, state) in [
            ("sparse", Preallocation::Off, ExtentState::Hole),
            ("reserved", Preallocation::Falloc, ExtentState::Unwritten),
            ("written", Preallocation::Full, ExtentState::Written),
        ] {
            perform(&pool, create(volume, 20 * MIB, preallocation)).unwrap();
            let info = pool.volume(&name(volume)).unwrap();
            assert_eq!(info.map.bytes(state), 20 * MIB, "{info:?}");
            assert_eq!(info.capacity_bytes, 20 * MIB);
            assert_eq!(info.mode, 0o600);
            assert_eq!(info.may_run_out_of_space, state == ExtentState::Hole);
        }
        assert_at_rest(&pool);
    }
}

#[test]
fn allocation_below_the_capacity_makes_the_first_part_real() {
    require!(Filesystem::Ext4.requirement());
    let scratch = in_memory(Filesystem::Ext4, 128 * MIB);
    let pool = pool_at(scratch.path());
    let mut part = part("a", 30 * MIB, 10 * MIB);
    perform(&pool, Operation::Create(part.clone())).unwrap();
    let info = pool.volume(&name("a")).unwrap();
    assert_eq!((info.written_bytes, info.mode), (10 * MIB, 0o640));
    assert!(info.may_run_out_of_space);
    part.volume = name("b");
    part.allocation_bytes = 31 * MIB;
    let error = perform(&pool, Operation::Create(part)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert_eq!(names(&pool), ["a"]);
}

fn host_file(path: &Path) -> HostFile {
    HostFile::open(path, Access::ReadWriteCreate).unwrap()
}

#[test]
fn copies_keep_content_holes_and_unwritten_parts() {
    require!(Filesystem::Ext4.requirement());
    let scratch = in_memory(Filesystem::Ext4, 128 * MIB);
    let dir = scratch.directory_beside("outside");
    let pool = pool_at(scratch.path());
    let content = mixed(&host_file(&dir.join("source")));
    let upload = upload("up", &dir.join("source"));
    perform(&pool, Operation::Upload(upload.clone())).unwrap();
    perform(&pool, clone("up", "copy", CloneMethod::Copy)).unwrap();
    let download = download("copy", &dir.join("target"));
    perform(&pool, Operation::Download(download.clone())).unwrap();
    for path in [scratch.path().join("copy"), dir.join("target")] {
        assert!(fs::read(&path).unwrap() == content, "{}", path.display());
        assert_mixed(&HostFile::open_read(&path).unwrap());
    }
    let taken = perform(&pool, Operation::Upload(upload.clone())).unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::AlreadyExists);
    let taken = perform(&pool, Operation::Download(download)).unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::AlreadyExists);
    fs::write(dir.join("source"), "new").unwrap();
    let replace = true;
    perform(&pool, Operation::Upload(Upload { replace, ..upload })).unwrap();
    assert_eq!(fs::read(scratch.path().join("up")).unwrap(), b"new");
    assert_at_rest(&pool);
}

#[test]
fn clone_shares_space_where_the_file_system_can_and_says_where_it_cannot() {
    require!(
        Filesystem::Xfs.requirement(),
        Filesystem::Ext4.requirement()
    );
    let scratch = in_memory(Filesystem::Xfs, 512 * MIB);
    let pool = pool_at(scratch.path());
    perform(&pool, create("a", 8 * MIB, Preallocation::Full)).unwrap();
    perform(&pool, clone("a", "b", CloneMethod::Auto)).unwrap();
    let shared = pool.volume(&name("b")).unwrap();
    assert_eq!(shared.map.shared_bytes(), 8 * MIB);
    assert!(shared.may_run_out_of_space);
    perform(&pool, clone("a", "c", CloneMethod::Copy)).unwrap();
    assert_eq!(pool.volume(&name("c")).unwrap().written_bytes, 8 * MIB);
    let refused = perform(&pool, materialize("b")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::CopyOnWrite);
    perform(&pool, unshare("b")).unwrap();
    assert_eq!(pool.volume(&name("b")).unwrap().written_bytes, 8 * MIB);

    let scratch = in_memory(Filesystem::Ext4, 64 * MIB);
    let pool = pool_at(scratch.path());
    perform(&pool, create("a", MIB, Preallocation::Full)).unwrap();
    let refused = perform(&pool, clone("a", "b", CloneMethod::Reflink)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    perform(&pool, clone("a", "b", CloneMethod::Auto)).unwrap();
    assert_eq!(names(&pool), ["a", "b"]);
    assert_at_rest(&pool);
}

#[test]
fn resize_keeps_data_and_shrinks_only_on_request() {
    require!(Filesystem::Ext4.requirement());
    let scratch = in_memory(Filesystem::Ext4, 128 * MIB);
    let pool = pool_at(scratch.path());
    perform(&pool, create("a", 4 * MIB, Preallocation::Full)).unwrap();
    let file = fs::File::options()
        .write(true)
        .open(scratch.path().join("a"));
    file.unwrap().write_all_at(b"data", 4 * MIB - 4).unwrap();
    perform(&pool, resize("a", 6 * MIB + 100, Preallocation::Full)).unwrap();
    let info = pool.volume(&name("a")).unwrap();
    assert!(!info.may_run_out_of_space, "{info:?}");
    perform(&pool, resize("a", 8 * MIB, Preallocation::Falloc)).unwrap();
    perform(&pool, resize("a", 20 * MIB, Preallocation::Off)).unwrap();
    let info = pool.volume(&name("a")).unwrap();
    assert_eq!(info.capacity_bytes, 20 * MIB);
    assert_eq!(info.map.bytes(ExtentState::Hole), 12 * MIB);
    let refused = perform(&pool, resize("a", 4 * MIB, Preallocation::Off)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    let shrink = Resize {
        volume: name("a"),
        capacity_bytes: 4 * MIB,
        preallocation: extant_image::Preallocation::Off,
        shrink: true,
    };
    perform(&pool, Operation::Resize(shrink)).unwrap();
    let content = fs::read(scratch.path().join("a")).unwrap();
    assert_eq!(content.len() as u64, 4 * MIB);
    assert!(content.ends_with(b"data"));
}

#[test]
fn wipe_overwrites_in_place_or_gives_space_back() {
    require!(Filesystem::Ext4.requirement());
    let scratch = in_memory(Filesystem::Ext4, 64 * MIB);
    let pool = pool_at(scratch.path());
    let path = scratch.path().join("a");
    mixed(&host_file(&path));
    let place = |path: &Path| {
        let file = HostFile::open_read(path).unwrap();
        let extents = file
            .extents(ByteRange::new(0, file.size().unwrap()))
            .unwrap();
        extents
            .iter()
            .map(|extent| extent.physical)
            .collect::<Vec<_>>()
    };
    let (before, blocks) = (place(&path), fs::metadata(&path).unwrap().blocks());
    perform(&pool, wipe("a", WipeMethod::Zero)).unwrap();
    assert!(fs::read(&path).unwrap().iter().all(|&byte| byte == 0));
    assert_eq!(
        (place(&path), fs::metadata(&path).unwrap().blocks()),
        (before, blocks)
    );
    perform(&pool, wipe("a", WipeMethod::Discard)).unwrap();
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.len(), metadata.blocks()), (5 * MIB + 777, 0));
}

#[test]
fn open_volume_is_not_destroyed() {
    require!(Filesystem::Ext4.requirement());
    let scratch = in_memory(Filesystem::Ext4, 64 * MIB);
    let pool = pool_at(scratch.path());
    perform(&pool, create("a", MIB, Preallocation::Full)).unwrap();
    // Another process: this one cannot be distinguished from the job's own.
    let open = fs::File::open(scratch.path().join("a")).unwrap();
    let mut sleeper = std::process::Command::new("sleep")
        .arg("600")
        .stdin(open)
        .spawn()
        .unwrap();
    let refused = pool.delete(&name("a"), false).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InUse);
    assert!(refused.to_string().contains("sleep"), "{refused}");
    pool.delete(&name("a"), true).unwrap();
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert!(names(&pool).is_empty());
    let gone = pool.delete(&name("a"), false).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound);
}

#[test]
fn non_volume_is_neither_listed_nor_followed() {
    require!(Filesystem::Ext4.requirement());
    let scratch = in_memory(Filesystem::Ext4, 64 * MIB);
    let outside = scratch.directory_beside("outside");
    fs::write(outside.join("secret"), "secret").unwrap();
    let dir = scratch.path();
    symlink(outside.join("secret"), dir.join("link")).unwrap();
    symlink(&outside, dir.join("out")).unwrap();
    fs::create_dir(dir.join("dir")).unwrap();
    fs::write(dir.join(".hidden"), "").unwrap();
    fs::write(dir.join("new\nline"), "").unwrap();
    fs::write(dir.join(std::ffi::OsStr::from_bytes(b"\xff")), "").unwrap();
    fs::write(dir.join("good"), "good").unwrap();
    let pool = pool_at(dir);
    assert_eq!(names(&pool), ["good"]);
    assert_eq!(pool.refresh(Default::default()).unwrap().other_names, 6);
    for volume in ["link", "dir", "out"] {
        let error = pool.volume(&name(volume)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
        for operation in [
            create(volume, MIB, Preallocation::Off),
            resize(volume, MIB, Preallocation::Off),
            clone(volume, "new", CloneMethod::Copy),
            clone("good", volume, CloneMethod::Copy),
        ] {
            let error = perform(&pool, operation).unwrap_err();
            let kind = error.kind();
            assert!(
                matches!(kind, ErrorKind::WrongType | ErrorKind::AlreadyExists),
                "{error}"
            );
        }
        assert!(pool.delete(&name(volume), true).is_err());
    }
    assert_eq!(fs::read(outside.join("secret")).unwrap(), b"secret");
    assert_at_rest(&pool);
}

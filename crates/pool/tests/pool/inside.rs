//! Pools in ext4 images: differences from pools in directories.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use extant_ext4::{NewKind, NewNode};
use extant_pool::{
    CloneMethod, Definition, InImage, JobState, Leftovers, Limits, Operation, Pool, PoolKind,
    Resize, Upload, WipeMethod,
};
use extant_space::{ByteRange, ErrorKind, ExtentState, FallocateMode, Preallocation};
use extant_testkit::oracle::assert_e2fsck_clean;
use extant_testkit::requires::root;
use extant_testkit::scratch::{Filesystem as Below, LoopDevice};
use extant_testkit::{command, require};

use crate::both::{SIZE, Stand, in_image, make_image, write_inside};
use crate::stand::{
    MIB, assert_at_rest, assert_mixed, clone, create, download, in_memory, materialize, mixed,
    name, names, part, perform, resize, run, submit, upload, wipe,
};

fn pool_in(image: &Path) -> Pool {
    Pool::open(Definition::of_image(image)).unwrap()
}

fn defined(image: &Path, inside: &InImage<'_>) -> Definition {
    let name = "test".parse().unwrap();
    Definition::in_image(name, image, inside, Limits::default()).unwrap()
}

fn new(kind: NewKind<'_>) -> NewNode<'_> {
    NewNode {
        kind,
        permissions: 0o755,
        uid: 0,
        gid: 0,
        umask: 0,
    }
}

#[test]
fn volumes_of_an_image_have_the_requested_properties() {
    require!(Below::Ext4.requirement());
    let stand = Stand::new(PoolKind::Ext4);
    let pool = &stand.pool;
    for (volume, preallocation, state) in [
        ("sparse", Preallocation::Off, ExtentState::Hole),
        ("reserved", Preallocation::Falloc, ExtentState::Unwritten),
        ("written", Preallocation::Full, ExtentState::Written),
    ] {
        perform(pool, create(volume, 10 * MIB + 7, preallocation)).unwrap();
        let info = pool.volume(&name(volume)).unwrap();
        assert_eq!(info.map.bytes(state), 10 * MIB + 7, "{info:?}");
        assert_eq!(info.capacity_bytes, 10 * MIB + 7);
        assert_eq!(info.mode, 0o600);
        assert_eq!(info.may_run_out_of_space, state == ExtentState::Hole);
        assert!(
            info.path
                .to_str()
                .unwrap()
                .ends_with(&format!("disk.img:/{volume}"))
        );
    }
    perform(pool, Operation::Create(part("part", 10 * MIB, 3 * MIB))).unwrap();
    let info = pool.volume(&name("part")).unwrap();
    assert_eq!((info.written_bytes, info.mode), (3 * MIB, 0o640));
    perform(pool, materialize("part")).unwrap();
    assert_eq!(pool.volume(&name("part")).unwrap().written_bytes, 10 * MIB);
    assert_eq!(pool.info().unwrap().kind, PoolKind::Ext4);
    stand.assert_at_rest();
}

#[test]
fn copies_into_an_image_and_out_of_it_keep_content_holes_and_unwritten_parts() {
    require!(Below::Ext4.requirement());
    let stand = Stand::new(PoolKind::Ext4);
    let (pool, outside) = (&stand.pool, &stand.outside);
    let open = |name: &str| {
        let access = extant_hostfs::Access::ReadWriteCreate;
        extant_hostfs::HostFile::open(&outside.join(name), access).unwrap()
    };
    let content = mixed(&open("mixed"));
    let upload = Upload {
        mode: 0o640,
        ..upload("up", &outside.join("mixed"))
    };
    perform(pool, Operation::Upload(upload.clone())).unwrap();
    perform(pool, clone("up", "copy", CloneMethod::Auto)).unwrap();
    let refused = perform(pool, clone("up", "shared", CloneMethod::Reflink)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    let download = download("copy", &outside.join("target"));
    perform(pool, Operation::Download(download)).unwrap();
    for volume in ["up", "copy"] {
        assert!(stand.read(volume) == content, "{volume}");
        stand.with_file(volume, |file| assert_mixed(file));
    }
    assert!(fs::read(outside.join("target")).unwrap() == content);
    assert_mixed(&open("target"));
    assert_eq!(pool.volume(&name("up")).unwrap().mode, 0o640);
    let taken = perform(pool, Operation::Upload(upload.clone())).unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::AlreadyExists);
    fs::write(outside.join("mixed"), "new").unwrap();
    let replace = true;
    perform(pool, Operation::Upload(Upload { replace, ..upload })).unwrap();
    assert_eq!(stand.read("up"), b"new");
    stand.assert_at_rest();
}

#[test]
fn wipe_in_an_image_overwrites_in_place_or_gives_space_back() {
    require!(Below::Ext4.requirement());
    let stand = Stand::new(PoolKind::Ext4);
    stand.write("m", b"");
    stand.with_file("m", |file| drop(mixed(file)));
    let places = || {
        stand.with_file("m", |file| {
            let mut places = Vec::new();
            let whole = ByteRange::new(0, file.size().unwrap());
            file.for_each_extent(whole, &mut |extent| {
                places.push((extent.logical, extent.physical, extent.state));
                ControlFlow::Continue(())
            })
            .unwrap();
            places
        })
    };
    let before = places();
    perform(&stand.pool, wipe("m", WipeMethod::Zero)).unwrap();
    assert!(stand.read("m").iter().all(|&byte| byte == 0));
    assert_eq!(places(), before);
    perform(&stand.pool, wipe("m", WipeMethod::Discard)).unwrap();
    let info = stand.pool.volume(&name("m")).unwrap();
    assert_eq!(
        (info.capacity_bytes, info.allocation_bytes),
        (5 * MIB + 777, 0)
    );
    stand.assert_at_rest();
}

#[test]
fn resize_in_an_image_keeps_data_and_shrinks_only_on_request() {
    require!(Below::Ext4.requirement());
    let stand = Stand::new(PoolKind::Ext4);
    let pool = &stand.pool;
    let data = stand.read("a");
    perform(pool, resize("a", SIZE + MIB + 100, Preallocation::Full)).unwrap();
    assert!(!pool.volume(&name("a")).unwrap().may_run_out_of_space);
    perform(pool, resize("a", SIZE + 4 * MIB, Preallocation::Falloc)).unwrap();
    perform(pool, resize("a", SIZE + 20 * MIB, Preallocation::Off)).unwrap();
    let info = pool.volume(&name("a")).unwrap();
    assert_eq!(info.capacity_bytes, SIZE + 20 * MIB);
    assert_eq!(info.map.bytes(ExtentState::Hole), 16 * MIB);
    let refused = perform(pool, resize("a", SIZE, Preallocation::Off)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    let shrink = Resize {
        volume: name("a"),
        capacity_bytes: SIZE,
        preallocation: extant_image::Preallocation::Off,
        shrink: true,
    };
    perform(pool, Operation::Resize(shrink)).unwrap();
    assert!(stand.read("a") == data);
    stand.assert_at_rest();
}

#[test]
fn second_of_two_that_do_not_both_fit_into_an_image_fails_at_once() {
    require!(Below::Ext4.requirement());
    let stand = Stand::new(PoolKind::Ext4);
    let pool = &stand.pool;
    let available = pool.info().unwrap().space.available_bytes;
    let size = available * 6 / 10;
    let first = submit(pool, create("b", size, Preallocation::Full)).unwrap();
    assert_eq!(pool.info().unwrap().space.reserved_bytes, size);
    let error = submit(pool, create("c", size, Preallocation::Full)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(error.to_string().contains("missing"), "{error}");
    run(first).unwrap();
    assert_eq!(names(pool), ["a", "b"]);
    stand.assert_at_rest();
}

#[test]
fn job_that_finds_the_image_full_ends_and_leaves_nothing() {
    require!(Below::Ext4.requirement());
    let stand = Stand::new(PoolKind::Ext4);
    let pool = &stand.pool;
    let job = submit(pool, create("b", 20 * MIB, Preallocation::Full)).unwrap();
    let id = job.id();
    // Another program, which ignores reservations, takes everything but half of it.
    stand.write(".hog", b"");
    let free = pool.info().unwrap().space.free_bytes;
    stand.with_file(".hog", |file| {
        let range = ByteRange::new(0, free - 10 * MIB);
        file.fallocate(FallocateMode::Allocate, range).unwrap();
    });
    let error = run(job).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert_eq!(pool.job(id).unwrap().state, JobState::Failed);
    assert_eq!(names(pool), ["a"]);
    stand.assert_at_rest();
    stand.remove(".hog");
    perform(pool, create("b", 20 * MIB, Preallocation::Full)).unwrap();
    stand.assert_at_rest();
}

#[test]
fn read_only_image_is_looked_at_and_not_changed() {
    require!(root(), Below::Ext4.requirement());
    let stand = Stand::new(PoolKind::Ext4);
    perform(&stand.pool, create("b", MIB, Preallocation::Full)).unwrap();
    let before = fs::read(stand.image()).unwrap();
    stand.scratch.remount("ro");
    let pool = pool_in(&stand.image());
    assert_eq!(names(&pool), ["a", "b"]);
    assert_eq!(pool.volume(&name("b")).unwrap().written_bytes, MIB);
    assert_eq!(pool.info().unwrap().space.volumes, 2);
    let refused = perform(&pool, create("c", MIB, Preallocation::Full)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly, "{refused}");
    let refused = pool.delete(&name("a"), false).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly, "{refused}");
    assert!(fs::read(stand.image()).unwrap() == before);
    stand.scratch.remount("rw");
    stand.assert_at_rest();
}

#[test]
fn image_that_is_gone_or_another_is_not_filled() {
    require!(Below::Ext4.requirement());
    let scratch = in_memory(Below::Ext4, 256 * MIB);
    let image = scratch.path().join("disk.img");
    let missing = Pool::build(defined(&image, &InImage::default())).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing}");
    fs::write(&image, vec![0; MIB as usize]).unwrap();
    let wrong = Pool::build(defined(&image, &InImage::default())).unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::Corrupt, "{wrong}");
    assert!(!scratch.path().join("disk.img.extant").exists());

    make_image(&image, 64 * MIB);
    let pool = Pool::build(defined(&image, &InImage::default())).unwrap();
    let definition = pool.definition().clone();
    perform(&pool, create("a", MIB, Preallocation::Full)).unwrap();
    let kept = scratch.path().join("kept");
    fs::rename(&image, &kept).unwrap();
    let gone = Pool::open(definition.clone()).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound);
    make_image(&image, 64 * MIB);
    let pool = Pool::open(definition.clone()).unwrap();
    let other = pool.volumes().unwrap_err();
    assert_eq!(other.kind(), ErrorKind::NotFound);
    assert!(other.to_string().contains("not the one"), "{other}");
    let other = perform(&pool, create("a", MIB, Preallocation::Full)).unwrap_err();
    assert_eq!(other.kind(), ErrorKind::NotFound);
    fs::rename(&kept, &image).unwrap();
    assert_eq!(names(&Pool::open(definition.clone()).unwrap()), ["a"]);
    fs::remove_dir_all(scratch.path().join("disk.img.extant")).unwrap();
    let without = Pool::open(definition).unwrap_err();
    assert_eq!(without.kind(), ErrorKind::NotFound, "{without}");
}

#[test]
fn pool_in_a_directory_of_an_image_leaves_the_rest_alone() {
    require!(Below::Ext4.requirement());
    let scratch = in_memory(Below::Ext4, 256 * MIB);
    let image = scratch.path().join("disk.img");
    make_image(&image, 64 * MIB);
    in_image(&image, |filesystem| {
        write_inside(filesystem, "/else", b"else")
    });
    let state = scratch.path().join("own");
    let inside = InImage {
        directory: Some(Path::new("/volumes/of pool")),
        state: Some(&state),
    };
    let pool = Pool::build(defined(&image, &inside)).unwrap();
    perform(&pool, create("a", MIB, Preallocation::Full)).unwrap();
    assert_eq!(names(&pool), ["a"]);
    assert_eq!(pool.refresh(Default::default()).unwrap().other_names, 0);
    assert_eq!(names(&pool_in(&image)), ["else"]);
    assert!(state.join("jobs").exists());
    // Its jobs are about that directory, and no other.
    let other = InImage {
        directory: Some(Path::new("/other")),
        ..inside
    };
    let job = submit(&pool, create("b", MIB, Preallocation::Full)).unwrap();
    let refused = Pool::build(defined(&image, &other)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InUse, "{refused}");
    assert!(
        refused.to_string().contains("/volumes/of pool"),
        "{refused}"
    );
    run(job).unwrap();
    pool.delete(&name("b"), false).unwrap();
    let error = pool.volume(&name("else")).unwrap_err();
    assert!(
        error.to_string().contains("disk.img:/volumes/of pool/else"),
        "{error}"
    );
}

#[test]
fn non_volume_in_an_image_is_neither_listed_nor_followed() {
    require!(Below::Ext4.requirement());
    let stand = Stand::new(PoolKind::Ext4);
    in_image(&stand.image(), |filesystem| {
        let root = filesystem.root().unwrap();
        root.create(b"dir", &new(NewKind::Directory)).unwrap();
        write_inside(filesystem, "/dir/secret", b"secret");
        for (link, target) in [("link", "dir/secret"), ("out", "/dir")] {
            let kind = NewKind::SymbolicLink(target.as_bytes());
            root.create(link.as_bytes(), &new(kind)).unwrap();
        }
        for hidden in [&b".hidden"[..], b"new\nline", b"\xff"] {
            root.create(hidden, &new(NewKind::Regular)).unwrap();
        }
    });
    let pool = &stand.pool;
    assert_eq!(names(pool), ["a"]);
    assert_eq!(pool.refresh(Default::default()).unwrap().other_names, 6);
    for volume in ["link", "dir", "out"] {
        let error = pool.volume(&name(volume)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
        for operation in [
            create(volume, MIB, Preallocation::Off),
            resize(volume, MIB, Preallocation::Off),
            clone(volume, "new", CloneMethod::Copy),
            clone("a", volume, CloneMethod::Copy),
        ] {
            let error = perform(pool, operation).unwrap_err();
            let kind = error.kind();
            assert!(
                matches!(kind, ErrorKind::WrongType | ErrorKind::AlreadyExists),
                "{error}"
            );
        }
        assert!(pool.delete(&name(volume), true).is_err());
    }
    assert_eq!(stand.read("dir/secret"), b"secret");
    stand.assert_at_rest();
}

#[test]
fn link_in_place_of_the_work_in_an_image_is_refused() {
    require!(Below::Ext4.requirement());
    let stand = Stand::new(PoolKind::Ext4);
    in_image(&stand.image(), |filesystem| {
        let root = filesystem.root().unwrap();
        let elsewhere = root.create(b"elsewhere", &new(NewKind::Directory)).unwrap();
        elsewhere.create(b"work", &new(NewKind::Directory)).unwrap();
        let kind = NewKind::SymbolicLink(b"elsewhere");
        root.create(b".extant", &new(kind)).unwrap();
    });
    let refused = perform(&stand.pool, create("b", MIB, Preallocation::Full)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotDirectory, "{refused}");
    assert!(refused.to_string().contains(".extant"), "{refused}");
}

#[test]
fn image_that_others_use_is_left_alone() {
    require!(root(), Below::Ext4.requirement());
    let stand = Stand::new(PoolKind::Ext4);
    let device = LoopDevice::attach(&stand.image());
    let refused = perform(&stand.pool, create("b", MIB, Preallocation::Full)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InUse, "{refused}");
    assert!(refused.to_string().contains("/dev/loop"), "{refused}");
    drop(device);
    perform(&stand.pool, create("b", MIB, Preallocation::Full)).unwrap();
    stand.assert_at_rest();
}

#[test]
fn disk_is_a_pool_whose_state_has_a_place_of_its_own() {
    require!(root(), Below::Ext4.requirement());
    let stand = Stand::new(PoolKind::Ext4);
    let device = LoopDevice::attach(&stand.image());
    let refused = Pool::open(Definition::of_image(device.path())).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    let state = stand.outside.join("state");
    let inside = InImage {
        state: Some(&state),
        ..InImage::default()
    };
    let pool = Pool::build(defined(device.path(), &inside)).unwrap();
    perform(&pool, create("b", MIB, Preallocation::Full)).unwrap();
    assert_eq!(names(&pool), ["a", "b"]);
    drop((pool, device));
    assert_eq!(names(&stand.pool), ["a", "b"]);
    command::must(command::tool("e2fsck").arg("-fn").arg(stand.image()));
}

#[test]
fn forty_volumes_by_eight_callers_fit_exactly_into_an_image() {
    require!(Below::Ext4.requirement());
    let scratch = in_memory(Below::Ext4, 256 * MIB);
    let image = scratch.path().join("disk.img");
    make_image(&image, 128 * MIB);
    let limits = Limits {
        total_bytes: Some(40 * MIB),
        ..Limits::default()
    };
    let name = "test".parse().unwrap();
    let definition = Definition::in_image(name, &image, &InImage::default(), limits).unwrap();
    let pool = Pool::build(definition).unwrap();
    let next = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= 40 {
                        return;
                    }
                    let volume = format!("v{number}");
                    perform(&pool, create(&volume, MIB, Preallocation::Full)).unwrap();
                }
            });
        }
    });
    assert_eq!(names(&pool).len(), 40);
    assert_eq!(pool.info().unwrap().space.available_bytes, 0);
    let refused = perform(&pool, create("one more", 1, Preallocation::Full)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    assert_at_rest(&pool);
    assert_e2fsck_clean(&image);
}

#[test]
fn sparse_image_on_a_full_disk_fails_the_job_and_is_whole_when_there_is_space() {
    require!(Below::Ext4.requirement());
    let scratch = in_memory(Below::Ext4, 128 * MIB);
    let image = scratch.path().join("disk.img");
    make_image(&image, 512 * MIB);
    let pool = pool_in(&image);
    perform(&pool, create("a", 4 * MIB, Preallocation::Full)).unwrap();
    let error = perform(&pool, create("b", 300 * MIB, Preallocation::Full)).unwrap_err();
    let kind = error.kind();
    assert!(
        matches!(
            kind,
            ErrorKind::NoSpace | ErrorKind::Io | ErrorKind::ReadOnly
        ),
        "{error}"
    );
    // If the image accepts no more writes, the job stays until a user cancels it.
    let found = pool.refresh(Leftovers::Remove).unwrap();
    assert!(found.cancelled.len() <= 1, "{found:?}");
    assert_eq!(names(&pool), ["a"]);
    assert_at_rest(&pool);
    assert_e2fsck_clean(&image);
}

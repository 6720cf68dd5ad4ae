//! Accounting: promised space exists.

use std::sync::atomic::{AtomicU32, Ordering};

use extant_pool::{CloneMethod, Definition, InImage, Limits, Pool};
use extant_space::{ErrorKind, Preallocation};
use extant_testkit::require;
use extant_testkit::scratch::{Filesystem, Scratch};

use crate::both::make_image;
use crate::stand::{
    MIB, assert_at_rest, clone, create, in_memory, name, names, perform, pool_at, pool_with,
    resize, run, submit,
};

#[test]
fn second_of_two_that_do_not_both_fit_fails_at_once() {
    require!(Filesystem::Ext4.requirement());
    let scratch = in_memory(Filesystem::Ext4, 128 * MIB);
    let pool = pool_at(scratch.path());
    let available = pool.info().unwrap().space.available_bytes;
    let size = available * 6 / 10;
    let first = submit(&pool, create("a", size, Preallocation::Full)).unwrap();
    let error = submit(&pool, create("b", size, Preallocation::Full)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(error.to_string().contains("missing"), "{error}");
    // Sparse ones are promised their capacity as well.
    let error = submit(&pool, create("b", size, Preallocation::Off)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    run(first).unwrap();
    assert_eq!(names(&pool), ["a"]);
    assert_at_rest(&pool);
}

#[test]
fn sparse_capacity_is_promised_up_to_the_overcommit() {
    require!(Filesystem::Ext4.requirement());
    let scratch = in_memory(Filesystem::Ext4, 128 * MIB);
    let limits = Limits {
        total_bytes: Some(40 * MIB),
        overcommit: "2".parse().unwrap(),
        ..Limits::default()
    };
    let pool = pool_with(&scratch.path().join("pool"), limits);
    perform(&pool, create("a", 50 * MIB, Preallocation::Off)).unwrap();
    let refused = perform(&pool, create("b", 31 * MIB, Preallocation::Off)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    perform(&pool, create("b", 30 * MIB, Preallocation::Off)).unwrap();
    let refused = perform(&pool, resize("b", 30 * MIB + 1, Preallocation::Off)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    assert_eq!(pool.info().unwrap().space.available_bytes, 0);
}

#[test]
fn total_stays_while_other_programs_write() {
    require!(Filesystem::Ext4.requirement());
    let scratch = in_memory(Filesystem::Ext4, 128 * MIB);
    let pool = pool_at(scratch.path());
    perform(&pool, create("a", 8 * MIB, Preallocation::Full)).unwrap();
    perform(&pool, create("b", 16 * MIB, Preallocation::Off)).unwrap();
    let before = pool.info().unwrap().space;
    std::fs::write(scratch.path().join(".theirs"), vec![1; 20 << 20]).unwrap();
    let after = pool.info().unwrap().space;
    assert_eq!(after.total_bytes, before.total_bytes);
    assert!(after.total_bytes > 100 * MIB, "{after:?}");
    let taken = before.available_bytes - after.available_bytes;
    assert!(taken > 15 * MIB, "{before:?} {after:?}");
}

#[test]
fn total_bounds_the_allocation_for_any_overcommit() {
    require!(Filesystem::Ext4.requirement());
    let scratch = in_memory(Filesystem::Ext4, 128 * MIB);
    let limits = Limits {
        total_bytes: Some(20 * MIB),
        overcommit: "10".parse().unwrap(),
        ..Limits::default()
    };
    let pool = pool_with(&scratch.path().join("pool"), limits);
    perform(&pool, create("a", 15 * MIB, Preallocation::Full)).unwrap();
    for operation in [
        create("b", 6 * MIB, Preallocation::Falloc),
        clone("a", "b", CloneMethod::Copy),
        resize("a", 21 * MIB, Preallocation::Full),
    ] {
        let refused = perform(&pool, operation).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
    }
    perform(&pool, create("b", 5 * MIB, Preallocation::Falloc)).unwrap();
    assert_at_rest(&pool);
}

#[test]
fn reserved_space_of_another_user_is_not_promised() {
    require!(Filesystem::Ext4.requirement());
    for options in ["rw", "resuid=12345"] {
        let scratch = Scratch::builder(Filesystem::Ext4, 256 * MIB)
            .memory(512 * MIB)
            .mkfs_options(&["-m", "40"])
            .mount_options(options)
            .build();
        let pool = pool_at(scratch.path());
        let available = pool.info().unwrap().space.available_bytes;
        assert!(available > 100 * MIB, "{options}: {available}");
        // Some blocks are for the map of the file.
        let whole = create("a", available - MIB, Preallocation::Falloc);
        perform(&pool, whole).unwrap_or_else(|error| panic!("{options}: {error}"));
    }
}

#[test]
fn reservation_shrinks_as_the_job_takes_its_space_and_ends_with_its_process() {
    require!(Filesystem::Ext4.requirement());
    let scratch = in_memory(Filesystem::Ext4, 128 * MIB);
    let limits = Limits {
        total_bytes: Some(50 * MIB),
        ..Limits::default()
    };
    let pool = pool_with(&scratch.path().join("pool"), limits);
    let before = pool.info().unwrap().space;
    let job = submit(&pool, create("a", 20 * MIB, Preallocation::Full)).unwrap();
    let during = pool.info().unwrap().space;
    assert_eq!(during.reserved_bytes, 20 * MIB);
    assert_eq!(during.available_bytes, before.available_bytes - 20 * MIB);
    drop(job);
    let after = pool.info().unwrap().space;
    assert_eq!(after.reserved_bytes, 0);
    assert_eq!(after.available_bytes, before.available_bytes);
}

/// Sixteen callers, each with one volume after the other under its own name, gone before the next,
/// in a pool that has space for one of each.
fn make_and_remove(pool: &Pool, times: u32) {
    std::thread::scope(|scope| {
        for caller in 0..16 {
            scope.spawn(move || {
                let volume = format!("v{caller}");
                for _ in 0..times {
                    perform(pool, create(&volume, MIB, Preallocation::Falloc)).unwrap();
                    pool.delete(&name(&volume), false).unwrap();
                }
            });
        }
    });
    assert_eq!(pool.info().unwrap().space.available_bytes, 16 * MIB);
    assert_at_rest(pool);
}

#[test]
fn volumes_that_just_get_their_names_are_not_counted_twice() {
    require!(Filesystem::Ext4.requirement());
    let scratch = in_memory(Filesystem::Ext4, 192 * MIB);
    let limits = Limits {
        total_bytes: Some(16 * MIB),
        ..Limits::default()
    };
    make_and_remove(&pool_with(&scratch.path().join("pool"), limits.clone()), 30);
    let image = scratch.path().join("disk.img");
    make_image(&image, 64 * MIB);
    let inside = InImage::default();
    let definition =
        Definition::in_image("image".parse().unwrap(), &image, &inside, limits).unwrap();
    make_and_remove(&Pool::build(definition).unwrap(), 10);
}

#[test]
fn two_hundred_volumes_by_sixteen_callers_fit_exactly() {
    require!(Filesystem::Ext4.requirement());
    let scratch = in_memory(Filesystem::Ext4, 512 * MIB);
    let limits = Limits {
        total_bytes: Some(200 * MIB),
        ..Limits::default()
    };
    let pool = pool_with(&scratch.path().join("pool"), limits);
    let next = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= 200 {
                        return;
                    }
                    let volume = format!("v{number}");
                    perform(&pool, create(&volume, MIB, Preallocation::Full)).unwrap();
                }
            });
        }
    });
    let volumes = pool.volumes().unwrap();
    assert_eq!(volumes.len(), 200);
    for listed in volumes {
        let info = pool.volume(&listed.name).unwrap();
        assert_eq!(info.written_bytes, MIB);
        // As with one caller: each was allocated as a whole.
        assert!(info.map.fragments() <= 2, "{info:?}");
    }
    assert_eq!(pool.info().unwrap().space.available_bytes, 0);
    let refused = perform(&pool, create("one more", 1, Preallocation::Full)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    assert_at_rest(&pool);
}

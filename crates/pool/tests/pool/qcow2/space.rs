//! Space reserved for a materialize, and space used.

use std::fs::{self, File};

use extant_pool::{CloneMethod, Limits, Pool};
use extant_space::{ErrorKind, Preallocation};
use extant_testkit::require;
use extant_testkit::requires::tool;
use extant_testkit::scratch::{Filesystem, Scratch};

use super::{Stand, materialize, qemu, qemu_img};
use crate::stand::{
    KIB, MIB, assert_at_rest, clone, create, name, perform, pool_with, run, submit, unshare,
};

/// Block size of the file system.
const BLOCK: u64 = 4 * KIB;
/// Its own blocks for the map of a file, which are not counted before.
const MAP: u64 = 32 * KIB;

fn taken(pool: &Pool, volume: &str) -> u64 {
    pool.volume(&name(volume)).unwrap().allocation_bytes
}

#[test]
fn materialize_uses_its_reservation() {
    require!(Filesystem::Ext4.requirement(), qemu_img(), tool("qemu-io"));
    let stand = Stand::new();
    stand.with_data("thin.qcow2");
    stand.with_data("long.qcow2");
    // As a crash leaves it; the pool does not have that much.
    let long = File::options().write(true).open(stand.path("long.qcow2"));
    long.unwrap().set_len(1 << 40).unwrap();
    stand.with_data("kept.qcow2");
    let kept = stand.path("kept.qcow2");
    qemu("qemu-img", &[&"snapshot", &"-c", &"one", &kept]);
    let packed = stand.path("packed.qcow2");
    qemu(
        "qemu-img",
        &[
            &"convert", &"-c", &"-f", &"qcow2", &"-O", &"qcow2", &kept, &packed,
        ],
    );
    perform(
        &stand.pool,
        create("raw", 5 * MIB + 700, Preallocation::Off),
    )
    .unwrap();
    for volume in [
        "thin.qcow2",
        "long.qcow2",
        "kept.qcow2",
        "packed.qcow2",
        "raw",
    ] {
        let before = taken(&stand.pool, volume);
        let job = submit(&stand.pool, materialize(volume)).unwrap();
        let reserved = stand.pool.info().unwrap().space.reserved_bytes;
        run(job).unwrap();
        let taken = taken(&stand.pool, volume) - before;
        assert!(
            (reserved - BLOCK..=reserved + MAP).contains(&taken),
            "{volume}: {reserved} reserved, {taken} taken"
        );
        assert_at_rest(&stand.pool);
    }
}

#[test]
fn of_two_images_with_snapshots_that_do_not_both_become_full_one_fails_at_once() {
    require!(Filesystem::Ext4.requirement(), qemu_img(), tool("qemu-io"));
    let stand = Stand::new();
    for volume in ["a", "b"] {
        stand.with_data(volume);
        let path = stand.path(volume);
        qemu("qemu-img", &[&"snapshot", &"-c", &"one", &path]);
    }
    let allocated = taken(&stand.pool, "a") + taken(&stand.pool, "b");
    let limits = Limits {
        // Room for the unmapped clusters of both, but not for the clusters that the snapshots share
        // as well.
        total_bytes: Some(allocated + 13 * MIB),
        overcommit: "4".parse().unwrap(),
        ..Limits::default()
    };
    let pool = pool_with(stand.scratch.path(), limits);
    let job = submit(&pool, materialize("a")).unwrap();
    let error = submit(&pool, materialize("b")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(error.to_string().contains("missing"), "{error}");
    run(job).unwrap();
    assert_at_rest(&pool);
}

#[test]
fn image_that_becomes_larger_than_was_promised_needs_the_capacity() {
    require!(Filesystem::Ext4.requirement(), qemu_img(), tool("qemu-io"));
    let stand = Stand::new();
    stand.with_data("a");
    let path = stand.path("a");
    qemu("qemu-img", &[&"snapshot", &"-c", &"one", &path]);
    let promised = stand.pool.info().unwrap().space.promised_bytes;
    let pool = |more: u64| {
        let limits = Limits {
            total_bytes: Some(promised + more),
            ..Limits::default()
        };
        pool_with(stand.scratch.path(), limits)
    };
    let error = submit(&pool(2 * MIB), materialize("a")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(error.to_string().contains("of capacity wanted"), "{error}");
    // Space that the snapshot keeps.
    let pool = pool(4 * MIB);
    let job = submit(&pool, materialize("a")).unwrap();
    let during = pool.info().unwrap().space;
    assert!(during.promised_bytes > promised, "{during:?}");
    run(job).unwrap();
    let after = pool.info().unwrap().space;
    assert!(
        after.promised_bytes <= during.promised_bytes + MAP,
        "{after:?}"
    );
}

#[test]
fn shared_parts_that_get_space_of_their_own_are_reserved() {
    require!(Filesystem::Xfs.requirement());
    // XFS gives a file that grows more than it needs, for a while.
    let scratch = Scratch::builder(Filesystem::Xfs, 512 * MIB)
        .memory(1024 * MIB)
        .mount_options("allocsize=4k")
        .build();
    let limits = Limits {
        total_bytes: Some(34 * MIB),
        ..Limits::default()
    };
    let pool = pool_with(&scratch.path().join("pool"), limits);
    perform(&pool, create("a", 8 * MIB, Preallocation::Full)).unwrap();
    for copy in ["b", "c"] {
        perform(&pool, clone("a", copy, CloneMethod::Reflink)).unwrap();
    }
    let job = submit(&pool, unshare("b")).unwrap();
    let id = job.id();
    assert_eq!(pool.info().unwrap().space.reserved_bytes, 8 * MIB);
    let error = submit(&pool, unshare("c")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(error.to_string().contains("6 MiB missing"), "{error}");
    // Its process dies when it has done most, and others take the space.
    drop(job);
    fs::write(scratch.path().join("pool/b"), vec![0; 8 << 20]).unwrap();
    perform(&pool, create("d", 10 * MIB, Preallocation::Full)).unwrap();
    run(pool.resume(id).unwrap()).unwrap();
    let info = pool.volume(&name("b")).unwrap();
    assert_eq!(info.map.shared_bytes(), 0);
    assert_at_rest(&pool);
}

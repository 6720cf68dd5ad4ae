//! File systems that are full, read-only or missing, and invalid state.

use std::fs;
use std::os::unix::fs::{FileExt, chown};
use std::time::Duration;

use extant_pool::{Definition, JobState, Limits, OnStop, Pool};
use extant_space::{CancelToken, Control, ErrorKind, Preallocation, Silent};
use extant_testkit::requires::root;
use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::{command, require};

use crate::stand::{
    MIB, assert_at_rest, create, in_memory, name, names, perform, pool_at, pool_with, submit,
};

#[test]
fn job_that_finds_the_disk_full_ends_and_leaves_nothing() {
    require!(root(), Filesystem::Ext4.requirement());
    let scratch = in_memory(Filesystem::Ext4, 64 * MIB);
    let pool = pool_at(scratch.path());
    let job = submit(&pool, create("a", 20 * MIB, Preallocation::Full)).unwrap();
    let id = job.id();
    // Another program, which ignores reservations, takes everything.
    let hog = fs::File::create(scratch.path().join(".hog")).unwrap();
    let block = vec![1; MIB as usize];
    for size in [MIB, 4096] {
        let mut at = hog.metadata().unwrap().len();
        while hog.write_all_at(&block[..size as usize], at).is_ok() {
            at += size;
        }
    }
    hog.sync_all().unwrap();
    let error = job
        .run(OnStop::Cancel, Control::new(&CancelToken::new(), &Silent))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    let status = pool.job(id).unwrap();
    assert_eq!(status.state, JobState::Failed);
    assert_eq!(status.result().unwrap_err().kind(), ErrorKind::NoSpace);
    assert!(names(&pool).is_empty());
    let refused = submit(&pool, create("b", MIB, Preallocation::Full)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
    fs::remove_file(scratch.path().join(".hog")).unwrap();
    drop(hog);
    // Freed blocks can be had when the journal has committed.
    let made = (0..100).find_map(|_| {
        fs::File::open(scratch.path()).unwrap().sync_all().unwrap();
        match perform(&pool, create("b", MIB, Preallocation::Full)) {
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                std::thread::sleep(Duration::from_millis(20));
                None
            }
            done => Some(done),
        }
    });
    made.expect("space comes back").unwrap();
    assert_at_rest(&pool);
}

/// A process just forked by another test has files open for writing for a moment.
fn remount_read_only(scratch: &Scratch) {
    let remount = || {
        let mut mount = command::tool("mount");
        command::run(mount.args(["-o", "remount,ro"]).arg(scratch.path()))
    };
    let done = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        remount().is_ok()
    });
    assert!(done, "{:?}", remount());
}

#[test]
fn read_only_pool_is_looked_at_and_not_changed() {
    require!(root(), Filesystem::Ext4.requirement());
    let scratch = in_memory(Filesystem::Ext4, 64 * MIB);
    perform(
        &pool_at(scratch.path()),
        create("a", MIB, Preallocation::Full),
    )
    .unwrap();
    remount_read_only(&scratch);
    let pool = pool_at(scratch.path());
    assert_eq!(names(&pool), ["a"]);
    assert_eq!(pool.volume(&name("a")).unwrap().written_bytes, MIB);
    assert_eq!(pool.info().unwrap().space.volumes, 1);
    let refused = perform(&pool, create("b", MIB, Preallocation::Full)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly, "{refused}");
    let refused = pool.delete(&name("a"), false).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly, "{refused}");
    scratch.remount("rw");
    assert_at_rest(&pool);
}

#[test]
fn directory_whose_file_system_is_not_mounted_is_not_filled() {
    require!(root(), Filesystem::Ext4.requirement());
    let mut scratch = in_memory(Filesystem::Ext4, 64 * MIB);
    let place = scratch.path().to_path_buf();
    let definition = pool_with(&place, Limits::default()).definition().clone();
    perform(
        &Pool::open(definition.clone()).unwrap(),
        create("a", MIB, Preallocation::Full),
    )
    .unwrap();
    scratch.unmount();
    let error = Pool::open(definition).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("mount"), "{error}");
    let gone = Pool::open(Definition::of_directory(&place.join("nothing"))).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound);
}

#[test]
fn state_of_another_user_is_not_used() {
    require!(root(), Filesystem::Ext4.requirement());
    let scratch = in_memory(Filesystem::Ext4, 64 * MIB);
    let pool = pool_at(scratch.path());
    perform(&pool, create("a", MIB, Preallocation::Off)).unwrap();
    chown(scratch.path().join(".extant"), Some(1234), None).unwrap();
    assert_eq!(names(&pool), ["a"]);
    assert_eq!(pool.info().unwrap().space.volumes, 1);
    let refused = perform(&pool, create("b", MIB, Preallocation::Off)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    assert!(refused.to_string().contains("1234"), "{refused}");
}

#[test]
fn unreadable_record_is_reported_with_its_path() {
    require!(Filesystem::Ext4.requirement());
    let scratch = in_memory(Filesystem::Ext4, 64 * MIB);
    let pool = pool_at(scratch.path());
    perform(&pool, create("a", MIB, Preallocation::Off)).unwrap();
    fs::write(scratch.path().join(".extant/jobs/1.json"), "{").unwrap();
    let error = pool.jobs().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("1.json"), "{error}");
    // A second volume is still to be had.
    assert_eq!(names(&pool), ["a"]);
}

#[test]
fn disk_that_fails_in_the_middle_leaves_no_volume() {
    require!(root(), Filesystem::Ext4.requirement());
    // Thin: more is promised than there is, and a write in the middle fails.
    let scratch = Scratch::builder(Filesystem::Ext4, 256 * MIB)
        .memory(64 * MIB)
        .build();
    let pool = pool_at(scratch.path());
    let job = submit(&pool, create("a", 150 * MIB, Preallocation::Full)).unwrap();
    let id = job.id();
    let error = job
        .run(OnStop::Cancel, Control::new(&CancelToken::new(), &Silent))
        .unwrap_err();
    let kind = error.kind();
    assert!(
        matches!(
            kind,
            ErrorKind::Io | ErrorKind::NoSpace | ErrorKind::ReadOnly
        ),
        "{error}"
    );
    assert!(names(&pool).is_empty());
    // If the disk accepts no more data, the job stays until a user cancels it after the repair.
    match pool.job(id) {
        Ok(job) => assert!(matches!(
            job.state,
            JobState::Failed | JobState::Interrupted
        )),
        Err(error) => assert!(
            matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Io),
            "{error}"
        ),
    }
}

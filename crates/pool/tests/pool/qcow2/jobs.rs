//! Jobs on images, stopped at every point.

use std::fs;

use extant_image::{Format, Preallocation};
use extant_pool::{CloneMethod, JobState, OnStop, Operation, WipeMethod};
use extant_space::{ErrorKind, SpaceFile};
use extant_testkit::require;
use extant_testkit::requires::tool;
use extant_testkit::scratch::Filesystem;

use super::{
    Stand, assert_image, assert_reads, image, materialize, qemu_img, resize, upload, wipe,
};
use crate::jobs::run_until;
use crate::stand::{MIB, assert_at_rest, clone, name, run, submit};

/// An image as it was before, without leaks.
#[track_caller]
fn assert_as_before(stand: &Stand, content: &[u8]) {
    let path = stand.path("a");
    let images: Vec<_> = stand.pool.volumes().unwrap();
    assert_eq!(images.len(), 1);
    assert_image(&path, content.len() as u64);
    assert_reads(&path, content);
    assert_at_rest(&stand.pool);
}

fn operations(stand: &Stand) -> Vec<Operation> {
    let mut thin = upload("b", &stand.outside.join("source"), Some(Format::Qcow2));
    thin.mode = 0o640;
    vec![
        Operation::Create(image("b", 8 * MIB, Preallocation::Full)),
        Operation::Create(image("b", 8 * MIB, Preallocation::Off)),
        clone("a", "b", CloneMethod::Copy),
        Operation::Upload(thin),
        resize("a", 20 * MIB, Preallocation::Full, false),
        resize("a", 20 * MIB, Preallocation::Metadata, false),
        materialize("a"),
    ]
}

#[test]
fn job_on_an_image_cancelled_at_any_point_leaves_it_as_before() {
    require!(Filesystem::Ext4.requirement(), qemu_img(), tool("qemu-io"));
    let stand = Stand::new();
    let content = stand.with_data("a");
    fs::copy(stand.path("a"), stand.outside.join("source")).unwrap();
    for operation in operations(&stand) {
        for point in 0.. {
            let job = submit(&stand.pool, operation.clone()).unwrap();
            let id = job.id();
            match run_until(point, job, OnStop::Cancel) {
                Ok(()) => break,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Cancelled, "{operation:?}: {error}");
                    assert_eq!(stand.pool.job(id).unwrap().state, JobState::Cancelled);
                    assert_as_before(&stand, &content);
                }
            }
        }
        let _ = stand.pool.delete(&name("b"), false);
        fs::copy(stand.outside.join("source"), stand.path("a")).unwrap();
    }
}

#[test]
fn job_on_an_image_interrupted_at_any_point_is_resumed_to_the_same_end() {
    require!(Filesystem::Ext4.requirement(), qemu_img(), tool("qemu-io"));
    let stand = Stand::new();
    let mut content = stand.with_data("a");
    fs::copy(stand.path("a"), stand.outside.join("source")).unwrap();
    let mut all = operations(&stand);
    all.push(wipe("a", WipeMethod::Zero));
    for operation in all {
        for point in 0.. {
            let job = submit(&stand.pool, operation.clone()).unwrap();
            let id = job.id();
            let is_last = match run_until(point, job, OnStop::Interrupt) {
                Ok(()) => true,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Cancelled, "{operation:?}: {error}");
                    run(stand.pool.resume(id).unwrap()).unwrap();
                    false
                }
            };
            let info = stand.pool.volume(operation.volume()).unwrap();
            assert_eq!(info.format, Some(Format::Qcow2));
            assert_image(&info.path, info.capacity_bytes);
            match &operation {
                Operation::Create(create) => {
                    let image = info.image.unwrap();
                    assert_eq!(image.preallocation, create.preallocation);
                }
                Operation::Wipe(_) => assert_reads(&info.path, &vec![0; 8 << 20]),
                _ => {
                    content.resize(info.capacity_bytes as usize, 0);
                    assert_reads(&info.path, &content);
                }
            }
            assert_at_rest(&stand.pool);
            let _ = stand.pool.delete(&name("b"), false);
            fs::copy(stand.outside.join("source"), stand.path("a")).unwrap();
            content.truncate(8 << 20);
            if is_last {
                break;
            }
        }
    }
}

#[test]
fn wipe_of_an_image_that_was_given_up_leaves_an_empty_image_or_an_untouched_one() {
    require!(Filesystem::Ext4.requirement(), qemu_img(), tool("qemu-io"));
    let stand = Stand::new();
    let content = stand.with_data("a");
    fs::copy(stand.path("a"), stand.outside.join("source")).unwrap();
    let (mut untouched, mut empty) = (0, 0);
    for point in 0.. {
        let job = submit(&stand.pool, wipe("a", WipeMethod::Zero)).unwrap();
        if run_until(point, job, OnStop::Cancel).is_ok() {
            break;
        }
        let path = stand.path("a");
        assert_image(&path, 8 * MIB);
        let layer =
            extant_image::open_path(&path, None, extant_image::ReferencedFiles::Ignore).unwrap();
        let mut first = vec![0; 8 << 20];
        layer.read_at(&mut first, 0).unwrap();
        if first == content {
            untouched += 1
        } else {
            assert!(first.iter().all(|&byte| byte == 0));
            empty += 1;
        }
        assert_at_rest(&stand.pool);
        fs::copy(stand.outside.join("source"), stand.path("a")).unwrap();
    }
    assert!(untouched > 0 && empty > 0, "{untouched} {empty}");
    let file = extant_hostfs::HostFile::open_read(&stand.path("a")).unwrap();
    assert!(file.size().unwrap() < 8 * MIB);
}

//! Disk images as volumes of an ext4 file-system image, checked after download.

use std::path::PathBuf;

use extant_image::{Format, Preallocation};
use extant_pool::{CloneMethod, Download, OnStop, Operation, PoolKind, WipeMethod};
use extant_testkit::require;
use extant_testkit::requires::tool;
use extant_testkit::scratch::Filesystem;

use super::{
    MODES, assert_image, assert_reads, image, materialize, qemu, qemu_img, resize, upload, wipe,
};
use crate::both::Stand;
use crate::jobs::run_until;
use crate::stand::{MIB, clone, download, name, perform, run, submit};

/// The volume as a file of the host.
fn fetch(stand: &Stand, volume: &str) -> PathBuf {
    let target = stand.outside.join(format!("{volume}.out"));
    let download = Download {
        replace: true,
        ..download(volume, &target)
    };
    perform(&stand.pool, Operation::Download(download)).unwrap();
    target
}

#[test]
fn image_inside_an_image_has_the_requested_properties() {
    require!(Filesystem::Ext4.requirement(), qemu_img());
    let stand = Stand::new(PoolKind::Ext4);
    for mode in MODES {
        let create = image(mode.name(), 10 * MIB, mode);
        perform(&stand.pool, Operation::Create(create)).unwrap();
        let info = stand.pool.volume(&name(mode.name())).unwrap();
        assert_eq!(info.format, Some(Format::Qcow2));
        assert_eq!(info.capacity_bytes, 10 * MIB);
        assert_eq!(info.image.as_ref().unwrap().preallocation, mode);
        let is_there = matches!(mode, Preallocation::Falloc | Preallocation::Full);
        assert_eq!(info.may_run_out_of_space, !is_there, "{info:?}");
        assert_image(&fetch(&stand, mode.name()), 10 * MIB);
    }
    let listed = stand.pool.volumes().unwrap();
    let images = listed.iter().filter(|it| it.format == Some(Format::Qcow2));
    assert!(images.clone().all(|it| it.capacity_bytes == 10 * MIB));
    assert_eq!(images.count(), 4);
    stand.assert_at_rest();
}

#[test]
fn image_is_changed_inside_an_image_as_on_the_host() {
    require!(Filesystem::Ext4.requirement(), qemu_img(), tool("qemu-io"));
    let stand = Stand::new(PoolKind::Ext4);
    let source = stand.outside.join("source.qcow2");
    qemu(
        "qemu-img",
        &[&"create", &"-q", &"-f", &"qcow2", &source, &"8M"],
    );
    for write in ["write -P 7 1M 3M", "write -P 9 5M 1000"] {
        qemu("qemu-io", &[&"-f", &"qcow2", &"-c", &write, &source]);
    }
    let mut content = vec![0; 8 << 20];
    content[1 << 20..4 << 20].fill(7);
    content[5 << 20..(5 << 20) + 1000].fill(9);
    let up = upload("i", &source, Some(Format::Qcow2));
    perform(&stand.pool, Operation::Upload(up)).unwrap();
    let check = |volume: &str, content: &[u8]| {
        let path = fetch(&stand, volume);
        assert_image(&path, content.len() as u64);
        assert_reads(&path, content);
    };
    check("i", &content);
    perform(&stand.pool, clone("i", "c", CloneMethod::Auto)).unwrap();
    check("c", &content);
    let grow = resize("c", 12 * MIB, Preallocation::Falloc, false);
    perform(&stand.pool, grow).unwrap();
    content.resize(12 << 20, 0);
    check("c", &content);
    perform(&stand.pool, materialize("c")).unwrap();
    check("c", &content);
    let info = stand.pool.volume(&name("c")).unwrap();
    assert_eq!(info.written_bytes, 12 * MIB);
    perform(&stand.pool, wipe("c", WipeMethod::Zero)).unwrap();
    check("c", &vec![0; 12 << 20]);
    perform(&stand.pool, wipe("i", WipeMethod::Discard)).unwrap();
    check("i", &vec![0; 8 << 20]);
    stand.assert_at_rest();
}

#[test]
fn creation_inside_an_image_interrupted_at_any_point_is_resumed() {
    require!(Filesystem::Ext4.requirement(), qemu_img());
    let stand = Stand::new(PoolKind::Ext4);
    for mode in [Preallocation::Metadata, Preallocation::Full] {
        let operation = Operation::Create(image("new", MIB / 2, mode));
        for point in 0.. {
            let job = submit(&stand.pool, operation.clone()).unwrap();
            let id = job.id();
            let interrupted = run_until(point, job, OnStop::Interrupt);
            if interrupted.is_err() {
                run(stand.pool.resume(id).unwrap()).unwrap();
            }
            assert_image(&fetch(&stand, "new"), MIB / 2);
            stand.pool.delete(&name("new"), false).unwrap();
            stand.assert_at_rest();
            if interrupted.is_ok() {
                break;
            }
        }
    }
}

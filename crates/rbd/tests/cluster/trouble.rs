//! Clusters that stop, run full, and images that others change.

use std::time::{Duration, Instant};

use extant_blockdev::{Device, Persistence};
use extant_rbd::{ImageFeatures, ImageLayout, Pool, RbdAccess, RbdDevice, RbdName};
use extant_space::ErrorKind;
use extant_testkit::ceph::{Ceph, CephOptions, POOL};
use extant_testkit::{command, require};

const MIB: u64 = 1 << 20;

#[test]
fn frozen_cluster_is_an_error_in_bounded_time_and_works_again_afterwards() {
    require!(Ceph::requirement());
    let ceph = Ceph::start(CephOptions::default());
    let name = crate::image(&ceph, "frozen", 8 * MIB, &ImageLayout::default());
    let name: RbdName = format!("{name}:rados_osd_op_timeout=2:rbd_cache=false")
        .parse()
        .unwrap();
    let device = RbdDevice::open(&name, RbdAccess::ReadWrite).unwrap();
    device.write_at(&[1; 4096], 0, Persistence::Cached).unwrap();
    ceph.freeze_osd(0);
    let started = Instant::now();
    let error = device
        .write_at(&[2; 4096], MIB, Persistence::Cached)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert!(
        error.to_string().contains("has not answered within 2 s"),
        "{error}"
    );
    let mut seen = [0; 4096];
    device.read_at(&mut seen, 0).unwrap_err();
    assert!(
        started.elapsed() < Duration::from_secs(20),
        "{:?}",
        started.elapsed()
    );
    ceph.thaw_osd(0);
    ceph.wait_for("an answer", |_| device.read_at(&mut [0; 4096], 0).is_ok());
    device.write_at(&[3; 4096], MIB, Persistence::Fua).unwrap();
    device.read_at(&mut seen, MIB).unwrap();
    assert_eq!(seen, [3; 4096]);
}

#[test]
fn killed_daemon_with_a_copy_left_is_waited_for_and_loses_nothing() {
    require!(Ceph::requirement());
    let mut ceph = Ceph::start(CephOptions {
        osds: 2,
        copies: 2,
        ..CephOptions::default()
    });
    let name = crate::image(&ceph, "copied", 16 * MIB, &ImageLayout::default());
    let device = RbdDevice::open(&name, RbdAccess::ReadWrite).unwrap();
    device.write_at(&[1; 4096], 0, Persistence::Fua).unwrap();
    ceph.kill_osd(0);
    for at in 0..4 {
        device
            .write_at(&[2; 4096], at * 4 * MIB + 4096, Persistence::Fua)
            .unwrap();
    }
    let mut seen = [0; 8192];
    device.read_at(&mut seen, 0).unwrap();
    assert!(seen[..4096] == [1; 4096] && seen[4096..] == [2; 4096]);
}

#[test]
fn full_cluster_refuses_writes_at_once_and_keeps_what_it_has() {
    require!(Ceph::requirement());
    let ceph = Ceph::start(CephOptions {
        osd_bytes: 256 * MIB,
        manager: true,
        ..CephOptions::default()
    });
    let name = crate::image(&ceph, "large", 512 * MIB, &ImageLayout::default());
    // Ours can be removed from the full pool; those of rbd need a trash, which it cannot make then.
    let pool = crate::pool(&ceph);
    pool.create("ours", 8 * MIB, &ImageLayout::default())
        .unwrap();
    ceph.ask_rbd(&["namespace", "create", "--namespace", "other"]);
    ceph.ask_rbd(&["create", "--namespace", "other", "--size", "8M", "foreign"]);
    let other = Pool::open(pool.cluster(), POOL, "other").unwrap();
    let name: RbdName = format!("{name}:rbd_cache=false").parse().unwrap();
    let device = RbdDevice::open(&name, RbdAccess::ReadWrite).unwrap();
    device
        .write_at(&vec![1; 64 * MIB as usize], 0, Persistence::Fua)
        .unwrap();
    ceph.fill();
    let started = Instant::now();
    let full = |_: &Ceph| match device.write_at(&[2; 4096], 128 * MIB, Persistence::Fua) {
        Ok(()) => false,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            true
        }
    };
    ceph.wait_for("a refused write", full);
    assert!(started.elapsed() < Duration::from_secs(40));
    pool.remove("ours", &|_, _| {}).unwrap();
    assert_eq!(pool.images().unwrap(), ["large"]);
    let refused = other.remove("foreign", &|_, _| {}).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
    assert!(refused.to_string().contains("to the trash"), "{refused}");
    assert_eq!(other.images().unwrap(), ["foreign"]);
    let mut seen = vec![0; 64 * MIB as usize];
    device.read_at(&mut seen, 0).unwrap();
    assert!(seen.iter().all(|&byte| byte == 1));
}

#[test]
fn image_made_smaller_by_another_client_fails_what_lies_beyond_its_end() {
    require!(Ceph::requirement());
    let ceph = Ceph::shared();
    let plain = ImageLayout {
        features: ImageFeatures::LAYERING,
        ..ImageLayout::default()
    };
    let name = crate::image(ceph, "shrunk", 16 * MIB, &plain);
    let device = RbdDevice::open(&name, RbdAccess::ReadWrite).unwrap();
    device
        .write_at(&[1; 4096], 12 * MIB, Persistence::Fua)
        .unwrap();
    ceph.ask_rbd(&["resize", "--allow-shrink", "--size", "8M", "shrunk"]);
    ceph.wait_for("the notice", |_| device.image().size().unwrap() == 8 * MIB);
    let mut seen = [9; 4096];
    for error in [
        device.read_at(&mut seen, 12 * MIB).unwrap_err(),
        device
            .write_at(&[2; 8192], 8 * MIB - 4096, Persistence::Cached)
            .unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        assert!(
            error.to_string().contains("it has 8388608 bytes"),
            "{error}"
        );
    }
    device.read_at(&mut seen, 0).unwrap();
    assert_eq!(device.refresh().unwrap(), 8 * MIB);
}

#[test]
fn image_in_use_cannot_be_removed_by_others_even_while_it_is_read() {
    require!(Ceph::requirement());
    let ceph = Ceph::shared();
    let name = crate::image(ceph, "kept", MIB, &ImageLayout::default());
    for access in [RbdAccess::ReadOnly, RbdAccess::ReadWrite] {
        let _device = RbdDevice::open(&name, access).unwrap();
        let failure = command::run(ceph.rbd().args(["rm", "kept"])).unwrap_err();
        assert!(failure.to_string().contains("watchers"), "{failure}");
    }
}

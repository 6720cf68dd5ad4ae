//! Images by name, snapshots, clones, metadata, statistics.

use std::sync::atomic::{AtomicU64, Ordering};

use extant_blockdev::{Device, Persistence};
use extant_rbd::{Image, ImageFeatures, ImageLayout, ObjectDetail, RbdAccess};
use extant_space::{ByteRange, ErrorKind};
use extant_testkit::ceph::{Ceph, CephOptions};
use extant_testkit::require;

use crate::pool;

const MIB: u64 = 1 << 20;

fn silent(_: u64, _: u64) {}

#[test]
fn created_image_is_listed_renamed_resized_and_removed_as_rbd_sees_it() {
    require!(Ceph::requirement());
    let ceph = Ceph::shared();
    let pool = pool(ceph);
    let layout = ImageLayout {
        object_bytes: MIB,
        striping: Some((64 << 10, 4)),
        features: ImageFeatures::USUAL | ImageFeatures::STRIPING,
        data_pool: None,
    };
    pool.create("admin-a", 10 * MIB, &layout).unwrap();
    let again = pool.create("admin-a", MIB, &layout).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AlreadyExists, "{again}");
    let info = ceph.ask_rbd(&["info", "admin-a"]);
    for part in [
        "order 20 (1 MiB objects)",
        "stripe unit: 64 KiB",
        "stripe count: 4",
    ] {
        assert!(info.contains(part), "{part:?} not in {info}");
    }
    pool.rename("admin-a", "admin-b").unwrap();
    assert!(pool.images().unwrap().contains(&"admin-b".to_owned()));
    {
        let image = Image::open(&pool, "admin-b", None, RbdAccess::ReadWrite).unwrap();
        assert_eq!((image.object_bytes(), image.stripe_bytes()), (MIB, 4 * MIB));
        image.resize(20 * MIB, false, &silent).unwrap();
        let smaller = image.resize(MIB, false, &silent).unwrap_err();
        assert_eq!(smaller.kind(), ErrorKind::InvalidArgument, "{smaller}");
        assert!(ceph.ask_rbd(&["info", "admin-b"]).contains("size 20 MiB"));
        image.set_metadata("extant.state", "ready").unwrap();
        assert_eq!(
            ceph.ask_rbd(&["image-meta", "get", "admin-b", "extant.state"])
                .trim(),
            "ready"
        );
        assert_eq!(
            image.metadata("extant.state").unwrap().as_deref(),
            Some("ready")
        );
        image.remove_metadata("extant.state").unwrap();
        assert_eq!(image.metadata("extant.state").unwrap(), None);
        let busy = pool.remove("admin-b", &silent).unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::InUse, "{busy}");
    }
    let objects = AtomicU64::new(0);
    pool.remove("admin-b", &|_, all| objects.store(all, Ordering::Relaxed))
        .unwrap();
    assert!(objects.into_inner() > 0);
    let gone = pool.remove("admin-b", &silent).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound, "{gone}");
    assert!(!ceph.ask_rbd(&["ls"]).contains("admin-b"));
}

#[test]
fn clone_shows_its_parent_until_it_is_flattened() {
    require!(Ceph::requirement());
    let ceph = Ceph::shared();
    let pool = pool(ceph);
    let name = crate::image(ceph, "parent", 16 * MIB, &ImageLayout::default());
    {
        let device = extant_rbd::RbdDevice::open(&name, RbdAccess::ReadWrite).unwrap();
        device
            .write_at(&[7; 4096], 8 * MIB, Persistence::Fua)
            .unwrap();
        let image = device.image();
        image.create_snapshot("one").unwrap();
        image.protect_snapshot("one").unwrap();
        assert!(image.is_protected("one").unwrap());
        assert_eq!(image.snapshots().unwrap()[0].name, "one");
        let kept = image.remove_snapshot("one").unwrap_err();
        assert_eq!(kept.kind(), ErrorKind::InUse, "{kept}");
    }
    pool.clone_image(("parent", "one"), &pool, "child", &ImageLayout::default())
        .unwrap();
    let child = Image::open(&pool, "child", None, RbdAccess::ReadWrite).unwrap();
    let whole = ByteRange::new(0, 16 * MIB);
    let object = [ByteRange::new(8 * MIB, 12 * MIB)];
    assert_eq!(child.data_in(whole, ObjectDetail::Objects).unwrap(), object);
    assert!(
        ceph.ask_rbd(&["info", "child"])
            .contains("parent: rbd/parent@one")
    );
    let steps = AtomicU64::new(0);
    child
        .flatten(&|done, _| {
            steps.fetch_max(done, Ordering::Relaxed);
        })
        .unwrap();
    assert!(steps.into_inner() > 0);
    assert!(!ceph.ask_rbd(&["info", "child"]).contains("parent:"));
    assert_eq!(child.data_in(whole, ObjectDetail::Objects).unwrap(), object);
    let parent = Image::open(&pool, "parent", None, RbdAccess::ReadWrite).unwrap();
    parent.unprotect_snapshot("one").unwrap();
    parent.remove_snapshot("one").unwrap();
    assert_eq!(parent.snapshots().unwrap(), []);
}

#[test]
fn statistics_count_copies_out_and_name_the_ratios() {
    require!(Ceph::requirement());
    let ceph = Ceph::start(CephOptions {
        osds: 2,
        copies: 2,
        osd_bytes: 1 << 30,
        manager: true,
    });
    let pool = pool(&ceph);
    crate::image(&ceph, "counted", 64 * MIB, &ImageLayout::default());
    ceph.ask_rbd(&[
        "bench",
        "--io-type",
        "write",
        "--io-size",
        "4M",
        "--io-total",
        "64M",
        "counted",
    ]);
    // None before the manager's first report.
    let counted = |_: &Ceph| {
        pool.statistics().is_ok_and(|statistics| {
            statistics.stored_bytes >= 64 * MIB && statistics.available_bytes > 0
        })
    };
    ceph.wait_for("64 MiB in the statistics", counted);
    let statistics = pool.statistics().unwrap();
    assert_eq!(statistics.copies, 2);
    assert!(statistics.stored_bytes < 80 * MIB, "{statistics:?}");
    // Each daemon has 1 GiB, and each byte is stored in both.
    assert!(statistics.available_bytes < 1 << 30, "{statistics:?}");
    // The monitors store them with less precision.
    let is_near = |ratio: f64, wanted: f64| (ratio - wanted).abs() < 1e-6;
    assert!(is_near(statistics.nearfull_ratio, 0.85) && is_near(statistics.full_ratio, 0.95));
    assert!(!statistics.is_full && statistics.quota_bytes.is_none());
    ceph.ask(&["osd", "pool", "set-quota", "rbd", "max_bytes", "83886080"]);
    let limited = pool.statistics().unwrap();
    assert_eq!(limited.quota_bytes, Some(80 * MIB));
    assert!(limited.available_bytes <= 16 * MIB, "{limited:?}");
}

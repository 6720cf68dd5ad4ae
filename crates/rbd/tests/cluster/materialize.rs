//! Thick images: every object exists afterwards, by Ceph's own list of objects; data stays; a
//! cancel and a stopped cluster end in bounded time, and the next run does the rest.

use std::cell::Cell;
use std::num::NonZeroU64;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use extant_blockdev::{Device, Persistence};
use extant_rbd::{
    Image, ImageFeatures, ImageLayout, MaterializeOptions, MaterializeReport, RbdAccess, RbdCache,
    RbdDevice, RbdName, VerifiedObjects, ZeroMethod, materialize,
};
use extant_space::{CancelToken, Control, ErrorKind, Phase, Progress, Result, Silent};
use extant_testkit::ceph::{Ceph, CephOptions};
use extant_testkit::{command, require};

const MIB: u64 = 1 << 20;

fn open(name: &RbdName) -> RbdDevice {
    let mut options = name.cluster();
    options.cache = RbdCache::Off;
    RbdDevice::open_by(name, RbdAccess::ReadWrite, &options).unwrap()
}

fn run(image: &Arc<Image>, options: MaterializeOptions) -> Result<MaterializeReport> {
    materialize(image, options, Control::new(&CancelToken::new(), &Silent))
}

/// Bytes of each object of the image, by `rados`.
fn objects(ceph: &Ceph, image: &str) -> Vec<u64> {
    let info = ceph.ask_rbd(&["info", "--format", "json", image]);
    let prefix = info.split("block_name_prefix\":\"").nth(1).unwrap();
    let prefix = prefix.split('"').next().unwrap();
    let rados = |words: &[&str]| {
        let mut rados = command::tool("rados");
        rados
            .arg("--conf")
            .arg(ceph.conf())
            .args(["--pool", "rbd"])
            .args(words);
        command::text(&mut rados).unwrap()
    };
    let names = rados(&["ls"]);
    let names = names.lines().filter(|name| name.starts_with(prefix));
    let size = |name| {
        let stat = rados(&["stat", name]);
        stat.rsplit("size ").next().unwrap().trim().parse().unwrap()
    };
    names.map(size).collect()
}

#[test]
fn every_object_exists_and_data_stays_in_each_way_of_zeroing() {
    require!(Ceph::requirement());
    let ceph = Ceph::shared();
    let striped = ImageLayout {
        object_bytes: MIB,
        striping: Some((64 << 10, 4)),
        features: ImageFeatures::USUAL | ImageFeatures::STRIPING,
        data_pool: None,
    };
    let plain = ImageLayout {
        features: ImageFeatures::LAYERING,
        ..ImageLayout::default()
    };
    for (image, layout, sends_data) in [
        ("thick-zeroes", ImageLayout::default(), false),
        ("thick-data", ImageLayout::default(), true),
        ("thick-striped", striped, false),
        ("thick-plain", plain, true),
    ] {
        let name = crate::image(ceph, image, 40 * MIB, &layout);
        let device = open(&name);
        device
            .write_at(&[7; 8192], 4 * MIB, Persistence::Fua)
            .unwrap();
        device
            .write_at(&[8; 512], 39 * MIB, Persistence::Fua)
            .unwrap();
        let options = MaterializeOptions {
            sends_data,
            ..MaterializeOptions::default()
        };
        let report = run(device.image(), options).unwrap();
        assert_eq!(
            report.already_written_bytes + report.zeroed_bytes,
            40 * MIB,
            "{report:?}"
        );
        assert!(report.zeroed_bytes > 30 * MIB, "{report:?}");
        assert_eq!(report.verified, VerifiedObjects::FullLength);
        let method = if sends_data {
            ZeroMethod::Data
        } else {
            ZeroMethod::WriteZeroes
        };
        assert_eq!(report.method, Some(method), "{image}");
        let objects = objects(ceph, image);
        let bytes = layout.object_bytes;
        assert_eq!(objects.len() as u64, 40 * MIB / bytes, "{image}");
        assert!(
            objects.iter().all(|&size| size == bytes),
            "{image}: {objects:?}"
        );
        let mut seen = vec![1; 40 * MIB as usize];
        device.read_at(&mut seen, 0).unwrap();
        let mut model = vec![0; seen.len()];
        model[4 * MIB as usize..][..8192].fill(7);
        model[39 * MIB as usize..][..512].fill(8);
        assert!(seen == model, "{image}");
        let again = run(device.image(), options).unwrap();
        assert_eq!((again.method, again.zeroed_bytes), (None, 0));
    }
}

#[test]
fn cancel_returns_within_200_ms_and_the_next_run_writes_only_what_is_missing() {
    require!(Ceph::requirement());
    let ceph = Ceph::shared();
    let name = crate::image(ceph, "cancelled", 64 * MIB, &ImageLayout::default());
    let device = open(&name);
    let token = CancelToken::new();
    let cancelled = Cell::new(None);
    let progress = |progress: Progress| {
        if progress.phase == Phase::Write
            && progress.done_bytes >= 16 * MIB
            && !token.is_cancelled()
        {
            token.cancel();
            cancelled.set(Some(Instant::now()));
        }
    };
    let slowly = MaterializeOptions {
        rate: NonZeroU64::new(64 * MIB),
        ..MaterializeOptions::default()
    };
    let error = materialize(device.image(), slowly, Control::new(&token, &progress)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert!(cancelled.get().unwrap().elapsed() < Duration::from_millis(200));
    let report = run(device.image(), MaterializeOptions::default()).unwrap();
    assert!(report.already_written_bytes >= 16 * MIB, "{report:?}");
    assert!(report.zeroed_bytes < 64 * MIB, "{report:?}");
    assert_eq!(objects(ceph, "cancelled").len(), 16);
}

#[test]
fn frozen_cluster_does_not_delay_a_cancel_and_the_rest_is_done_afterwards() {
    require!(Ceph::requirement());
    let ceph = Ceph::start(CephOptions::default());
    let name = crate::image(&ceph, "frozen", 64 * MIB, &ImageLayout::default());
    let device = open(&format!("{name}:rados_osd_op_timeout=4").parse().unwrap());
    let token = CancelToken::new();
    let (frozen, is_frozen) = mpsc::channel();
    let progress = |progress: Progress| {
        if progress.phase == Phase::Write && progress.done_bytes >= 8 * MIB {
            ceph.freeze_osd(0);
            let _ = frozen.send(());
        }
    };
    let slowly = MaterializeOptions {
        rate: NonZeroU64::new(32 * MIB),
        ..MaterializeOptions::default()
    };
    std::thread::scope(|scope| {
        let token = &token;
        let cancel = scope.spawn(move || {
            is_frozen.recv().unwrap();
            std::thread::sleep(Duration::from_secs(1));
            token.cancel();
            Instant::now()
        });
        let control = Control::new(token, &progress);
        let error = materialize(device.image(), slowly, control).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
        assert!(cancel.join().unwrap().elapsed() < Duration::from_millis(200));
    });
    // Without a cancel the time limit of the requests ends it.
    let error = run(device.image(), MaterializeOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    ceph.thaw_osd(0);
    ceph.wait_for("an answer", |_| device.read_at(&mut [0; 512], 0).is_ok());
    let report = run(device.image(), MaterializeOptions::default()).unwrap();
    assert!(report.already_written_bytes >= 8 * MIB, "{report:?}");
    assert_eq!(objects(&ceph, "frozen").len(), 16);
}

#[test]
fn clone_is_refused_since_zeros_would_hide_its_parent() {
    require!(Ceph::requirement());
    let ceph = Ceph::shared();
    let name = crate::image(ceph, "below", 8 * MIB, &ImageLayout::default());
    open(&name)
        .write_at(&[5; 512], 0, Persistence::Fua)
        .unwrap();
    for words in [
        ["snap", "create", "below@s"],
        ["snap", "protect", "below@s"],
    ] {
        ceph.ask_rbd(&words);
    }
    ceph.ask_rbd(&["clone", "below@s", "above"]);
    let device = open(&ceph.name("above").parse().unwrap());
    let error = run(device.image(), MaterializeOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    device.image().flatten(&|_, _| {}).unwrap();
    run(device.image(), MaterializeOptions::default()).unwrap();
    let mut seen = [0; 512];
    device.read_at(&mut seen, 0).unwrap();
    assert_eq!(seen, [5; 512]);
}

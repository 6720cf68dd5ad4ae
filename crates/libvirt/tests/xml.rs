//! Descriptions of pools and volumes on the file system.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use extant_image::{BackingFile, Format, Preallocation, Qcow2Options};
use extant_libvirt::{pool_xml, volume_xml};
use extant_pool::{CreateVolume, Definition, JobOptions, OnStop, Operation, Pool, VolumeName};
use extant_space::{CancelToken, Control, ErrorKind, Silent};

const MIB: u64 = 1 << 20;

fn pool_at(path: &Path) -> Pool {
    Pool::open(Definition::of_directory(path)).unwrap()
}

fn name(text: &str) -> VolumeName {
    text.parse().unwrap()
}

fn create(pool: &Pool, create: CreateVolume) {
    let cancel = CancelToken::new();
    let job = pool.submit(Operation::Create(create), JobOptions::default());
    let control = Control::new(&cancel, &Silent);
    job.unwrap().run(OnStop::Cancel, control).unwrap();
}

fn assert_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part} in {text}");
    }
}

#[test]
fn pool_is_described_with_the_figures_of_its_space() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let pool = pool_at(directory.path());
    create(
        &pool,
        CreateVolume::new(name("a"), 8 * MIB, Preallocation::Off),
    );
    let space = pool.info().unwrap().space;
    let xml = pool_xml(&pool).unwrap();
    for (element, bytes) in [
        ("capacity", space.total_bytes),
        ("allocation", space.allocated_bytes),
    ] {
        assert_contains(
            &xml,
            &[&format!("<{element} unit='bytes'>{bytes}</{element}>")],
        );
    }
}

#[test]
fn header_that_a_guest_wrote_into_a_raw_volume_is_not_described() {
    let directory = tempfile::tempdir().unwrap();
    let pool = pool_at(directory.path());
    let mut image = CreateVolume::new(name("evil.qcow2"), MIB, Preallocation::Off);
    image.format = Format::Qcow2;
    image.qcow2 = Some(Qcow2Options {
        backing: Some(BackingFile {
            name: "/etc/shadow".into(),
            format: "raw".to_owned(),
        }),
        ..Qcow2Options::default()
    });
    create(&pool, image);
    let header = fs::read(directory.path().join("evil.qcow2")).unwrap();
    let described = volume_xml(&pool, &name("evil.qcow2")).unwrap();
    assert_contains(&described, &["/etc/shadow", "<format type='qcow2'>"]);
    for volume in ["plain", "named.qcow2"] {
        let mut raw = CreateVolume::new(name(volume), 4 * MIB, Preallocation::Off);
        raw.format = Format::Raw;
        create(&pool, raw);
        let file = fs::File::options()
            .write(true)
            .open(directory.path().join(volume));
        file.unwrap().write_all_at(&header, 0).unwrap();
        let described = volume_xml(&pool, &name(volume)).unwrap();
        assert_contains(&described, &["<format type='raw'>"]);
        assert!(!described.contains("shadow"), "{described}");
    }
}

#[test]
fn qcow2_volume_is_described_with_its_features() {
    let directory = tempfile::tempdir().unwrap();
    let pool = pool_at(directory.path());
    let mut image = CreateVolume::new(name("a"), 20 * MIB, Preallocation::Metadata);
    image.format = Format::Qcow2;
    image.qcow2 = Some(Qcow2Options {
        cluster_bytes: 4096,
        lazy_refcounts: true,
        ..Qcow2Options::default()
    });
    create(&pool, image);
    assert_contains(
        &volume_xml(&pool, &name("a")).unwrap(),
        &[
            "<format type='qcow2'>",
            "<compat>1.1</compat>",
            "<clusterSize unit='bytes'>4096</clusterSize>",
            "<lazy_refcounts>",
        ],
    );
}

#[test]
fn pool_in_an_ext4_image_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("disk.img");
    fs::write(&image, []).unwrap();
    let pool = Pool::open(Definition::of_image(&image)).unwrap();
    let refused = pool_xml(&pool).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("ext4"), "{refused}");
    let refused = volume_xml(&pool, &name("a")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
}

//! Operations on images.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};

use extant_image::{
    BackingFile, Format, ImageOptions, NewImage, Preallocation, Qcow2Options, measure,
};
use extant_pool::{CloneMethod, CreateVolume, Limits, Operation, WipeMethod};
use extant_space::{ErrorKind, Remedy};
use extant_testkit::require;
use extant_testkit::requires::tool;
use extant_testkit::scratch::Filesystem;

use super::{
    CLUSTER, MODES, Stand, assert_image, assert_reads, image, materialize, qemu, qemu_img, resize,
    wipe,
};
use crate::stand::{
    KIB, MIB, assert_at_rest, clone, in_memory, name, perform, pool_at, pool_with, run, submit,
};

#[test]
fn created_image_has_the_requested_properties() {
    for filesystem in [Filesystem::Ext4, Filesystem::Xfs] {
        require!(filesystem.requirement(), qemu_img());
        let scratch = in_memory(filesystem, 512 * MIB);
        let pool = pool_at(scratch.path());
        for mode in MODES {
            let create = image(mode.name(), 20 * MIB, mode);
            perform(&pool, Operation::Create(create)).unwrap();
            let info = pool.volume(&name(mode.name())).unwrap();
            assert_eq!(info.format, Some(Format::Qcow2));
            assert_eq!(info.capacity_bytes, 20 * MIB);
            assert_eq!(info.mode, 0o600);
            assert_eq!(info.image.as_ref().unwrap().preallocation, mode);
            let written = if mode == Preallocation::Full {
                20 * MIB
            } else {
                0
            };
            assert_eq!(info.written_bytes, written, "{info:?}");
            let is_there = matches!(mode, Preallocation::Falloc | Preallocation::Full);
            assert_eq!(info.may_run_out_of_space, !is_there, "{info:?}");
            assert_image(&info.path, 20 * MIB);
        }
        for volume in pool.volumes().unwrap() {
            assert_eq!(volume.format, Some(Format::Qcow2));
            assert_eq!(volume.capacity_bytes, 20 * MIB);
        }
        assert_at_rest(&pool);
    }
}

#[test]
fn options_and_the_first_part_alone_are_kept() {
    require!(Filesystem::Ext4.requirement(), qemu_img());
    let stand = Stand::new();
    let mut create = image("a", 20 * MIB, Preallocation::Full);
    create.qcow2 = Some(Qcow2Options {
        cluster_bytes: 4096,
        lazy_refcounts: true,
        ..Qcow2Options::default()
    });
    create.allocation_bytes = 5 * MIB;
    perform(&stand.pool, Operation::Create(create)).unwrap();
    let info = stand.pool.volume(&name("a")).unwrap();
    assert_eq!(
        (info.written_bytes, info.may_run_out_of_space),
        (5 * MIB, true)
    );
    let facts = info.image.unwrap().qcow2;
    assert_eq!((facts.cluster_bytes, facts.lazy_refcounts), (4096, true));
    assert_image(&stand.path("a"), 20 * MIB);
}

#[test]
fn promise_of_an_image_counts_its_tables_to_the_byte() {
    require!(Filesystem::Ext4.requirement());
    let scratch = in_memory(Filesystem::Ext4, 64 * MIB);
    let whole = measure(&ImageOptions::new(Format::Qcow2, 20 * MIB), 0).unwrap();
    let dir = |limit: u64| {
        let path = scratch.path().join(limit.to_string());
        pool_with(
            &path,
            Limits {
                total_bytes: Some(limit),
                ..Limits::default()
            },
        )
    };
    for mode in MODES {
        let pool = dir(whole.fully_allocated_bytes - 1);
        let create = Operation::Create(image("a", 20 * MIB, mode));
        let error = perform(&pool, create.clone()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{mode}: {error}");
        assert!(error.to_string().contains("missing"), "{error}");
        let pool = dir(whole.fully_allocated_bytes);
        perform(&pool, create).unwrap_or_else(|error| panic!("{mode}: {error}"));
        let space = pool.info().unwrap().space;
        // The file system may need blocks of its own for the map.
        let promised = whole.fully_allocated_bytes..=whole.fully_allocated_bytes + 16 * KIB;
        assert!(promised.contains(&space.promised_bytes), "{mode} {space:?}");
        assert_eq!((space.available_bytes, space.reserved_bytes), (0, 0));
        let more = resize("a", 20 * MIB + CLUSTER, Preallocation::Off, false);
        let error = perform(&pool, more).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{mode}: {error}");
        pool.delete(&name("a"), false).unwrap();
    }
}

#[test]
fn reservation_of_an_image_equals_its_allocation() {
    require!(Filesystem::Ext4.requirement());
    let stand = Stand::new();
    for mode in MODES {
        let mut options = ImageOptions::new(Format::Qcow2, 20 * MIB);
        options.preallocation = mode;
        let wanted = NewImage::new(&options).unwrap().space_bytes();
        let job = submit(&stand.pool, Operation::Create(image("a", 20 * MIB, mode))).unwrap();
        let reserved = stand.pool.info().unwrap().space.reserved_bytes;
        assert_eq!(reserved, wanted, "{mode}");
        run(job).unwrap();
        let taken = fs::metadata(stand.path("a")).unwrap().blocks() * 512;
        // The file system may need blocks of its own for the map.
        assert!(taken <= wanted + 16 * KIB, "{mode}: {taken} of {wanted}");
        stand.pool.delete(&name("a"), false).unwrap();
    }
}

#[test]
fn resized_image_keeps_data_and_has_the_space_that_was_asked_for() {
    require!(Filesystem::Ext4.requirement(), qemu_img(), tool("qemu-io"));
    let stand = Stand::new();
    for mode in MODES {
        let mut content = stand.with_data("a");
        let before = stand.pool.volume(&name("a")).unwrap();
        perform(&stand.pool, resize("a", 20 * MIB, mode, false)).unwrap();
        let after = stand.pool.volume(&name("a")).unwrap();
        let written = match mode {
            Preallocation::Full => 12 * MIB,
            _ => 0,
        };
        assert_eq!(
            after.written_bytes - before.written_bytes,
            written,
            "{mode}"
        );
        assert_image(&stand.path("a"), 20 * MIB);
        content.resize(20 << 20, 0);
        assert_reads(&stand.path("a"), &content);
        let smaller = |shrink| resize("a", 3 * MIB, Preallocation::Off, shrink);
        let error = perform(&stand.pool, smaller(false)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(error.remedies(), [Remedy::Shrink], "{error}");
        perform(&stand.pool, smaller(true)).unwrap();
        assert_image(&stand.path("a"), 3 * MIB);
        assert_reads(&stand.path("a"), &content[..3 << 20]);
        stand.pool.delete(&name("a"), false).unwrap();
    }
    assert_at_rest(&stand.pool);
}

#[test]
fn image_in_use_by_qemu_is_left_alone_and_no_job_stays() {
    require!(Filesystem::Ext4.requirement(), tool("qemu-io"));
    let stand = Stand::new();
    let content = stand.with_data("a");
    let file = extant_hostfs::HostFile::open_read(&stand.path("a")).unwrap();
    extant_image::lock(&file, extant_image::LockAccess::Read).unwrap();
    for operation in [
        resize("a", 9 * MIB, Preallocation::Off, false),
        materialize("a"),
    ] {
        let error = perform(&stand.pool, operation).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    }
    // Readers do not exclude readers.
    perform(&stand.pool, clone("a", "b", CloneMethod::Copy)).unwrap();
    drop(file);
    assert_reads(&stand.path("a"), &content);
    assert_reads(&stand.path("b"), &content);
    assert_at_rest(&stand.pool);
}

#[test]
fn image_over_a_backing_file_keeps_naming_it_without_allocation() {
    require!(Filesystem::Ext4.requirement(), qemu_img());
    let stand = Stand::new();
    let create = CreateVolume::new(name("base.raw"), 8 * MIB, Preallocation::Off);
    perform(&stand.pool, Operation::Create(create)).unwrap();
    let base = fs::File::options().write(true).open(stand.path("base.raw"));
    base.unwrap().write_all_at(&[5; 4096], 0).unwrap();
    let mut top = image("top", 8 * MIB, Preallocation::Off);
    top.qcow2 = Some(Qcow2Options {
        backing: Some(BackingFile {
            name: "base.raw".into(),
            format: "raw".into(),
        }),
        ..Qcow2Options::default()
    });
    top.set_space(None, Preallocation::Full, None).unwrap();
    assert_eq!(top.preallocation, Preallocation::Off);
    perform(&stand.pool, Operation::Create(top.clone())).unwrap();
    top.volume = name("full");
    top.set_space(Some(Preallocation::Full), Preallocation::Off, None)
        .unwrap();
    let error = perform(&stand.pool, Operation::Create(top)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    perform(&stand.pool, clone("top", "clone", CloneMethod::Copy)).unwrap();
    for volume in ["top", "clone"] {
        let compared = ["compare", "-q", "-f", "qcow2", "-F", "raw"];
        let (volume, base) = (stand.path(volume), stand.path("base.raw"));
        let mut arguments: Vec<&dyn AsRef<OsStr>> = compared
            .iter()
            .map(|word| word as &dyn AsRef<OsStr>)
            .collect();
        arguments.extend([&volume as &dyn AsRef<OsStr>, &base]);
        qemu("qemu-img", &arguments);
    }
    let image = stand.pool.volume(&name("clone")).unwrap().image.unwrap();
    let backing = image.qcow2.backing_file.expect("the clone has one as well");
    assert_eq!(backing.to_str(), Some("base.raw"));
    let unsaid = stand.pool.preallocation_of(&name("clone")).unwrap();
    assert_eq!(unsaid, Preallocation::Off);
    perform(&stand.pool, resize("clone", 9 * MIB, unsaid, false)).unwrap();
    let error = perform(&stand.pool, materialize("clone")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    // Wiped, nothing shows through.
    perform(&stand.pool, wipe("clone", WipeMethod::Zero)).unwrap();
    assert_reads(&stand.path("clone"), &vec![0; 9 << 20]);
    assert_at_rest(&stand.pool);
}

#[test]
fn image_that_finds_no_space_is_as_it_was() {
    require!(Filesystem::Ext4.requirement(), qemu_img(), tool("qemu-io"));
    let stand = Stand::new();
    let content = stand.with_data("a");
    // Jobs have their reservations; another program, which ignores them, takes the space.
    for operation in [
        resize("a", 100 * MIB, Preallocation::Full, false),
        materialize("a"),
    ] {
        let job = submit(&stand.pool, operation).unwrap();
        let hog = fs::File::create(stand.path(".hog")).unwrap();
        let mut at = 0;
        for size in [MIB, 4 * KIB] {
            let block = vec![1; size as usize];
            while hog.write_all_at(&block, at).is_ok() {
                at += size;
            }
        }
        hog.sync_all().unwrap();
        let error = run(job).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        assert_image(&stand.path("a"), 8 * MIB);
        assert_reads(&stand.path("a"), &content);
        assert_at_rest(&stand.pool);
        fs::remove_file(stand.path(".hog")).unwrap();
        drop(hog);
        // Freed blocks can be had when the journal has committed.
        rustix::fs::syncfs(fs::File::open(stand.path("a")).unwrap()).unwrap();
    }
}

#[test]
fn wiped_image_is_an_empty_one_of_the_same_shape() {
    require!(Filesystem::Ext4.requirement(), qemu_img(), tool("qemu-io"));
    let stand = Stand::new();
    for mode in MODES {
        for method in [WipeMethod::Zero, WipeMethod::Discard] {
            let mut create = image("a", 8 * MIB, mode);
            create.qcow2 = Some(Qcow2Options {
                cluster_bytes: 16 * KIB,
                lazy_refcounts: true,
                ..Qcow2Options::default()
            });
            perform(&stand.pool, Operation::Create(create)).unwrap();
            stand.write_data("a");
            let path = stand.path("a");
            qemu("qemu-img", &[&"snapshot", &"-c", &"old", &path]);
            qemu(
                "qemu-io",
                &[&"-f", &"qcow2", &"-c", &"write -P 8 1M 1M", &path],
            );
            perform(&stand.pool, wipe("a", method)).unwrap();
            assert_image(&path, 8 * MIB);
            assert_reads(&path, &vec![0; 8 << 20]);
            let file = fs::read(&path).unwrap();
            assert!(
                !file
                    .windows(64)
                    .any(|bytes| bytes == [7; 64] || bytes == [8; 64])
            );
            let info = stand.pool.volume(&name("a")).unwrap();
            let image = info.image.unwrap();
            let kept = match method {
                WipeMethod::Discard => Preallocation::Off,
                WipeMethod::Zero => mode,
            };
            assert_eq!(image.preallocation, kept, "{mode} {method:?}");
            assert_eq!(image.qcow2.snapshot_count, 0);
            assert_eq!(
                (image.qcow2.cluster_bytes, image.qcow2.lazy_refcounts),
                (16 * KIB, true)
            );
            stand.pool.delete(&name("a"), false).unwrap();
        }
    }
    assert_at_rest(&stand.pool);
}

#[test]
fn materialized_image_is_full_and_keeps_its_data() {
    require!(Filesystem::Ext4.requirement(), qemu_img(), tool("qemu-io"));
    let stand = Stand::new();
    let content = stand.with_data("a");
    perform(&stand.pool, materialize("a")).unwrap();
    let info = stand.pool.volume(&name("a")).unwrap();
    assert_eq!(info.written_bytes, 8 * MIB);
    assert!(!info.may_run_out_of_space);
    assert_image(&stand.path("a"), 8 * MIB);
    assert_reads(&stand.path("a"), &content);
    assert_at_rest(&stand.pool);
}

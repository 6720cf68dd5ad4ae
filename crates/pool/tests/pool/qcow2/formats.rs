//! Precedence of attribute, name and content in the format of a volume.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::FileExt;

use extant_image::{Format, Preallocation};
use extant_pool::{CloneMethod, CreateVolume, Operation, Upload, WipeMethod};
use extant_space::{ErrorKind, Remedy};
use extant_testkit::require;
use extant_testkit::requires::tool;
use extant_testkit::scratch::Filesystem;
use rustix::fs::XattrFlags;

use super::{Stand, assert_image, image, materialize, qemu, qemu_img, resize, upload, wipe};
use crate::stand::{MIB, assert_at_rest, clone, download, name, perform};

/// A guest of a raw volume writes the header of an image whose backing file is a file of the host.
#[test]
fn header_written_by_a_guest_is_never_believed() {
    require!(Filesystem::Ext4.requirement(), qemu_img());
    let stand = Stand::new();
    let evil = stand.outside.join("evil");
    let backing = &[
        &"create",
        &"-q",
        &"-u",
        &"-f",
        &"qcow2",
        &"-F",
        &"raw",
        &"-b",
        &"/etc/shadow",
    ];
    let arguments: Vec<&dyn AsRef<OsStr>> = backing
        .iter()
        .map(|word| *word as &dyn AsRef<OsStr>)
        .chain([&evil as &dyn AsRef<OsStr>, &"1T"])
        .collect();
    qemu("qemu-img", &arguments);
    let header = fs::read(&evil).unwrap();
    for volume in ["plain", "named.qcow2"] {
        let mut create = CreateVolume::new(name(volume), 4 * MIB, Preallocation::Off);
        create.format = Format::Raw;
        perform(&stand.pool, Operation::Create(create)).unwrap();
        let file = fs::File::options().write(true).open(stand.path(volume));
        file.unwrap().write_all_at(&header, 0).unwrap();
        let info = stand.pool.volume(&name(volume)).unwrap();
        assert_eq!(info.format, Some(Format::Raw));
        assert_eq!(info.capacity_bytes, 4 * MIB);
        assert!(info.image.is_none(), "the header of a raw volume is data");
        // Copies keep the format, and are treated as raw.
        let copy = format!("{volume}-copy");
        perform(&stand.pool, clone(volume, &copy, CloneMethod::Copy)).unwrap();
        assert_eq!(
            stand.pool.volume(&name(&copy)).unwrap().format,
            Some(Format::Raw)
        );
        perform(
            &stand.pool,
            resize(volume, 5 * MIB, Preallocation::Off, false),
        )
        .unwrap();
        assert_eq!(fs::metadata(stand.path(volume)).unwrap().len(), 5 * MIB);
    }
    let listed = stand.pool.volumes().unwrap();
    assert!(
        listed
            .iter()
            .all(|volume| volume.format == Some(Format::Raw))
    );
    assert_at_rest(&stand.pool);
}

#[test]
fn file_of_unknown_format_waits_for_a_word() {
    require!(Filesystem::Ext4.requirement(), qemu_img());
    let stand = Stand::new();
    let path = stand.path("theirs");
    qemu(
        "qemu-img",
        &[&"create", &"-q", &"-f", &"qcow2", &path, &"8M"],
    );
    let theirs = name("theirs");
    let info = stand.pool.volume(&theirs).unwrap();
    assert_eq!((info.format, info.capacity_bytes), (None, info.file_bytes));
    assert_eq!(stand.pool.volumes().unwrap()[0].format, None);
    for operation in [
        resize("theirs", 16 * MIB, Preallocation::Off, false),
        clone("theirs", "b.qcow2", CloneMethod::Copy),
        materialize("theirs"),
        wipe("theirs", WipeMethod::Zero),
    ] {
        let error = perform(&stand.pool, operation).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert_eq!(error.remedies(), [Remedy::SetFormat], "{error}");
    }
    stand
        .pool
        .set_format(&theirs, Format::Qcow2, false)
        .unwrap();
    assert_eq!(stand.pool.volume(&theirs).unwrap().capacity_bytes, 8 * MIB);
    perform(
        &stand.pool,
        resize("theirs", 16 * MIB, Preallocation::Off, false),
    )
    .unwrap();
    assert_image(&path, 16 * MIB);
    stand.pool.set_format(&theirs, Format::Raw, false).unwrap();
    let info = stand.pool.volume(&theirs).unwrap();
    assert_eq!(
        (info.format, info.capacity_bytes),
        (Some(Format::Raw), info.file_bytes)
    );
    // A file that is no image, or names other files, is not taken for one.
    fs::write(stand.path("text"), "text").unwrap();
    let error = stand
        .pool
        .set_format(&name("text"), Format::Qcow2, false)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    // A name with the suffix is enough.
    fs::copy(&path, stand.path("named.qcow2")).unwrap();
    let _ = rustix::fs::removexattr(stand.path("named.qcow2"), "user.extant.format");
    let info = stand.pool.volume(&name("named.qcow2")).unwrap();
    assert_eq!(
        (info.format, info.capacity_bytes),
        (Some(Format::Qcow2), 16 * MIB)
    );
    // An unknown value of the attribute is no format.
    let flags = XattrFlags::empty();
    rustix::fs::setxattr(stand.path("text"), "user.extant.format", b"vdi", flags).unwrap();
    assert_eq!(stand.pool.volume(&name("text")).unwrap().format, None);
}

#[test]
fn damaged_image_is_listed_with_its_error() {
    require!(Filesystem::Ext4.requirement());
    let stand = Stand::new();
    let create = image("a", 8 * MIB, Preallocation::Off);
    perform(&stand.pool, Operation::Create(create)).unwrap();
    let file = fs::File::options()
        .write(true)
        .open(stand.path("a"))
        .unwrap();
    file.write_all_at(&[0xff; 512], 0).unwrap();
    let listed = stand.pool.volumes().unwrap();
    assert_eq!(listed[0].format, Some(Format::Qcow2));
    for error in [
        stand.pool.volume(&name("a")).unwrap_err(),
        perform(&stand.pool, resize("a", 9 * MIB, Preallocation::Off, false)).unwrap_err(),
        perform(&stand.pool, materialize("a")).unwrap_err(),
        perform(&stand.pool, wipe("a", WipeMethod::Zero)).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert_eq!(error.path(), Some(&*stand.path("a")), "{error}");
    }
    assert_at_rest(&stand.pool);
}

#[test]
fn upload_takes_an_image_as_it_is_and_none_that_names_other_files() {
    require!(Filesystem::Ext4.requirement(), qemu_img(), tool("qemu-io"));
    let stand = Stand::new();
    stand.with_data("a");
    let source = stand.outside.join("source");
    perform(&stand.pool, Operation::Download(download("a", &source))).unwrap();
    assert!(fs::read(&source).unwrap() == fs::read(stand.path("a")).unwrap());
    // The name or the user states the format.
    let by_name = upload("b.qcow2", &source, None);
    perform(&stand.pool, Operation::Upload(by_name)).unwrap();
    let said = upload("c", &source, Some(Format::Qcow2));
    perform(&stand.pool, Operation::Upload(said)).unwrap();
    for volume in ["b.qcow2", "c"] {
        let info = stand.pool.volume(&name(volume)).unwrap();
        assert_eq!(
            (info.format, info.capacity_bytes),
            (Some(Format::Qcow2), 8 * MIB)
        );
        assert!(fs::read(&source).unwrap() == fs::read(stand.path(volume)).unwrap());
    }
    let raw = upload("d", &source, Some(Format::Raw));
    perform(&stand.pool, Operation::Upload(raw)).unwrap();
    let info = stand.pool.volume(&name("d")).unwrap();
    assert_eq!(
        (info.format, info.capacity_bytes),
        (Some(Format::Raw), info.file_bytes)
    );

    let refused = |upload: Upload, words: &str| {
        let error = perform(&stand.pool, Operation::Upload(upload)).unwrap_err();
        assert!(error.to_string().contains(words), "{words}: {error}");
        assert_eq!(error.path(), Some(&*source), "{error}");
    };
    refused(upload("e", &source, None), "looks like a qcow2 image");
    fs::write(&source, "no image".repeat(1000)).unwrap();
    refused(upload("e.qcow2", &source, None), "no qcow2 image");
    fs::remove_file(&source).unwrap();
    let data_file = format!("data_file={}", stand.outside.join("data").display());
    qemu(
        "qemu-img",
        &[
            &"create", &"-q", &"-f", &"qcow2", &"-o", &data_file, &source, &"8M",
        ],
    );
    refused(
        upload("e", &source, Some(Format::Qcow2)),
        "data in another file",
    );
    fs::remove_file(&source).unwrap();
    let backing = "backing_file=/etc/shadow,backing_fmt=raw";
    qemu(
        "qemu-img",
        &[
            &"create", &"-q", &"-u", &"-f", &"qcow2", &"-o", &backing, &source, &"8M",
        ],
    );
    let mut with_backing = upload("e", &source, Some(Format::Qcow2));
    refused(with_backing.clone(), "/etc/shadow");
    with_backing.allow_backing = true;
    perform(&stand.pool, Operation::Upload(with_backing)).unwrap();
    assert_at_rest(&stand.pool);
}

//! Damaged images: we report the images that QEMU refuses or reports as corrupt, and repair those
//! that it repairs.

use std::path::Path;
use std::sync::Arc;

use extant_blockdev::Device;
use extant_hostfs::{Access, HostFile, Pace};
use extant_image::device::{DeviceOptions, ImageDevice};
use extant_image::format::Header;
use extant_image::{
    Format, ImageFile, ReferencedFiles, ResizeOptions, check, materialize, open_path,
    rebuild_refcounts, repair_leaks, resize,
};
use extant_space::ErrorKind;
use extant_testkit::requires::tool;
use extant_testkit::{command, require};

use crate::support::*;

fn file(image: &Path) -> Arc<HostFile> {
    Arc::new(HostFile::open(image, Access::ReadWrite).unwrap())
}

/// Status of a run of qemu-img.
fn status(words: &[&str], image: &Path) -> i32 {
    let mut command = command::tool("qemu-img");
    let output = command::run_any_status(command.args(words).arg(image)).unwrap();
    output.status.code().expect("a status")
}

fn word(bytes: &[u8], at: u64) -> u64 {
    u64::from_be_bytes(bytes[at as usize..][..8].try_into().unwrap())
}

const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
const COPIED: u64 = 1 << 63;

#[test]
fn counts_above_the_uses_are_lowered_as_qemu_does() {
    require!(qemu_img(), tool("qemu-io"));
    let ground = Ground::new();
    let image = ground.path("a.qcow2");
    qemu(&[&"create", &"-q", &"-f", &"qcow2", &image, &"4M"]);
    qemu_io(&image, "qcow2", &["write -P 1 0 1M"]);
    qemu(&[&"snapshot", &"-c", &"one", &image]);
    qemu_io(&image, "qcow2", &["write -P 2 0 512k"]);
    let whole = std::fs::read(&image).unwrap();
    let header = Header::read(&*file(&image)).unwrap();
    let l1 = header.l1_offset;
    let l2 = word(&whole, l1) & OFFSET;
    let block = word(&whole, header.refcount_table_offset);
    let count_of = |entry: u64| block + ((entry & OFFSET) >> 16) * 2;
    let own = word(&whole, l2);
    let shared = word(&whole, l2 + 8 * 8);
    assert!(own & COPIED != 0 && shared & COPIED == 0);
    let flag = |at: u64, entry: u64| (at, (entry ^ COPIED).to_be_bytes().to_vec());
    let count = |entry: u64, count: u8| (count_of(entry), vec![0, count]);
    type Change = (u64, Vec<u8>);
    let cases: [(&str, Vec<Change>); 6] = [
        ("a cluster of one use", vec![count(own, 2)]),
        (
            "a cluster of one use, not copied",
            vec![count(own, 2), flag(l2, own)],
        ),
        ("a shared cluster", vec![count(shared, 3)]),
        ("an L2 table", vec![count(l2, 7)]),
        (
            "an L2 table, not copied",
            vec![count(l2, 7), flag(l1, word(&whole, l1))],
        ),
        ("the header", vec![(block, vec![0, 2])]),
    ];
    for (what, changes) in cases {
        let mut bytes = whole.clone();
        for (at, wrong) in changes {
            bytes[at as usize..][..wrong.len()].copy_from_slice(&wrong);
        }
        std::fs::write(&image, &bytes).unwrap();
        assert_ne!(status(&["check", "-f", "qcow2"], &image), 0, "{what}");
        let repaired = silent(|control| repair_leaks(file(&image), control));
        assert_eq!(
            repaired.unwrap_or_else(|error| panic!("{what}: {error}")),
            1
        );
        let report = silent(|control| check(file(&image), 5, control)).unwrap();
        assert!(report.is_clean(), "{what}: {report:?}");
        assert_checks(&image);
        assert!(std::fs::read(&image).unwrap() == whole, "{what}");
    }
    // A flag that is wrong for another reason is no leak.
    let mut bytes = whole.clone();
    let changes = [flag(l2 + 8 * 8, shared), count(own, 2)];
    for (at, wrong) in changes {
        bytes[at as usize..][..wrong.len()].copy_from_slice(&wrong);
    }
    std::fs::write(&image, &bytes).unwrap();
    silent(|control| repair_leaks(file(&image), control)).unwrap_err();
    assert!(std::fs::read(&image).unwrap() == bytes);
}

#[test]
fn zero_cluster_in_version_2_is_corrupt_as_in_qemu() {
    require!(qemu_img(), tool("qemu-io"));
    let ground = Ground::new();
    let image = ground.path("a.qcow2");
    qemu(&[
        &"create",
        &"-q",
        &"-f",
        &"qcow2",
        &"-o",
        &"compat=0.10",
        &image,
        &"1M",
    ]);
    qemu_io(&image, "qcow2", &["write -P 1 0 128k"]);
    let whole = std::fs::read(&image).unwrap();
    let header = Header::read(&*file(&image)).unwrap();
    let l2 = (word(&whole, header.l1_offset) & OFFSET) as usize;
    for entry in [word(&whole, l2 as u64) | 1, 1] {
        let mut bytes = whole.clone();
        bytes[l2..l2 + 8].copy_from_slice(&entry.to_be_bytes());
        std::fs::write(&image, &bytes).unwrap();
        let mut theirs = command::tool("qemu-io");
        theirs.args(["-f", "qcow2", "-c", "read 0 64k"]).arg(&image);
        assert!(
            !command::run_any_status(&mut theirs)
                .unwrap()
                .status
                .success()
        );
        let layer = open_path(&image, Some(Format::Qcow2), ReferencedFiles::Ignore).unwrap();
        let error = layer.read_at(&mut [0; 4096], 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        drop(layer);
        let options = DeviceOptions {
            format: Some(Format::Qcow2),
            ..DeviceOptions::default()
        };
        let served = ImageDevice::open(&image, &options).unwrap();
        let error = served.read_at(&mut [0; 4096], 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        drop(served);
        let report = silent(|control| check(file(&image), 5, control)).unwrap();
        let finding = report
            .findings
            .iter()
            .find(|one| one.detail.contains("zero cluster"));
        assert!(report.corruptions > 0 && finding.is_some(), "{report:?}");
    }
}

#[test]
fn image_refused_by_qemu_is_reported_and_not_called_repaired() {
    require!(qemu_img(), tool("qemu-io"));
    let ground = Ground::new();
    let image = ground.path("a.qcow2");
    qemu(&[&"create", &"-q", &"-f", &"qcow2", &image, &"2G"]);
    qemu_io(&image, "qcow2", &["write -P 1 0 1M"]);
    qemu(&[&"snapshot", &"-c", &"one", &image]);
    let plain = std::fs::read(&image).unwrap();
    let header = Header::read(&*file(&image)).unwrap();
    qemu(&[&"bitmap", &"--add", &image, &"bits"]);
    let marked = std::fs::read(&image).unwrap();
    let length = u64::from(u32::from_be_bytes(plain[100..104].try_into().unwrap()));
    // Offset of the extension of a type; 0 is the end mark.
    let extension = |bytes: &[u8], kind: u32| {
        let mut at = length;
        loop {
            let first = word(bytes, at);
            if (first >> 32) as u32 == kind {
                return at;
            }
            at += 8 + (first & 0xffff_ffff).next_multiple_of(8);
        }
    };
    let bitmaps = extension(&marked, 0x2385_2875);
    let end = extension(&plain, 0);
    let snapshot = header.snapshots.offset;
    // Only the first field of the extra data, and then the names.
    let entry = &plain[snapshot as usize..];
    assert_eq!(entry[36..40], 24_u32.to_be_bytes());
    let short = [&entry[..36], &8_u32.to_be_bytes(), &[0; 8], &entry[64..68]].concat();
    let long = (1_u64 << 32 | 1 << 20).to_be_bytes().to_vec();
    let cases: [(&str, &[u8], u64, Vec<u8>); 12] = [
        (
            "a backing format of 16 bytes",
            &plain,
            length,
            [&0xe279_2aca_u32.to_be_bytes(), &[0, 0, 0, 16][..]].concat(),
        ),
        (
            "a backing name inside an extension",
            &plain,
            8,
            (length + 4).to_be_bytes().to_vec(),
        ),
        (
            "an unaligned list of no snapshots",
            &plain,
            60,
            [&[0; 4], &0x1_0200_u64.to_be_bytes()[..]].concat(),
        ),
        (
            "a reserved field of the bitmaps",
            &marked,
            bitmaps + 12,
            vec![0, 0, 0, 1],
        ),
        ("no bitmap", &marked, bitmaps + 8, vec![0; 4]),
        (
            "bitmaps of another length",
            &marked,
            bitmaps + 4,
            vec![0, 0, 0, 32],
        ),
        (
            "an unaligned directory of bitmaps",
            &marked,
            bitmaps + 31,
            vec![8],
        ),
        ("an extension longer than the header", &plain, end, long),
        (
            "an end mark longer than the header",
            &plain,
            end + 4,
            vec![0, 16, 0, 0],
        ),
        (
            "too short extra data of a snapshot",
            &plain,
            snapshot,
            short,
        ),
        (
            "an L1 entry that is only copied",
            &plain,
            header.l1_offset + 8,
            vec![0x80],
        ),
        (
            "one of a snapshot",
            &plain,
            word(&plain, snapshot) + 8,
            vec![0x80],
        ),
    ];
    for (what, whole, at, wrong) in cases {
        let mut bytes = whole.to_vec();
        bytes[at as usize..][..wrong.len()].copy_from_slice(&wrong);
        std::fs::write(&image, &bytes).unwrap();
        assert_ne!(status(&["check", "-f", "qcow2"], &image), 0, "{what}: QEMU");
        match silent(|control| check(file(&image), 5, control)) {
            Err(_) => {}
            Ok(report) => assert!(report.corruptions > 0, "{what}: {report:?}"),
        }
        let repaired = silent(|control| rebuild_refcounts(file(&image), control));
        repaired.expect_err(what);
        assert!(std::fs::read(&image).unwrap() == bytes, "{what}");
    }
}

#[test]
fn corrupt_image_is_not_begun_to_be_changed() {
    require!(qemu_img(), tool("qemu-io"));
    let ground = Ground::new();
    let image = ground.path("a.qcow2");
    qemu(&[&"create", &"-q", &"-f", &"qcow2", &image, &"4M"]);
    qemu_io(&image, "qcow2", &["write -P 1 0 1M", "write -P 2 3M 1M"]);
    let whole = std::fs::read(&image).unwrap();
    let header = Header::read(&*file(&image)).unwrap();
    let l2 = word(&whole, header.l1_offset) & OFFSET;
    let block = word(&whole, header.refcount_table_offset);
    let last = word(&whole, l2 + 63 * 8) & OFFSET;
    for (what, at, wrong) in [
        (
            "in use and not counted",
            block + (last >> 16) * 2,
            vec![0, 0],
        ),
        (
            "used twice",
            l2 + 63 * 8,
            word(&whole, l2).to_be_bytes().to_vec(),
        ),
        (
            "not aligned",
            l2 + 63 * 8,
            (last | COPIED | 512).to_be_bytes().to_vec(),
        ),
    ] {
        let mut bytes = whole.clone();
        bytes[at as usize..][..wrong.len()].copy_from_slice(&wrong);
        std::fs::write(&image, &bytes).unwrap();
        let target = || ImageFile::host(&image, Pace::Full).unwrap();
        let options = ResizeOptions {
            preallocation: None,
            may_shrink: true,
        };
        let shrunk = silent(|control| resize(&target(), Format::Qcow2, MIB, &options, control));
        let full = silent(|control| materialize(&target(), Format::Qcow2, control));
        for error in [
            shrunk.map(drop).expect_err(what),
            full.map(drop).expect_err(what),
        ] {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
        }
        assert!(std::fs::read(&image).unwrap() == bytes, "{what}");
    }
}

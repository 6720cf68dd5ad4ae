//! Images resized and materialized by us, with QEMU as the oracle.

use std::path::Path;

use extant_hostfs::Pace;
use extant_image::{
    Format, ImageFile, Preallocation, ReferencedFiles, ResizeOptions, materialize, open_path,
    reclaim, resize, resize_bytes_max,
};
use extant_space::{CancelToken, Control, ErrorKind, Progress, Result};
use extant_testkit::requires::tool;
use extant_testkit::{command, require};

use crate::support::*;

pub fn resized(
    image: &Path,
    bytes: u64,
    preallocation: Option<Preallocation>,
    may_shrink: bool,
) -> Result<()> {
    let target = ImageFile::host(image, Pace::Full)?;
    let options = ResizeOptions {
        preallocation,
        may_shrink,
    };
    let format = Format::of_name(image);
    silent(|control| resize(&target, format, bytes, &options, control)).map(drop)
}

/// The guest's bytes as a raw file beside the image.
pub fn bytes_of(image: &Path) -> Vec<u8> {
    let layer = open_path(image, None, ReferencedFiles::Open).unwrap();
    let mut bytes = vec![0; layer.virtual_bytes() as usize];
    layer.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// Bytes that the file system counts.
fn space_of(image: &Path) -> u64 {
    std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(image).unwrap()) * 512
}

/// The predicted maximum space of a resize.
fn most_taken(image: &Path, bytes: u64, preallocation: Preallocation) -> u64 {
    let layer = open_path(image, None, ReferencedFiles::Ignore).unwrap();
    let file_bytes = std::fs::metadata(image).unwrap().len();
    resize_bytes_max(layer.header().unwrap(), file_bytes, bytes, preallocation)
}

/// Checks that QEMU reads these bytes.
#[track_caller]
pub fn assert_holds(ground: &Ground, image: &Path, bytes: &[u8]) {
    let raw = ground.path("wanted");
    std::fs::write(&raw, bytes).unwrap();
    let info = qemu_json(&[&"info", &"--output=json", &image]);
    assert_eq!(info["virtual-size"], bytes.len() as u64);
    assert_reads_same((image, "qcow2"), (&raw, "raw"));
}

#[test]
fn every_growth_keeps_data_and_has_the_space_that_was_asked_for() {
    require!(qemu_img(), tool("qemu-io"));
    let ground = Ground::new();
    for cluster_bytes in [512, 64 * KIB, 2 * MIB] {
        for preallocation in Preallocation::ALL {
            for (old, new) in [
                (MIB, 9 * MIB),
                (3 * MIB + 512, 4 * MIB + 1024),
                (0, 5 * MIB),
            ] {
                let what = format!("{cluster_bytes} {preallocation} {old} {new}");
                let image = ground.path("a.qcow2");
                let mut options = qcow2(old, Preallocation::Off);
                options.qcow2.cluster_bytes = cluster_bytes;
                create(&image, &options);
                if old > 0 {
                    qemu_io(
                        &image,
                        "qcow2",
                        &["write -P 7 100k 300k", "write -z 600k 64k"],
                    );
                }
                let mut bytes = bytes_of(&image);
                let space = space_of(&image) + most_taken(&image, new, preallocation);
                resized(&image, new, Some(preallocation), false)
                    .unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(space_of(&image) <= space, "{what}");
                assert_checks(&image);
                bytes.resize(new as usize, 0);
                assert_holds(&ground, &image, &bytes);
                let layer = open_path(&image, None, ReferencedFiles::Ignore).unwrap();
                let info = layer.info().unwrap();
                let grown = new - old;
                let states = info.states;
                match preallocation {
                    Preallocation::Off => assert!(states.mapped < new),
                    Preallocation::Metadata => assert!(states.mapped >= grown, "{what} {states:?}"),
                    Preallocation::Falloc => {
                        assert!(
                            states.unwritten + states.written + cluster_bytes >= grown,
                            "{what} {states:?}"
                        );
                    }
                    Preallocation::Full => {
                        assert!(states.written + cluster_bytes >= grown, "{what} {states:?}");
                    }
                }
                // Without an option the mode is kept if it holds for all of the disk.
                if old == 0 {
                    assert_eq!(info.preallocation, preallocation, "{what} {states:?}");
                    resized(&image, 6 * MIB + 512, None, false).unwrap();
                    assert_checks(&image);
                    let layer = open_path(&image, None, ReferencedFiles::Ignore).unwrap();
                    assert_eq!(layer.info().unwrap().preallocation, preallocation, "{what}");
                }
                std::fs::remove_file(&image).unwrap();
            }
        }
    }
}

#[test]
fn clusters_leaked_by_an_interrupted_change_are_freed() {
    require!(qemu_img(), tool("qemu-io"));
    let ground = Ground::new();
    let image = ground.path("a.qcow2");
    create(&image, &qcow2(8 * MIB, Preallocation::Off));
    qemu_io(&image, "qcow2", &["write -P 7 1M 1M"]);
    let bytes = bytes_of(&image);
    let before = std::fs::metadata(&image).unwrap().len();
    // Space behind the end, of which one cluster is counted and used by nothing.
    let file = std::fs::File::options().write(true).open(&image).unwrap();
    file.set_len(before + MIB).unwrap();
    let block = 2 * 64 * KIB;
    let lost = before.div_ceil(64 * KIB) + 3;
    std::os::unix::fs::FileExt::write_all_at(&file, &[0, 1], block + lost * 2).unwrap();
    let target = ImageFile::host(&image, Pace::Full).unwrap();
    silent(|control| reclaim(&target, control)).unwrap();
    drop(target);
    assert_eq!(std::fs::metadata(&image).unwrap().len(), before);
    assert_checks(&image);
    assert_holds(&ground, &image, &bytes);
}

#[test]
fn growth_past_every_table_moves_them() {
    require!(qemu_img(), tool("qemu-io"));
    let ground = Ground::new();
    // With such clusters the L1 table and the refcount table are soon full.
    for refcount_bits in [1, 16, 64] {
        let image = ground.path("a.qcow2");
        let mut options = qcow2(MIB, Preallocation::Metadata);
        options.qcow2.cluster_bytes = 512;
        options.qcow2.refcount_bits = refcount_bits;
        create(&image, &options);
        qemu_io(&image, "qcow2", &["write -P 3 0 1M"]);
        let mut bytes = vec![3; 1 << 20];
        for size in [3 * MIB, 20 * MIB, 36 * MIB] {
            resized(&image, size, None, false).unwrap();
            assert_checks(&image);
            bytes.resize(size as usize, 0);
            assert_holds(&ground, &image, &bytes);
        }
        std::fs::remove_file(&image).unwrap();
    }
}

/// Where QEMU keeps the state of a virtual machine, the L1 table has entries past the end of the
/// disk.
#[test]
fn clusters_past_the_end_of_the_disk_are_freed_when_it_is_resized() {
    require!(qemu_img(), tool("qemu-io"));
    let ground = Ground::new();
    let image = ground.path("a.qcow2");
    for has_snapshot in [false, true] {
        let _ = std::fs::remove_file(&image);
        qemu(&[&"create", &"-q", &"-f", &"qcow2", &image, &"2G"]);
        let writes = [
            "write -P 1 0 1M",
            "write -P 2 600M 3M",
            "write -P 3 1500M 1M",
        ];
        qemu_io(&image, "qcow2", &writes);
        // The disk ends before two of the L2 tables.
        let mut made = std::fs::read(&image).unwrap();
        made[24..32].copy_from_slice(&(64 * MIB).to_be_bytes());
        std::fs::write(&image, &made).unwrap();
        if has_snapshot {
            qemu(&[&"snapshot", &"-c", &"one", &image]);
        }
        assert_checks(&image);
        let made = std::fs::read(&image).unwrap();
        let before = bytes_of(&image);
        for size in [128 * MIB, 3 << 30, 32 * MIB] {
            std::fs::write(&image, &made).unwrap();
            resized(&image, size, None, true).unwrap_or_else(|error| panic!("{size}: {error}"));
            assert_checks(&image);
            if size < 1 << 30 {
                let mut wanted = before.clone();
                wanted.resize(size as usize, 0);
                assert_holds(&ground, &image, &wanted);
            } else {
                let layer = open_path(&image, None, ReferencedFiles::Ignore).unwrap();
                let mut bytes = [1; 4096];
                layer.read_at(&mut bytes, 1500 * MIB).unwrap();
                assert_eq!(bytes, [0; 4096]);
            }
            if has_snapshot {
                qemu(&[&"snapshot", &"-a", &"one", &image]);
                assert_checks(&image);
                assert!(bytes_of(&image) == before, "{size}");
            }
        }
    }
}

#[test]
fn data_cut_off_by_a_shrink_does_not_reappear() {
    require!(qemu_img(), tool("qemu-io"));
    let ground = Ground::new();
    for cluster_bytes in [512, 64 * KIB, 2 * MIB] {
        for preallocation in [Preallocation::Off, Preallocation::Full] {
            let image = ground.path("a.qcow2");
            let mut options = qcow2(8 * MIB, preallocation);
            options.qcow2.cluster_bytes = cluster_bytes;
            create(&image, &options);
            qemu_io(&image, "qcow2", &["write -P 5 0 8M"]);
            let before = space_of(&image);
            let error = resized(&image, MIB, None, false).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            let cut = 3 * MIB + 100 * KIB + 512;
            resized(&image, cut, None, true).unwrap();
            assert_checks(&image);
            assert_holds(&ground, &image, &vec![5; cut as usize]);
            let after = space_of(&image);
            assert!(after + 3 * MIB < before, "{after} {before}");
            resized(&image, 7 * MIB, Some(preallocation), false).unwrap();
            assert_checks(&image);
            let mut bytes = vec![5; cut as usize];
            bytes.resize(7 << 20, 0);
            assert_holds(&ground, &image, &bytes);
            resized(&image, 0, None, true).unwrap();
            assert_checks(&image);
            std::fs::remove_file(&image).unwrap();
        }
    }
}

#[test]
fn images_of_qemu_are_resized() {
    require!(qemu_img(), tool("qemu-io"));
    let ground = Ground::new();
    for words in [
        "",
        "compat=0.10",
        "preallocation=metadata,cluster_size=4k",
        "lazy_refcounts=on,refcount_bits=8",
    ] {
        let image = ground.path("a.qcow2");
        let mut command = command::tool("qemu-img");
        command.args(["create", "-q", "-f", "qcow2"]);
        if !words.is_empty() {
            command.args(["-o", words]);
        }
        command::run(command.arg(&image).arg("5M")).unwrap();
        qemu_io(&image, "qcow2", &["write -P 1 0 1M", "write -P 2 4M 1M"]);
        let mut bytes = bytes_of(&image);
        for (size, preallocation) in [
            (6 * MIB, Preallocation::Full),
            (4 * MIB + 512, Preallocation::Off),
            (9 * MIB, Preallocation::Metadata),
        ] {
            resized(&image, size, Some(preallocation), true).unwrap();
            assert_checks(&image);
            bytes.resize(size as usize, 0);
            assert_holds(&ground, &image, &bytes);
        }
        std::fs::remove_file(&image).unwrap();
    }
    // Files of a few sectors, as QEMU makes compressed ones.
    let (raw, image) = (ground.path("b.raw"), ground.path("b.qcow2"));
    std::fs::write(&raw, vec![9; 2 << 20]).unwrap();
    qemu(&[
        &"convert", &"-c", &"-f", &"raw", &"-O", &"qcow2", &raw, &image,
    ]);
    resized(&image, MIB, None, true).unwrap();
    assert_checks(&image);
    assert_holds(&ground, &image, &vec![9; 1 << 20]);
}

#[test]
fn materialized_images_keep_their_data_and_are_written() {
    require!(qemu_img(), tool("qemu-io"));
    let ground = Ground::new();
    for words in [
        "",
        "compat=0.10",
        "cluster_size=512,refcount_bits=1",
        "cluster_size=2M",
        "preallocation=metadata",
        "preallocation=falloc,cluster_size=4k",
    ] {
        let image = ground.path("a.qcow2");
        let mut command = command::tool("qemu-img");
        command.args(["create", "-q", "-f", "qcow2"]);
        if !words.is_empty() {
            command.args(["-o", words]);
        }
        command::run(command.arg(&image).arg((5 * MIB + 512).to_string())).unwrap();
        qemu_io(
            &image,
            "qcow2",
            &[
                "write -P 1 64k 1M",
                "write -P 2 4M 1M",
                "write -z 4200k 200k",
                "write -z 100k 64k",
            ],
        );
        let bytes = bytes_of(&image);
        let target = ImageFile::host(&image, Pace::Full).unwrap();
        silent(|control| materialize(&target, Format::Qcow2, control)).unwrap();
        drop(target);
        assert_checks(&image);
        assert_holds(&ground, &image, &bytes);
        let layer = open_path(&image, None, ReferencedFiles::Ignore).unwrap();
        let info = layer.info().unwrap();
        assert_eq!(info.preallocation, Preallocation::Full, "{words}: {info:?}");
        assert_eq!(info.allocated_bytes.min(info.file_bytes), info.file_bytes);
        // Again: nothing is left to do, and nothing grows.
        let target = ImageFile::host(&image, Pace::Full).unwrap();
        let again = silent(|control| materialize(&target, Format::Qcow2, control)).unwrap();
        assert_eq!(again.file_bytes, info.file_bytes);
        std::fs::remove_file(&image).unwrap();
    }
}

#[test]
fn unsupported_change_in_place_is_refused_without_effect() {
    require!(qemu_img(), tool("qemu-io"));
    let ground = Ground::new();
    std::fs::write(ground.path("base.raw"), vec![9; 1 << 20]).unwrap();
    let image = ground.path("a.qcow2");
    let refuse = |word: &str| {
        let before = std::fs::read(&image).unwrap();
        let target = ImageFile::host(&image, Pace::Full).unwrap();
        let error = silent(|control| materialize(&target, Format::Qcow2, control)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains(word), "{word}: {error}");
        assert!(std::fs::read(&image).unwrap() == before);
    };
    qemu(&[
        &"create",
        &"-q",
        &"-f",
        &"qcow2",
        &"-b",
        &"base.raw",
        &"-F",
        &"raw",
        &image,
    ]);
    refuse("backing file (base.raw)");
}

#[test]
fn cancel_leaves_the_old_size_and_a_whole_image() {
    require!(qemu_img(), tool("qemu-io"));
    let ground = Ground::new();
    let image = ground.path("a.qcow2");
    create(&image, &qcow2(4 * MIB, Preallocation::Off));
    qemu_io(&image, "qcow2", &["write -P 4 1M 1M"]);
    let bytes = bytes_of(&image);
    for (calls, is_resize) in [(0, true), (0, false)] {
        let cancel = CancelToken::new();
        let seen = std::cell::Cell::new(0);
        let sink = |_: Progress| {
            if seen.replace(seen.get() + 1) == calls {
                cancel.cancel();
            }
        };
        let control = Control::new(&cancel, &sink);
        let target = ImageFile::host(&image, Pace::Full).unwrap();
        let options = ResizeOptions {
            preallocation: Some(Preallocation::Full),
            may_shrink: false,
        };
        let cancelled = if is_resize {
            resize(&target, Format::Qcow2, 64 * MIB, &options, control).map(drop)
        } else {
            materialize(&target, Format::Qcow2, control).map(drop)
        };
        drop(target);
        assert_checks(&image);
        if let Err(error) = cancelled {
            assert_eq!(error.kind(), ErrorKind::Cancelled);
            assert_holds(&ground, &image, &bytes);
        } else {
            panic!("not cancelled after {calls} calls");
        }
    }
}

#[test]
fn image_that_qemu_has_open_is_refused_and_the_reverse() {
    require!(qemu_img(), tool("qemu-io"));
    let ground = Ground::new();
    let image = ground.path("a.qcow2");
    create(&image, &qcow2(MIB, Preallocation::Off));
    let target = ImageFile::host(&image, Pace::Full).unwrap();
    let mut command = command::tool("qemu-img");
    command
        .args(["check", "-r", "leaks", "-f", "qcow2"])
        .arg(&image);
    let output = command::run_any_status(&mut command).unwrap();
    let said = command::describe(&output);
    assert!(said.contains("lock"), "{said}");
    drop(target);
    let mut qemu = command::tool("qemu-io")
        .args(["-f", "qcow2"])
        .arg(&image)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    use std::io::{Read, Write};
    let mut input = qemu.stdin.take().unwrap();
    input.write_all(b"length\n").unwrap();
    // It has answered, so it has the image open.
    let mut answer = [0; 8];
    qemu.stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut answer)
        .unwrap();
    let error = ImageFile::host(&image, Pace::Full).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    drop(input);
    qemu.wait().unwrap();
    ImageFile::host(&image, Pace::Full).unwrap();
}

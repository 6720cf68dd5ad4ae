//! Images over a backing file that is longer than they are: after growth the new part reads as
//! zeros, not as the backing file.

use std::path::Path;

use extant_hostfs::Pace;
use extant_image::{Format, ImageFile, Preallocation, ResizeOptions, resize};
use extant_space::{ErrorKind, Remedy, Result};
use extant_testkit::require;
use extant_testkit::requires::tool;

use crate::change::{assert_holds, bytes_of};
use crate::support::*;

const BASE: u64 = 2 * MIB;

fn grown(image: &Path, bytes: u64, chain: bool) -> Result<()> {
    let mut target = ImageFile::host(image, Pace::Full)?;
    if chain {
        target = target.with_named_files()?;
    }
    let options = ResizeOptions {
        preallocation: Some(Preallocation::Off),
        may_shrink: false,
    };
    silent(|control| resize(&target, Format::Qcow2, bytes, &options, control)).map(drop)
}

/// An image of `bytes` over the base, with a write near its beginning.
fn overlay(ground: &Ground, options: &str, bytes: u64) -> Vec<u8> {
    let (path, size) = (ground.path("made.qcow2"), bytes.to_string());
    qemu(&[
        &"create",
        &"-q",
        &"-f",
        &"qcow2",
        &"-F",
        &"raw",
        &"-b",
        &"base.raw",
        &"-o",
        &options,
        &path,
        &size,
    ]);
    qemu_io(&path, "qcow2", &["write -P 9 4k 100k"]);
    std::fs::read(&path).unwrap()
}

#[test]
fn overlay_that_grows_over_a_longer_backing_file_shows_zeros() {
    require!(qemu_img(), tool("qemu-io"));
    let ground = Ground::new();
    std::fs::write(ground.path("base.raw"), vec![1; BASE as usize]).unwrap();
    let image = ground.path("top.qcow2");
    for cluster_bytes in [512, 4 * KIB, 64 * KIB] {
        for compat in ["0.10", "1.1"] {
            for old in [MIB, MIB - 3 * 512] {
                let options = format!("cluster_size={cluster_bytes},compat={compat}");
                let made = overlay(&ground, &options, old);
                for new in [BASE - 512, BASE + MIB, 20 * MIB] {
                    for chain in [false, true] {
                        let what = format!("{options}: {old} to {new}, chain: {chain}");
                        std::fs::write(&image, &made).unwrap();
                        let mut wanted = bytes_of(&image);
                        assert!(wanted[old as usize - 512..] == [1; 512]);
                        let is_odd = !old.is_multiple_of(cluster_bytes);
                        if is_odd && !chain {
                            let error = grown(&image, new, chain).expect_err(&what);
                            assert_eq!(error.kind(), ErrorKind::Unsupported, "{what}: {error}");
                            assert_eq!(error.remedies(), [Remedy::ReadBacking], "{error}");
                            assert!(std::fs::read(&image).unwrap() == made, "{what}");
                            // A cluster that the image has can be cut.
                            qemu_io(&image, "qcow2", &[&format!("write -P 8 {} 512", old - 512)]);
                            wanted[old as usize - 512..].fill(8);
                        }
                        grown(&image, new, chain).unwrap_or_else(|error| panic!("{what}: {error}"));
                        wanted.resize(new as usize, 0);
                        assert!(bytes_of(&image) == wanted, "{what}");
                        assert_checks(&image);
                        // The range beyond the backing file needs no clusters.
                        let file_bytes = std::fs::metadata(&image).unwrap().len();
                        assert!(!chain || file_bytes < 4 * MIB, "{what}: {file_bytes}");
                        if new < 20 * MIB {
                            assert_holds(&ground, &image, &wanted);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn overlay_with_a_data_file_or_snapshot_hides_the_backing_file_too() {
    require!(qemu_img(), tool("qemu-io"));
    let ground = Ground::new();
    std::fs::write(ground.path("base.raw"), vec![1; BASE as usize]).unwrap();
    let image = ground.path("made.qcow2");
    let data = format!("data_file={}", ground.path("data").display());
    for (options, bytes) in [(&*data, MIB - 512), ("cluster_size=4k", MIB - 512)] {
        overlay(&ground, options, bytes);
        if options != data {
            qemu(&[&"snapshot", &"-c", &"one", &image]);
        }
        let mut wanted = bytes_of(&image);
        grown(&image, BASE, true).unwrap();
        wanted.resize(BASE as usize, 0);
        assert_checks(&image);
        assert_holds(&ground, &image, &wanted);
        qemu_io(&image, "qcow2", &["write -P 7 1M 64k"]);
        wanted[MIB as usize..][..64 << 10].fill(7);
        assert_holds(&ground, &image, &wanted);
    }
}

#[test]
fn full_overlay_grows_without_a_preallocation_that_would_hide_its_backing_file() {
    require!(qemu_img(), tool("qemu-io"));
    let ground = Ground::new();
    std::fs::write(ground.path("base.raw"), vec![1; BASE as usize]).unwrap();
    overlay(&ground, "cluster_size=64k", MIB);
    let image = ground.path("made.qcow2");
    qemu_io(&image, "qcow2", &["write -P 3 0 1M"]);
    let mut wanted = bytes_of(&image);
    let target = ImageFile::host(&image, Pace::Full).unwrap();
    let target = target.with_named_files().unwrap();
    let grow = |preallocation| {
        let options = ResizeOptions {
            preallocation,
            may_shrink: false,
        };
        silent(|control| resize(&target, Format::Qcow2, 2 * BASE, &options, control))
    };
    grow(Some(Preallocation::Full)).unwrap_err();
    assert_eq!(grow(None).unwrap().preallocation, Preallocation::Off);
    drop(target);
    wanted.resize(2 * BASE as usize, 0);
    assert_checks(&image);
    assert_holds(&ground, &image, &wanted);
}

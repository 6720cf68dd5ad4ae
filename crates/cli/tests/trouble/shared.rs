//! Copy-on-write: file systems that do not overwrite in place are refused by name.

use std::fs;
use std::path::Path;

use extant_space::ExtentFlags;
use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::{command, oracle, require};

use crate::support::{MIB, lengthen, materialize, noise};

fn reflink(from: &Path, to: &Path) {
    let mut copy = command::tool("cp");
    command::run(copy.arg("--reflink=always").arg(from).arg(to)).unwrap();
}

fn shared_bytes(file: &Path) -> u64 {
    let extents = oracle::filefrag(file).extents;
    let shared = extents
        .iter()
        .filter(|extent| extent.flags.contains(ExtentFlags::SHARED));
    shared.map(|extent| extent.logical.len()).sum()
}

#[test]
fn reflinked_file_is_refused_and_unshared_on_request() {
    require!(Filesystem::Xfs.requirement());
    let scratch = Scratch::new(Filesystem::Xfs, Filesystem::Xfs.size_bytes_min());
    let (file, copy) = (scratch.path().join("a"), scratch.path().join("copy"));
    let mut data = noise(8, 3 * MIB as usize);
    fs::write(&file, &data).unwrap();
    lengthen(&file, 8 * MIB);
    data.resize(8 * MIB as usize, 0);
    reflink(&file, &copy);
    assert_eq!(shared_bytes(&file), 3 * MIB);

    materialize(&file, &[]).refused(5, &["/a: ", "shared", "--unshare"]);
    assert_eq!(shared_bytes(&file), 3 * MIB);
    assert!(fs::read(&file).unwrap() == data);

    let answer = materialize(&file, &["--unshare", "--json"]).success();
    assert_eq!(answer.number("/unshared_bytes"), 3 * MIB);
    assert!(oracle::filefrag(&file).is_extant());
    assert!(fs::read(&file).unwrap() == data);
    assert!(fs::read(&copy).unwrap() == data);
}

#[test]
fn unshared_part_is_materialized_next_to_a_shared_one() {
    require!(Filesystem::Xfs.requirement());
    let scratch = Scratch::new(Filesystem::Xfs, Filesystem::Xfs.size_bytes_min());
    let (file, copy) = (scratch.path().join("a"), scratch.path().join("copy"));
    fs::write(&file, noise(9, MIB as usize)).unwrap();
    lengthen(&file, 4 * MIB);
    reflink(&file, &copy);
    materialize(&file, &["-o", "1MiB"]).success();
    assert_eq!(shared_bytes(&file), MIB);
    assert_eq!(oracle::allocated_bytes(&file), 4 * MIB);
}

#[test]
fn copy_on_write_file_is_refused_with_the_way_out() {
    require!(Filesystem::Btrfs.requirement());
    let scratch = Scratch::new(Filesystem::Btrfs, Filesystem::Btrfs.size_bytes_min());
    let file = scratch.path().join("a");
    let data = noise(10, 100_000);
    fs::write(&file, &data).unwrap();
    materialize(&file, &[]).refused(5, &["/a: ", "copy-on-write", "--nocow"]);
    assert_eq!(fs::read(&file).unwrap(), data);
}

#[test]
fn copy_on_write_file_without_cow_is_materialized() {
    require!(Filesystem::Btrfs.requirement());
    let scratch = Scratch::new(Filesystem::Btrfs, Filesystem::Btrfs.size_bytes_min());
    let directory = scratch.path().join("f");
    fs::create_dir(&directory).unwrap();
    command::run(command::tool("chattr").arg("+C").arg(&directory)).unwrap();
    let file = directory.join("a");
    let data = noise(11, 100_000);
    fs::write(&file, &data).unwrap();
    lengthen(&file, 4 * MIB);
    materialize(&file, &[]).success();
    assert!(oracle::filefrag(&file).is_extant());
    assert_eq!(fs::read(&file).unwrap()[..100_000], data);
}

#[test]
fn snapshot_of_a_file_without_cow_is_refused() {
    require!(Filesystem::Btrfs.requirement());
    let scratch = Scratch::new(Filesystem::Btrfs, Filesystem::Btrfs.size_bytes_min());
    let directory = scratch.limited_directory("subvolume", 64 * MIB);
    let file = directory.join("a");
    crate::support::create(&file, "4MiB", &["--nocow"]).success();
    let mut btrfs = command::tool("btrfs");
    btrfs.args(["subvolume", "snapshot"]).arg(&directory);
    command::run(btrfs.arg(scratch.path().join("snapshot"))).unwrap();
    // Written before, shared now: the next overwrite allocates.
    materialize(&file, &[]).refused(5, &["/a: ", "shared"]);
}

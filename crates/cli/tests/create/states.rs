//! Resulting file: size, bytes, extent states.

use std::fs;
use std::path::Path;

use extant_space::{ByteRange, ExtentState};
use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::{command, oracle, require, requires};

use crate::support::{KIB, MIB, assert_names, create};

/// Less than a block, across one, and none a multiple of one.
const ODD_SIZES: [u64; 5] = [1, 4095, 4097, 123_457, MIB + 1];

/// The file systems whose map filefrag can read.
const MAPPED: [Filesystem; 6] = [
    Filesystem::Ext4,
    Filesystem::Ext4SmallBlocks,
    Filesystem::Ext4Bigalloc,
    Filesystem::Ext2,
    Filesystem::Xfs,
    Filesystem::Overlay,
];

fn scratch(filesystem: Filesystem) -> Scratch {
    Scratch::new(filesystem, filesystem.size_bytes_min().max(96 * MIB))
}

/// The file has `size` bytes, all zero.
#[track_caller]
fn assert_zero_file(file: &Path, size: u64) {
    assert_eq!(
        fs::metadata(file).unwrap().len(),
        size,
        "{}",
        file.display()
    );
    oracle::assert_zeros(file, ByteRange::new(0, size));
}

#[track_caller]
fn assert_extant(file: &Path, size: u64) {
    assert_zero_file(file, size);
    let map = oracle::filefrag(file);
    assert!(map.is_extant(), "{}: {map:?}", file.display());
    assert_eq!(map.size_bytes, size);
}

/// Creates files of all sizes, and one of 48 MiB, on `filesystem`.
fn full_leaves_every_byte_extant(filesystem: Filesystem) {
    let scratch = scratch(filesystem);
    let file = scratch.path().join("a");
    for size in ODD_SIZES.into_iter().chain([48 * MIB]) {
        let answer = create(&file, &size.to_string(), &["--json"]).success();
        assert_eq!(answer.number("/written_bytes"), size, "{answer}");
        assert_extant(&file, size);
        assert_names(scratch.path(), &["a"]);
        fs::remove_file(&file).unwrap();
    }
}

#[test]
fn full_on_ext4_leaves_every_byte_extant() {
    require!(Filesystem::Ext4.requirement(), requires::tool("filefrag"));
    full_leaves_every_byte_extant(Filesystem::Ext4);
}

#[test]
fn full_on_ext4_with_1k_blocks_leaves_every_byte_extant() {
    require!(Filesystem::Ext4SmallBlocks.requirement());
    full_leaves_every_byte_extant(Filesystem::Ext4SmallBlocks);
}

#[test]
fn full_on_bigalloc_leaves_every_byte_extant() {
    require!(Filesystem::Ext4Bigalloc.requirement());
    full_leaves_every_byte_extant(Filesystem::Ext4Bigalloc);
}

#[test]
fn full_on_ext2_leaves_every_byte_extant() {
    require!(Filesystem::Ext2.requirement());
    full_leaves_every_byte_extant(Filesystem::Ext2);
}

#[test]
fn full_on_xfs_leaves_every_byte_extant() {
    require!(Filesystem::Xfs.requirement());
    full_leaves_every_byte_extant(Filesystem::Xfs);
}

#[test]
fn full_on_overlay_leaves_every_byte_extant() {
    require!(Filesystem::Overlay.requirement());
    full_leaves_every_byte_extant(Filesystem::Overlay);
}

#[test]
fn full_on_tmpfs_leaves_every_byte_allocated() {
    require!(Filesystem::Tmpfs.requirement());
    let scratch = scratch(Filesystem::Tmpfs);
    for size in ODD_SIZES.into_iter().chain([48 * MIB]) {
        let file = scratch.path().join("a");
        create(&file, &size.to_string(), &[]).success();
        assert_zero_file(&file, size);
        assert_eq!(oracle::allocated_bytes(&file), size.next_multiple_of(4096));
        fs::remove_file(&file).unwrap();
    }
}

#[test]
fn full_on_btrfs_is_refused_and_leaves_nothing() {
    require!(Filesystem::Btrfs.requirement());
    let scratch = scratch(Filesystem::Btrfs);
    let answer = create(&scratch.path().join("a"), "8MiB", &[]);
    answer.refused(5, &["/a: ", "copy-on-write", "--nocow"]);
    assert_names(scratch.path(), &[]);
}

#[test]
fn full_on_btrfs_with_nocow_leaves_every_byte_extant() {
    require!(Filesystem::Btrfs.requirement(), requires::tool("lsattr"));
    let scratch = scratch(Filesystem::Btrfs);
    for size in ODD_SIZES.into_iter().chain([32 * MIB]) {
        let file = scratch.path().join(format!("a{size}"));
        create(&file, &size.to_string(), &["--nocow"]).success();
        assert_extant(&file, size);
        let attributes = command::text(command::tool("lsattr").arg(&file)).unwrap();
        let attributes = attributes.split(' ').next().unwrap();
        assert!(attributes.contains('C'), "{attributes}");
    }
}

#[test]
fn nocow_where_nothing_is_copied_is_noted_and_done() {
    require!(Filesystem::Ext4.requirement());
    let scratch = scratch(Filesystem::Ext4);
    let file = scratch.path().join("a");
    let answer = create(&file, "1MiB", &["--nocow", "--json"]).success();
    assert!(
        answer.text("/notes/0").contains("copy-on-write"),
        "{answer}"
    );
    assert_extant(&file, MIB);
}

#[test]
fn falloc_leaves_the_states_of_util_linux_fallocate() {
    let needs = [
        Filesystem::Ext4,
        Filesystem::Ext4SmallBlocks,
        Filesystem::Xfs,
    ];
    require!(
        needs[0].requirement(),
        needs[1].requirement(),
        needs[2].requirement()
    );
    for filesystem in needs {
        let scratch = scratch(filesystem);
        let (ours, theirs) = (scratch.path().join("ours"), scratch.path().join("theirs"));
        for size in ODD_SIZES.into_iter().chain([16 * MIB]) {
            create(&ours, &size.to_string(), &["--preallocation", "falloc"]).success();
            fallocate(&theirs, size);
            let states = |file: &Path| {
                let extents = oracle::filefrag(file).with_holes();
                let mut states: Vec<_> = extents.iter().map(|e| e.state).collect();
                states.dedup();
                states
            };
            assert_zero_file(&ours, size);
            assert_eq!(states(&ours), [ExtentState::Unwritten], "{filesystem}");
            assert_eq!(states(&ours), states(&theirs), "{filesystem}, {size}");
            assert_eq!(
                oracle::allocated_bytes(&ours),
                oracle::allocated_bytes(&theirs)
            );
            fs::remove_file(&ours).unwrap();
            fs::remove_file(&theirs).unwrap();
        }
    }
}

#[test]
fn falloc_on_btrfs_only_reserves_and_is_done() {
    require!(Filesystem::Btrfs.requirement());
    let scratch = scratch(Filesystem::Btrfs);
    let file = scratch.path().join("a");
    create(&file, "8MiB", &["--preallocation", "falloc"]).success();
    assert_eq!(
        oracle::filefrag(&file).bytes(ExtentState::Unwritten),
        8 * MIB
    );
}

#[test]
fn falloc_without_fallocate_is_refused_with_an_alternative() {
    require!(Filesystem::Ext2.requirement());
    let scratch = scratch(Filesystem::Ext2);
    let answer = create(
        &scratch.path().join("a"),
        "8MiB",
        &["--preallocation", "falloc"],
    );
    answer.refused(5, &["/a: ", "ext2", "--preallocation full"]);
    assert_names(scratch.path(), &[]);
}

#[test]
fn off_leaves_a_sparse_file_everywhere() {
    for filesystem in MAPPED.into_iter().chain([Filesystem::Btrfs]) {
        require!(filesystem.requirement());
        let scratch = scratch(filesystem);
        let file = scratch.path().join("a");
        // Far more than there is room for.
        create(&file, "2G", &["--preallocation", "off"]).success();
        assert_eq!(fs::metadata(&file).unwrap().len(), 2 << 30);
        assert_eq!(oracle::allocated_bytes(&file), 0, "{filesystem}");
    }
}

#[test]
fn allocation_makes_the_first_part_real_and_leaves_the_rest_sparse() {
    for filesystem in MAPPED {
        require!(filesystem.requirement());
        let scratch = scratch(filesystem);
        for (mode, state) in [
            ("full", ExtentState::Written),
            ("falloc", ExtentState::Unwritten),
        ] {
            if (filesystem, mode) == (Filesystem::Ext2, "falloc") {
                continue;
            }
            for allocation in [3 * MIB, 3 * MIB + 777] {
                let file = scratch.path().join(format!("{mode}{allocation}"));
                let asked = allocation.to_string();
                let options = ["--preallocation", mode, "--allocation", &asked];
                // Capacity may be more than the file system could ever hold.
                create(&file, "1GiB", &options).success();
                assert_eq!(fs::metadata(&file).unwrap().len(), 1 << 30);
                let map = oracle::filefrag(&file);
                let real = map.bytes(state);
                // Blocks, and clusters of bigalloc, are whole.
                let range = allocation..=allocation.next_multiple_of(64 * KIB);
                assert!(
                    range.contains(&real),
                    "{filesystem}: {real} of {allocation}"
                );
                assert_eq!(map.with_holes()[0].state, state, "{filesystem}: {map:?}");
                let other = map.size_bytes - real - map.bytes(ExtentState::Hole);
                assert_eq!(other, 0, "{filesystem}, {mode}: {map:?}");
                oracle::assert_zeros(&file, ByteRange::new(0, 8 * MIB));
            }
        }
    }
}

#[test]
fn full_has_no_more_pieces_than_fallocate_leaves() {
    let filesystems = [
        Filesystem::Ext4,
        Filesystem::Ext4SmallBlocks,
        Filesystem::Ext4Bigalloc,
        Filesystem::Xfs,
    ];
    for filesystem in filesystems {
        require!(filesystem.requirement());
        let size = 200 * MIB;
        let make = || Scratch::new(filesystem, filesystem.size_bytes_min().max(320 * MIB));
        let ours = make();
        create(&ours.path().join("a"), &size.to_string(), &[]).success();
        let pieces = oracle::filefrag_count(&ours.path().join("a"));
        // The kernel's number is not always the same on equal file systems.
        let of_fallocate = || {
            let theirs = make();
            fallocate(&theirs.path().join("a"), size);
            oracle::filefrag_count(&theirs.path().join("a"))
        };
        let allowed = (0..3).map(|_| of_fallocate()).max().unwrap();
        assert!(pieces <= allowed, "{filesystem}: {pieces} > {allowed}");
    }
}

fn fallocate(file: &Path, size: u64) {
    let mut fallocate = command::tool("fallocate");
    command::run(fallocate.args(["-l", &size.to_string()]).arg(file)).unwrap();
}

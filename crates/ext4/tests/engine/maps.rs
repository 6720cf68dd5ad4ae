//! Block maps, as ext2 and ext3 have them: every change of blocks, and maps left by older kernels.

use std::fs;

use extant_blockdev::{Device, Persistence};
use extant_ext4::{Node, RenameMode};
use extant_ondisk::ext4::{RoCompat, Superblock};
use extant_space::{ByteRange, ErrorKind, ExtentState, FallocateMode, SpaceFile};
use extant_testkit::command::{run, tool};
use extant_testkit::workdir::Workdir;
use extant_testkit::{mke2fs, require, requires};

use crate::image::{Image, create, mkdir};

const KIB: u64 = 1024;
/// First block under the double and triple indirect blocks, in files with blocks of 1 KiB.
const DOUBLE: u64 = (12 + 256) * KIB;
const TRIPLE: u64 = (12 + 256 + 65_536) * KIB;

/// ext3, and ext3 on which `tune2fs` has set `extents`: old files keep their maps.
fn images() -> [(&'static str, Vec<u8>); 2] {
    let work = Workdir::new();
    let directory = work.directory("tree");
    for name in ["old", "gone", "target", "source"] {
        fs::create_dir(directory.join(name)).unwrap();
    }
    fs::write(directory.join("file"), vec![7; 400 << 10]).unwrap();
    let options = format!("-t ext3 -b 1024 -d {}", directory.display());
    let plain = mke2fs(&options, 16 << 20);
    let path = work.path().join("image");
    fs::write(&path, &plain).unwrap();
    run(tool("tune2fs").args(["-O", "extents"]).arg(&path)).unwrap();
    [
        ("ext3", plain),
        ("ext3 with extents", fs::read(&path).unwrap()),
    ]
}

#[test]
fn removed_and_replaced_directories_give_their_blocks_back() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    for (name, bytes) in images() {
        let image = Image::from_bytes(&bytes);
        let filesystem = image.open();
        let free = filesystem.statistics().free_blocks;
        let root = filesystem.root().unwrap();
        root.remove_directory(b"gone").unwrap();
        root.rename(b"source", &root, b"target", RenameMode::Replace)
            .unwrap();
        root.unlink(b"file").unwrap();
        filesystem.sync().unwrap();
        // 400 blocks of data, a single indirect block, a double one with one below, and two
        // directories.
        assert_eq!(filesystem.statistics().free_blocks - free, 405, "{name}");
        drop(root);
        filesystem.close().unwrap();
        image.assert_clean();
    }
}

#[test]
fn old_directory_with_a_block_map_grows_and_shrinks() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    for (name, bytes) in images() {
        let image = Image::from_bytes(&bytes);
        let filesystem = image.open();
        let root = filesystem.root().unwrap();
        let old = root.lookup(b"old").unwrap();
        // Beyond the direct block numbers.
        let names = |number| format!("{number} {}", "a long name ".repeat(15));
        for number in 0..100 {
            create(&old, &names(number));
        }
        mkdir(&old, "new");
        filesystem.sync().unwrap();
        assert!(old.attributes().size_bytes > 12 * KIB, "{name}");
        drop((old, root));
        filesystem.close().unwrap();
        image.assert_clean();
        let filesystem = image.open();
        let root = filesystem.root().unwrap();
        let old = root.lookup(b"old").unwrap();
        (0..100).for_each(|number| old.unlink(names(number).as_bytes()).unwrap());
        old.remove_directory(b"new").unwrap();
        drop(old);
        root.remove_directory(b"old").unwrap();
        drop(root);
        filesystem.close().unwrap();
        image.assert_clean();
    }
}

/// The file's extents as ranges of its blocks.
fn blocks(node: &Node) -> Vec<(u64, u64)> {
    let extents = node.file().unwrap().extents(ByteRange::new(0, 1 << 40));
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for extent in extents.unwrap() {
        if extent.state == ExtentState::Hole {
            continue;
        }
        let (start, end) = (extent.logical.start() / KIB, extent.logical.end() / KIB);
        match ranges.last_mut() {
            Some(last) if last.1 == start => last.1 = end,
            _ => ranges.push((start, end)),
        }
    }
    ranges
}

#[test]
fn file_is_extended_punched_cut_and_freed_on_every_level_of_its_map() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let image = Image::new("-t ext3 -b 1024", 32);
    let filesystem = image.open();
    let root = filesystem.root().unwrap();
    let free = filesystem.statistics().free_blocks;
    let node = create(&root, "file");
    let file = node.file().unwrap();
    for offset in [0, 10 * KIB, DOUBLE - KIB, TRIPLE - KIB] {
        file.write_at(&[5; 3 * KIB as usize], offset).unwrap();
    }
    assert_eq!(
        blocks(&node),
        [(0, 3), (10, 13), (267, 270), (65_803, 65_806)]
    );
    filesystem.sync().unwrap();
    // Single; double with two below; triple with two below it.
    assert_eq!(free - filesystem.statistics().free_blocks, 12 + 1 + 3 + 3);
    file.fallocate(
        FallocateMode::PunchHole,
        ByteRange::new(11 * KIB, TRIPLE + 1),
    )
    .unwrap();
    assert_eq!(blocks(&node), [(0, 3), (10, 11), (65_804, 65_806)]);
    let mut bytes = [1; 3];
    file.read_at(&mut bytes, TRIPLE - 1).unwrap();
    assert_eq!(bytes, [0, 0, 5]);
    file.resize(TRIPLE + 10).unwrap();
    file.resize(1 << 30).unwrap();
    let mut bytes = [1; 20];
    file.read_at(&mut bytes, TRIPLE).unwrap();
    assert_eq!(bytes[..10], [0, 5, 5, 5, 5, 5, 5, 5, 5, 5]);
    assert_eq!(bytes[10..], [0; 10]);
    file.resize(2 * KIB).unwrap();
    filesystem.sync().unwrap();
    assert_eq!(free - filesystem.statistics().free_blocks, 2);
    // A size that only extents reach, and one beyond them.
    let most = (u64::from(u32::MAX) >> 1) * KIB;
    for (mode, end, kind) in [
        (FallocateMode::Allocate, 10 * KIB, ErrorKind::Unsupported),
        (FallocateMode::WriteZeroes, KIB, ErrorKind::Unsupported),
        (FallocateMode::CollapseRange, KIB, ErrorKind::Unsupported),
        (FallocateMode::PunchHole, most + 1, ErrorKind::TooLarge),
        (FallocateMode::Allocate, most + 1, ErrorKind::TooLarge),
    ] {
        let error = file.fallocate(mode, ByteRange::new(0, end)).unwrap_err();
        assert_eq!(error.kind(), kind, "{mode}");
    }
    drop(file);
    root.unlink(b"file").unwrap();
    drop(node);
    filesystem.sync().unwrap();
    assert_eq!(filesystem.statistics().free_blocks, free);
    drop(root);
    filesystem.close().unwrap();
    image.assert_clean();
}

#[test]
fn file_written_block_by_block_is_in_few_pieces() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let image = Image::new("-t ext3 -b 1024", 32);
    let filesystem = image.open();
    let root = filesystem.root().unwrap();
    let node = create(&root, "file");
    let file = node.file().unwrap();
    for block in 0..3000 {
        file.write_at(&[block as u8; KIB as usize], block * KIB)
            .unwrap();
    }
    let places = file.extents(ByteRange::new(0, 3000 * KIB)).unwrap();
    let pieces = places
        .windows(2)
        .filter(|pair| {
            pair[0].physical.unwrap() + pair[0].logical.len() != pair[1].physical.unwrap()
        })
        .count();
    // There may be an indirect block after each 256 blocks.
    assert!(pieces < 30, "{pieces} pieces");
    drop((file, node, root));
    filesystem.close().unwrap();
    image.assert_clean();
}

#[test]
fn first_file_of_2_gib_sets_large_file_in_the_superblock() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    for options in [
        "-t ext3 -O ^large_file",
        "-t ext4 -O ^large_file,^huge_file",
    ] {
        let image = Image::new(options, 32);
        let is_said = || {
            let bytes = image.bytes();
            let superblock = &bytes[Superblock::OFFSET as usize..];
            let features = *Superblock::parse(superblock).unwrap().features();
            features.ro_compat.contains(RoCompat::LARGE_FILE)
        };
        for (size, said) in [((1 << 31) - 1, false), (1 << 31, true)] {
            let filesystem = image.open();
            let root = filesystem.root().unwrap();
            let file = create(&root, &format!("file {size}")).file().unwrap();
            file.resize(size).unwrap();
            drop((file, root));
            filesystem.close().unwrap();
            assert_eq!(is_said(), said, "{options}: {size} bytes");
            image.assert_clean();
        }
    }
}

#[test]
fn node_without_extents_is_freed_with_its_file() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let image = Image::new("-t ext4 -b 1024 -O ^metadata_csum", 16);
    let filesystem = image.open();
    let root = filesystem.root().unwrap();
    let free = filesystem.statistics().free_blocks;
    let file = create(&root, "file").file().unwrap();
    for piece in 0..6 {
        file.write_at(&[1; KIB as usize], piece * 3 * KIB).unwrap();
    }
    drop((file, root));
    filesystem.close().unwrap();
    // The leaf has six extents; without them only their blocks are lost.
    let leaf = [0x0A, 0xF3, 6, 0];
    let bytes = image.bytes();
    let at = (0..bytes.len())
        .step_by(KIB as usize)
        .find(|&at| bytes[at..at + 4] == leaf && bytes[at + 6..at + 8] == [0, 0])
        .expect("a leaf");
    let mut block = bytes[at..at + KIB as usize].to_vec();
    block[2] = 0;
    image
        .device
        .write_at(&block, at as u64, Persistence::Cached)
        .unwrap();
    let filesystem = image.open();
    filesystem.root().unwrap().unlink(b"file").unwrap();
    filesystem.sync().unwrap();
    assert_eq!(filesystem.statistics().free_blocks, free - 6);
    filesystem.close().unwrap();
}

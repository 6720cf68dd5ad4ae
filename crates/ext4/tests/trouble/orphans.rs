//! Damaged orphans: they do not prevent opening, and every loss is reported.

use std::fs;
use std::sync::Arc;

use extant_blockdev::{Device, MemoryDevice, Persistence};
use extant_ext4::{Filesystem, NewKind};
use extant_ondisk::ext4::Superblock;
use extant_space::{ErrorKind, SpaceFile};
use extant_testkit::command::{run, run_any_status, tool};
use extant_testkit::workdir::Workdir;
use extant_testkit::{require, requires};

use crate::image::{Judge, MAPS, OLD, make, new, open};

const BLOCK: usize = 1024;

/// Writes bytes anywhere, sector by sector.
fn patch(image: &MemoryDevice, at: usize, bytes: &[u8]) {
    let start = at / 512 * 512;
    let mut sectors = vec![0; (at + bytes.len()).next_multiple_of(512) - start];
    image.read_at(&mut sectors, start as u64).unwrap();
    sectors[at - start..][..bytes.len()].copy_from_slice(bytes);
    image
        .write_at(&sectors, start as u64, Persistence::Cached)
        .unwrap();
}

/// The first block that is like this.
fn find_block(image: &MemoryDevice, is_it: impl Fn(&[u8]) -> bool) -> usize {
    let bytes = image.to_vec();
    let mut blocks = bytes.chunks(BLOCK);
    blocks.position(is_it).expect("such a block") * BLOCK
}

fn superblock(image: &MemoryDevice) -> Superblock {
    Superblock::parse(&image.to_vec()[Superblock::OFFSET as usize..]).unwrap()
}

fn make_file(filesystem: &Filesystem, name: &str, pieces: u64) {
    let root = filesystem.root().unwrap();
    let node = root
        .create(name.as_bytes(), &new(NewKind::Regular))
        .unwrap();
    let file = node.file().unwrap();
    for piece in 0..pieces {
        file.write_at(&[3; BLOCK], piece * 2 * BLOCK as u64)
            .unwrap();
    }
}

#[test]
fn removed_file_with_a_damaged_map_is_reported_and_the_file_system_opens() {
    require!(
        requires::tool("mke2fs"),
        requires::tool("e2fsck"),
        requires::tool("dumpe2fs")
    );
    // A leaf of the extent tree, and an indirect block: its numbers are two blocks apart in the
    // file.
    let is_leaf = |block: &[u8]| block[..2] == [0x0A, 0xF3] && block[2] > 4;
    let is_indirect = |block: &[u8]| {
        let (words, _) = block.as_chunks::<4>();
        let words: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let odd = words.iter().skip(1).step_by(2);
        words[0] > 100
            && words[0] < 3072
            && words[2] > 100
            && words[2] < 3072
            && odd.sum::<u32>() == 0
    };
    for options in [OLD, MAPS] {
        let is_node = |block: &[u8]| match options {
            MAPS => is_indirect(block),
            _ => is_leaf(block),
        };
        let image = Arc::new(make(options, 3072));
        let filesystem = open(image.clone()).unwrap();
        make_file(&filesystem, "damaged", 20);
        filesystem.close().unwrap();
        // In the log there may be a copy.
        let damaged = image.to_vec();
        for (number, _) in damaged
            .chunks(BLOCK)
            .enumerate()
            .filter(|(_, block)| is_node(block))
        {
            patch(&image, number * BLOCK, &u32::MAX.to_le_bytes());
        }
        assert!(image.to_vec() != damaged, "{options}: no node");
        let filesystem = open(image.clone()).unwrap();
        filesystem.root().unwrap().unlink(b"damaged").unwrap();
        let error = filesystem.close().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{options}: {error}");
        let text = error.to_string();
        assert!(text.contains("its blocks were not freed"), "{text}");
        // The next one removes it, and is not blocked.
        for name in ["other", "another"] {
            let filesystem = open(image.clone()).unwrap();
            make_file(&filesystem, name, 5);
            filesystem.close().unwrap();
            assert_eq!(superblock(&image).last_orphan(), None, "{options}");
        }
        let words = Judge::new().dumpe2fs(&image);
        assert!(words.contains("FS Error count:"), "{options}: {words}");
        let work = Workdir::new();
        let path = work.path().join("image");
        fs::write(&path, image.to_vec()).unwrap();
        let repaired = run_any_status(tool("e2fsck").arg("-fy").arg(&path)).unwrap();
        assert_eq!(repaired.status.code(), Some(1), "{options}");
        run(tool("e2fsck").arg("-fn").arg(&path)).unwrap();
        let repaired = Arc::new(MemoryDevice::from_bytes(&fs::read(&path).unwrap()));
        let filesystem = open(repaired).unwrap();
        let root = filesystem.root().unwrap();
        assert!(root.lookup(b"another").is_ok(), "{options}");
    }
}

#[test]
fn list_of_orphans_that_does_not_go_on_is_cut_there() {
    require!(
        requires::tool("mke2fs"),
        requires::tool("e2fsck"),
        requires::tool("debugfs"),
        requires::tool("dumpe2fs")
    );
    let mut judge = Judge::new();
    let base = Arc::new(make(OLD, 3072));
    let filesystem = open(base.clone()).unwrap();
    make_file(&filesystem, "a", 12);
    make_file(&filesystem, "b", 2);
    let number = |name: &[u8]| filesystem.root().unwrap().lookup(name).unwrap().number().0;
    let (a, b) = (number(b"a"), number(b"b"));
    filesystem.close().unwrap();
    let work = Workdir::new();
    let (path, script) = (work.path().join("image"), work.path().join("script"));
    // Behind the second: no number of an inode, a reserved one, one that is free, and the first
    // again.
    for next in [99_999, 8, 100, a] {
        fs::write(&path, base.to_vec()).unwrap();
        let commands = format!(
            "unlink a\nunlink b\nsif <{a}> links_count 0\nsif <{b}> links_count 0\n\
             ssv last_orphan {a}\nsif <{a}> dtime @{b}\nsif <{b}> dtime @{next}\n"
        );
        fs::write(&script, commands).unwrap();
        run(tool("debugfs").args(["-w", "-f"]).arg(&script).arg(&path)).unwrap();
        let image = Arc::new(MemoryDevice::from_bytes(&fs::read(&path).unwrap()));
        assert_eq!(
            superblock(&image).last_orphan().map(|first| first.0),
            Some(a)
        );
        open(image.clone()).and_then(Filesystem::close).unwrap();
        assert_eq!(superblock(&image).last_orphan(), None, "{next}");
        let words = judge.dumpe2fs(&image);
        assert!(words.contains("FS Error count:"), "{next}: {words}");
        // Both were freed.
        judge.e2fsck(&image).unwrap();
    }
}

#[test]
fn unlink_with_a_damaged_orphan_file_uses_the_orphan_list() {
    require!(
        requires::tool("mke2fs"),
        requires::tool("e2fsck"),
        requires::tool("dumpe2fs")
    );
    let mut judge = Judge::new();
    let options = "-t ext4 -b 1024 -J size=1 -N 128 -m 0 -O orphan_file";
    let image = Arc::new(make(options, 3072));
    let filesystem = open(image.clone()).unwrap();
    for name in ["removed", "kept"] {
        make_file(&filesystem, name, 40);
    }
    filesystem.close().unwrap();
    let filesystem = open(image.clone()).unwrap();
    let is_orphans = |block: &[u8]| block[BLOCK - 8..BLOCK - 4] == 0x0B10_CA04_u32.to_le_bytes();
    let magic = find_block(&image, is_orphans) + BLOCK - 8;
    let good = image.to_vec()[magic..magic + 4].to_vec();
    let blocks = image.to_vec();
    // Every block of the orphan file; the log has none.
    let orphans: Vec<usize> = (0..blocks.len() / BLOCK)
        .filter(|&number| is_orphans(&blocks[number * BLOCK..][..BLOCK]))
        .map(|number| (number + 1) * BLOCK - 8)
        .collect();
    orphans.iter().for_each(|&at| patch(&image, at, &[0; 4]));
    // Other reads evict those blocks from memory.
    let root = filesystem.root().unwrap();
    let held = root.lookup(b"removed").unwrap();
    for number in 0..60 {
        let name = format!("{number}");
        root.create(name.as_bytes(), &new(NewKind::Directory))
            .unwrap();
    }
    let number = held.number();
    root.unlink(b"removed").unwrap();
    filesystem.sync().unwrap();
    let crashed = image.snapshot();
    drop((held, root));
    filesystem.close().unwrap();
    let words = judge.dumpe2fs(&image);
    assert!(words.contains("FS Error count:"), "{words}");
    // After a crash the list has it.
    for left in [&crashed, &image] {
        orphans.iter().for_each(|&at| patch(left, at, &good));
    }
    judge.e2fsck(&image).unwrap();
    let crashed = Arc::new(crashed);
    let filesystem = open(crashed.clone()).unwrap();
    filesystem.close().unwrap();
    judge.e2fsck(&crashed).unwrap();
    assert_eq!(superblock(&crashed).last_orphan(), None, "inode {number}");
}

//! Inodes that claim metadata of the file system, and bitmaps that mark it as free: it is never
//! written.

use std::fs;
use std::sync::Arc;

use extant_blockdev::MemoryDevice;
use extant_ext4::{Filesystem, NewKind, OnError, Options};
use extant_space::{ByteRange, Error, ErrorKind, FallocateMode, Result, SpaceFile};
use extant_testkit::workdir::Workdir;
use extant_testkit::{require, requires};

use super::sealed::{Kind, Sealed, Structure};
use super::{FILL, WITH_SUMS, at_rest, put_bytes};
use crate::image::{forgetful, make, new, open};

/// Sizes by which inodes are found again.
const WHOLE: u32 = 7777;
const IN_PIECES: u32 = 77_777;

/// A file in one piece with attributes in a block, and one in many.
fn with_files() -> MemoryDevice {
    let image = Arc::new(make(WITH_SUMS, 4096));
    let filesystem = open(image.clone()).unwrap();
    let root = filesystem.root().unwrap();
    let create = |name: &str| {
        root.create(name.as_bytes(), &new(NewKind::Regular))
            .unwrap()
    };
    let (whole, pieces) = (create("whole"), create("pieces"));
    let file = whole.file().unwrap();
    file.write_at(&[FILL; WHOLE as usize], 0).unwrap();
    let file = pieces.file().unwrap();
    for piece in 0..20 {
        file.write_at(&[FILL; 1024], piece * 3072).unwrap();
    }
    file.resize(IN_PIECES.into()).unwrap();
    drop((file, whole, pieces, root));
    filesystem.close().unwrap();
    at_rest(&image)
}

fn inode_of_size(sealed: &Sealed, image: &MemoryDevice, size: u32) -> Structure {
    let is_it = |structure: &&Structure| {
        structure.kind == Kind::Inode && sealed.read(image, structure)[4..8] == size.to_le_bytes()
    };
    *sealed
        .found
        .iter()
        .find(is_it)
        .expect("a file of that size")
}

fn of_kind(sealed: &Sealed, kind: Kind) -> Structure {
    let mut all = sealed.found.iter();
    *all.find(|structure| structure.kind == kind).unwrap()
}

/// Blocks of every sort that no file can have.
fn targets(sealed: &Sealed) -> [u32; 6] {
    let block = |kind| (of_kind(sealed, kind).offset / 1024) as u32;
    [
        1,
        block(Kind::Descriptor),
        block(Kind::BlockBitmap),
        block(Kind::InodeBitmap),
        block(Kind::Inode) + 3,
        block(Kind::JournalSuperblock) + 5,
    ]
}

fn careless(image: &MemoryDevice) -> Filesystem {
    let options = Options {
        on_error: Some(OnError::Continue),
        ..forgetful()
    };
    Filesystem::open(Arc::new(image.snapshot()), options).unwrap()
}

#[track_caller]
fn assert_names<T: std::fmt::Debug>(result: Result<T>, block: u32) {
    let error: Error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let text = error.to_string();
    assert!(text.contains(&format!("has block {block},")), "{text}");
    assert!(text.contains("inode "), "{text}");
}

/// Changes bytes of a structure.
fn patch(sealed: &Sealed, image: &MemoryDevice, structure: &Structure, at: usize, word: &[u8]) {
    let mut bytes = sealed.read(image, structure);
    bytes[at..at + word.len()].copy_from_slice(word);
    sealed.write(image, structure, bytes);
}

#[test]
fn inode_that_names_metadata_is_refused() {
    require!(requires::tool("mke2fs"));
    let base = with_files();
    let sealed = Sealed::new(&base);
    for block in targets(&sealed) {
        let inode = inode_of_size(&sealed, &base, WHOLE);
        // Its first extent, and its attributes.
        for at in [0x28 + 12 + 8, 0x68] {
            let image = base.snapshot();
            patch(&sealed, &image, &inode, at, &block.to_le_bytes());
            let root = careless(&image).root().unwrap();
            assert_names(root.lookup(b"whole"), block);
            assert_names(root.unlink(b"whole"), block);
        }
        // The node below the root of a tree.
        let image = base.snapshot();
        let inode = inode_of_size(&sealed, &base, IN_PIECES);
        patch(&sealed, &image, &inode, 0x28 + 12 + 4, &block.to_le_bytes());
        assert_names(careless(&image).root().unwrap().lookup(b"pieces"), block);
    }
}

#[test]
fn node_of_a_tree_that_names_metadata_is_refused() {
    require!(requires::tool("mke2fs"));
    let base = with_files();
    let sealed = Sealed::new(&base);
    let nodes = sealed.found.iter();
    let node = nodes
        .filter(|structure| structure.kind == Kind::ExtentNode)
        .find(|node| sealed.read(&base, node)[2] == 20);
    for block in targets(&sealed) {
        let image = base.snapshot();
        patch(
            &sealed,
            &image,
            node.unwrap(),
            12 * 6 + 8,
            &block.to_le_bytes(),
        );
        let filesystem = careless(&image);
        let root = filesystem.root().unwrap();
        let node = root.lookup(b"pieces").unwrap();
        let file = node.file().unwrap();
        assert_names(file.write_at(&[1; 1024], 5 * 3072), block);
        assert_names(file.read_at(&mut [0; 1024], 5 * 3072), block);
        let punched = file.fallocate(FallocateMode::PunchHole, ByteRange::new(0, 40 << 10));
        assert_names(punched, block);
        assert_names(file.resize(0), block);
    }
}

#[test]
fn block_map_that_names_metadata_is_refused() {
    require!(requires::tool("mke2fs"));
    let work = Workdir::new();
    fs::write(work.path().join("mapped"), vec![FILL; 200 << 10]).unwrap();
    let directory = work.path().display();
    let base = make(
        &format!("-t ext3 -b 1024 -J size=1 -N 128 -d {directory}"),
        4096,
    );
    let bytes = base.to_vec();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let size = (200u32 << 10).to_le_bytes();
    let slots = (0..bytes.len()).step_by(128);
    let is_it = |at: &usize| bytes[at + 4..at + 8] == size && word(at + 0x28 + 48) != 0;
    let slot = slots.clone().find(is_it).expect("the inode");
    let bitmap = word(2048);
    let indirect = word(slot + 0x28 + 48) as usize * 1024;
    // A direct number, the indirect block itself, and a number in it.
    for (at, offset) in [
        (slot + 0x28 + 8, 2 << 10),
        (slot + 0x28 + 48, 20 << 10),
        (indirect + 40, 22 << 10),
    ] {
        let image = base.snapshot();
        put_bytes(&image, at, &bitmap.to_le_bytes());
        let root = careless(&image).root().unwrap();
        let file = root.lookup(b"mapped").unwrap().file().unwrap();
        assert_names(file.write_at(&[1; 1024], offset), bitmap);
        assert_names(file.read_at(&mut [0; 1024], offset), bitmap);
    }
}

#[test]
fn bitmap_that_gives_metadata_away_is_refused() {
    require!(requires::tool("mke2fs"));
    let base = with_files();
    let sealed = Sealed::new(&base);
    let (bitmap, descriptor) = (
        of_kind(&sealed, Kind::BlockBitmap),
        of_kind(&sealed, Kind::Descriptor),
    );
    for block in targets(&sealed) {
        let image = base.snapshot();
        let bit = block as usize - 1;
        let byte = sealed.read(&image, &bitmap)[bit / 8] & !(1 << (bit % 8));
        patch(&sealed, &image, &bitmap, bit / 8, &[byte]);
        let before = sealed.read(&image, &descriptor);
        let free = u16::from_le_bytes([before[0x0C], before[0x0D]]) + 1;
        patch(&sealed, &image, &descriptor, 0x0C, &free.to_le_bytes());
        let filesystem = careless(&image);
        let root = filesystem.root().unwrap();
        let written = root
            .create(b"new", &new(NewKind::Regular))
            .and_then(|made| made.file()?.write_at(&[1; 4096], 0));
        let error = written.unwrap_err();
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{text}");
        assert!(
            text.contains(&format!("group 0: block {block} is free")),
            "{text}"
        );
    }
}

//! Makes the images of `images` again. Inputs of corpora then mean something else: minimise them
//! afterwards (`cargo xtask fuzz --minimise`).

use std::fs;
use std::path::Path;
use std::sync::Arc;

use extant_blockdev::MemoryDevice;
use extant_ext4::{Filesystem, NewKind, NewNode, Options, XattrMode};
use extant_space::{ByteRange, FallocateMode, SpaceFile};
use extant_testkit::{mke2fs, require, requires};

const FILL: u8 = 0x5A;
const CHECKSUMS: &str = "-t ext4 -b 1024 -J size=1 -N 128 -O orphan_file";
const NO_CHECKSUMS: &str =
    "-t ext4 -b 1024 -g 1024 -J size=1 -N 128 -O ^metadata_csum,uninit_bg,^orphan_file,^flex_bg";
const MAPS: &str = "-t ext3 -b 1024 -J size=1 -N 128 -m 0";
const FAST_COMMIT: &str = "-t ext4 -b 1024 -J size=1 -N 128 -O fast_commit";

fn new(kind: NewKind<'_>) -> NewNode<'_> {
    NewNode {
        kind,
        permissions: 0o755,
        uid: 0,
        gid: 0,
        umask: 0,
    }
}

/// Every kind of structure, some only in the log, with orphans.
fn populated(options: &str, mebibytes: u64) -> MemoryDevice {
    let image = Arc::new(MemoryDevice::from_bytes(&mke2fs(options, mebibytes << 20)));
    let filesystem = Filesystem::open(image.clone(), Options::default()).unwrap();
    let root = filesystem.root().unwrap();
    let large = root.create(b"large", &new(NewKind::Directory)).unwrap();
    let file = large.create(b"file", &new(NewKind::Regular)).unwrap();
    for number in 0..90 {
        let name = format!("a name that fills a block of the directory, number {number}");
        large.link(name.as_bytes(), &file).unwrap();
    }
    let data = file.file().unwrap();
    for piece in 0..120 {
        data.write_at(&[FILL; 1024], piece * 3072).unwrap();
    }
    let unwritten = ByteRange::new(400 << 10, 500 << 10);
    let allocated = data.fallocate(FallocateMode::Allocate, unwritten);
    assert_eq!(allocated.is_ok(), options != MAPS);
    for (name, value) in [(&b"user.long"[..], &[FILL; 600][..]), (b"user.short", b"v")] {
        file.set_xattr(name, value, XattrMode::Set).unwrap();
    }
    for (name, kind) in [
        (&b"short"[..], NewKind::SymbolicLink(b"large/file")),
        (b"long", NewKind::SymbolicLink(&[b'l'; 300])),
        (b"pipe", NewKind::Fifo),
        (b"sub", NewKind::Directory),
    ] {
        root.create(name, &new(kind)).unwrap();
    }
    drop((data, file));
    let orphans = [b"one", b"two"].map(|name| {
        let node = root.create(name, &new(NewKind::Regular)).unwrap();
        node.file().unwrap().write_at(&[FILL; 5000], 0).unwrap();
        root.unlink(name).unwrap();
        node
    });
    filesystem.sync().unwrap();
    root.create(b"last", &new(NewKind::Regular)).unwrap();
    filesystem.sync().unwrap();
    let used = image.snapshot();
    drop(orphans);
    used
}

fn at_rest(image: &MemoryDevice) -> MemoryDevice {
    let image = Arc::new(image.snapshot());
    let opened = Filesystem::open(image.clone(), Options::default());
    opened.and_then(Filesystem::close).unwrap();
    image.snapshot()
}

fn keep(name: &str, image: &MemoryDevice) {
    let packed = miniz_oxide::deflate::compress_to_vec_zlib(&image.to_vec(), 9);
    println!("{name}: {} bytes", packed.len());
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("images");
    fs::write(directory.join(name), packed).unwrap();
}

#[test]
#[ignore = "changes the meaning of every kept input"]
fn images_are_made_again() {
    require!(requires::tool("mke2fs"));
    let used = populated(CHECKSUMS, 4);
    keep("checksums.z", &used);
    keep("checksums-rest.z", &at_rest(&used));
    keep("no-checksums.z", &at_rest(&populated(NO_CHECKSUMS, 4)));
    keep("maps.z", &at_rest(&populated(MAPS, 4)));
    keep("fast-commit.z", &populated(FAST_COMMIT, 5));
}

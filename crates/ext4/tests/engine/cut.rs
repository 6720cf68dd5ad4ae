//! Names created during other operations.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use extant_ext4::{Filesystem, NewKind, Options};
use extant_space::{ByteRange, ErrorKind, FallocateMode, SpaceFile};
use extant_testkit::{require, requires};

use crate::image::{Image, new};

/// Extents of a file and blocks of each, in more groups than fit in one transaction of a small
/// journal.
const EXTENTS: u64 = 2000;
const EXTENT_BYTES: u64 = 24 << 10;

#[test]
fn directory_gets_no_second_name_also_not_in_itself() {
    require!(requires::tool("mke2fs"));
    let image = Image::new("-t ext4 -b 1024", 8);
    let fs = image.open();
    let root = fs.root().unwrap();
    let directory = root.create(b"directory", &new(NewKind::Directory)).unwrap();
    for (parent, node) in [
        (&root, &root),
        (&directory, &directory),
        (&directory, &root),
        (&root, &directory),
    ] {
        let error = parent.link(b"name", node).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Immutable);
    }
}

#[test]
fn file_that_gets_its_first_name_while_it_is_cut_keeps_no_blocks_after_a_crash() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let image = Image::new("-t ext4 -b 1024 -g 256 -J size=1", 64);
    let fs = image.open_with(Options {
        commit_interval: Duration::from_secs(100_000),
        ..Options::default()
    });
    let root = fs.root().unwrap();
    let node = root.create_unnamed(&new(NewKind::Regular)).unwrap();
    let file = node.file().unwrap();
    for number in 0..EXTENTS {
        let start = number * (EXTENT_BYTES + 1024);
        let range = ByteRange::new(start, start + EXTENT_BYTES);
        file.fallocate(FallocateMode::Allocate, range).unwrap();
    }
    fs.sync().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| file.resize(0).unwrap());
        // The first step of the cut sets the size.
        while node.attributes().size_bytes > 0 {
            thread::yield_now();
        }
        root.link(b"named", &node).unwrap();
        fs.sync().unwrap();
        // The state after a crash now.
        let left = Arc::new(image.device.snapshot());
        let again = Filesystem::open(left, Options::default()).unwrap();
        let found = again.root().unwrap().lookup(b"named").unwrap();
        let is = found.attributes();
        assert_eq!((is.size_bytes, is.allocated_bytes, is.links), (0, 0, 1));
    });
    drop((file, node, root));
    fs.close().unwrap();
    image.assert_clean();
}

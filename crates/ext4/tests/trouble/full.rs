//! No space, at every allocation.

use std::sync::Arc;

use extant_ext4::{Filesystem, NewKind};
use extant_space::{ErrorKind, FallocateMode, SpaceFile};
use extant_testkit::{require, requires};

use crate::image::{Judge, MAPS, OLD, PLAIN, make, new, open};
use crate::scenario;

/// Takes all blocks but `left`, and gives them a file's name.
fn fill(filesystem: &Filesystem, left: u64) {
    let root = filesystem.root().unwrap();
    let node = root.create(b"filler", &new(NewKind::Regular)).unwrap();
    let file = node.file().unwrap();
    let mut size = 0;
    filesystem.sync().unwrap();
    while let free @ 1.. = filesystem
        .statistics()
        .available_blocks
        .saturating_sub(left)
    {
        let more = extant_space::ByteRange::new(size, size + (free << 10));
        let taken = match file.fallocate(FallocateMode::Allocate, more) {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                file.write_at(&vec![9; more.len() as usize], size)
            }
            taken => taken,
        };
        size = more.end();
        // Nodes take blocks as well.
        if taken.is_err() {
            break;
        }
    }
}

#[test]
fn no_space_at_any_block_is_returned_and_leaves_a_valid_file_system() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let mut judge = Judge::new();
    for options in [PLAIN, OLD, MAPS] {
        let base = make(options, 2500);
        let (mut refused, mut done) = (0, 0);
        // Every third for block maps, which need no more room.
        let step = if options == MAPS { 3 } else { 1 };
        for left in (0..130).step_by(step) {
            let what = format!("{options} with {left} blocks left");
            let image = Arc::new(base.snapshot());
            let filesystem = open(image.clone()).unwrap();
            fill(&filesystem, left);
            let outcome = scenario::run(&filesystem, "d");
            for error in &outcome.errors {
                let follows = [
                    ErrorKind::NotFound,
                    ErrorKind::InvalidArgument,
                    ErrorKind::NotEmpty,
                    // For a block map: all but holes.
                    ErrorKind::Unsupported,
                ];
                let is_right =
                    error.kind() == ErrorKind::NoSpace || follows.contains(&error.kind());
                assert!(is_right, "{what}: {error}");
            }
            refused += outcome.errors.len();
            done += outcome.done;
            filesystem.close().unwrap();
            judge.assert_clean(&image, &what);
            let filesystem = open(image.clone()).unwrap();
            outcome.assert_kept(&filesystem, &what);
            // Freed space can be allocated again.
            filesystem.root().unwrap().unlink(b"filler").unwrap();
            filesystem.sync().unwrap();
            let root = filesystem.root().unwrap();
            let node = root.create(b"after", &new(NewKind::Regular)).unwrap();
            node.file().unwrap().write_at(&[1; 200_000], 0).unwrap();
            drop((root, node));
            filesystem.close().unwrap();
            if left % 8 == 0 {
                judge.assert_clean(&image, &what);
            }
        }
        assert!(
            refused > 150 && done > 700,
            "{refused} refused, {done} done"
        );
    }
}

#[test]
fn no_inode_left_is_returned_and_leaves_a_valid_file_system() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let mut judge = Judge::new();
    let base = make("-t ext4 -b 1024 -J size=1 -N 16 -m 0", 2500);
    for left in 0..8 {
        let image = Arc::new(base.snapshot());
        let filesystem = open(image.clone()).unwrap();
        let root = filesystem.root().unwrap();
        let mut names = 0;
        let refused = loop {
            match root.create(format!("f{names}").as_bytes(), &new(NewKind::Regular)) {
                Ok(_) => names += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        for number in 0..left.min(names) {
            root.unlink(format!("f{number}").as_bytes()).unwrap();
        }
        filesystem.sync().unwrap();
        let outcome = scenario::run(&filesystem, "d");
        for error in &outcome.errors {
            let is_right = matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::NotFound);
            assert!(is_right, "{left} inodes left: {error}");
        }
        drop(root);
        filesystem.close().unwrap();
        judge.assert_clean(&image, &format!("{left} inodes left"));
    }
}

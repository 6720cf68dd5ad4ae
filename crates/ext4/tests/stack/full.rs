//! No space below: which operation fails, and when.
//!
//! The existing metadata is assigned below first, so that only operations of the test can be
//! refused. A filler in the lowest file system then takes all remaining space.

use std::sync::Arc;

use extant_ext4::{Assign, Timestamp};
use extant_space::{ByteRange, Error, ErrorKind, FallocateMode, Result, SpaceFile, SyncMode};
use extant_testkit::{require, requires};

use crate::program;
use crate::tower::{BLOCK, Level, Tower, create, length};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 32 * MIB;
/// The sizes of the levels, in MiB.
const TOWERS: [&[u64]; 2] = [&[128, 96], &[160, 128, 96]];
const FILLER: &[u8] = b"filler";
/// For nodes of the map of a file that is written here and there: they get their place below when
/// they are written.
const ROOM_FOR_NODES: u64 = MIB;

/// A tower where only new blocks can be refused.
#[track_caller]
fn tower(sizes: &[u64], assign: Assign) -> Tower {
    let tower = Tower::open(Arc::new(Tower::build(sizes)), sizes.len(), assign);
    tower.assign_used();
    tower
}

/// Takes all space of a level but `left` bytes.
#[track_caller]
pub fn fill(level: &Level, left: u64) {
    let filesystem = &level.filesystem;
    let available = || filesystem.statistics().available_blocks * BLOCK;
    let filler = create(&filesystem.root().unwrap(), FILLER);
    let mut size = 0;
    while available() > left {
        let more = ByteRange::new(size, size + (available() - left));
        size = more.end();
        // Nodes of its map take blocks as well.
        if filler.fallocate(FallocateMode::Allocate, more).is_err() {
            break;
        }
    }
    filesystem.sync().unwrap();
    let available = available();
    assert!(available <= left, "{available} bytes are available");
}

/// Frees the blocks that [`fill`] allocated.
#[track_caller]
fn make_room(level: &Level) {
    level.filesystem.root().unwrap().unlink(FILLER).unwrap();
    level.filesystem.sync().unwrap();
}

fn allocate(level: &Level, bytes: u64) -> Result<()> {
    let range = ByteRange::new(0, bytes);
    level.file.fallocate(FallocateMode::Allocate, range)
}

/// State that an allocation changes: free blocks; size, space and time of the file.
fn state(level: &Level) -> (u64, u64, u64, Timestamp) {
    let attributes = level.file.node().attributes();
    (
        level.filesystem.statistics().free_blocks,
        attributes.size_bytes,
        attributes.allocated_bytes,
        attributes.modified,
    )
}

#[track_caller]
fn assert_no_space(result: Result<(), Error>) {
    let error = result.expect_err("there was no space");
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
}

#[test]
fn try_on_a_full_level_allocates_without_a_place_and_the_write_fails() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let tower = tower(TOWERS[0], Assign::Try);
    let top = tower.top();
    fill(tower.lowest(), 0);
    allocate(top, SIZE).unwrap();
    let places = tower.places(SIZE);
    assert_eq!((length(&places[0]), length(&places[1])), (SIZE, 0));
    assert_no_space(program::pass(&top.file, SIZE, 0));
    top.file.sync(SyncMode::All).unwrap();
    make_room(tower.lowest());
    program::run(&top.file, SIZE).unwrap();
    program::assert_holds(&top.file, SIZE, program::PASSES);
    tower.close_clean();
}

#[test]
fn require_on_a_full_level_is_no_space_and_changes_nothing() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    for sizes in TOWERS {
        let tower = tower(sizes, Assign::Require);
        let top = tower.top();
        let root = top.filesystem.root().unwrap();
        let kept = create(&root, b"kept");
        let range = ByteRange::new(0, MIB);
        kept.fallocate(FallocateMode::WriteZeroes, range).unwrap();
        fill(tower.lowest(), 0);
        let before = state(top);
        assert_no_space(allocate(top, SIZE));
        assert_eq!(state(top), before, "{sizes:?}");
        assert!(tower.places(SIZE).iter().all(Vec::is_empty), "{sizes:?}");
        // The level continues with its space.
        program::run(&kept, MIB).unwrap();
        program::assert_holds(&kept, MIB, program::PASSES);
        create(&root, b"other");
        root.unlink(b"other").unwrap();
        top.filesystem.sync().unwrap();
        assert_no_space(allocate(top, SIZE));
        make_room(tower.lowest());
        allocate(top, SIZE).unwrap();
        program::run(&top.file, SIZE).unwrap();
        program::assert_holds(&top.file, SIZE, program::PASSES);
        drop((root, kept));
        tower.close_clean();
    }
}

#[test]
fn require_that_is_refused_unchanged_is_clean() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    for sizes in TOWERS {
        let tower = tower(sizes, Assign::Require);
        fill(tower.lowest(), 0);
        assert_no_space(allocate(tower.top(), SIZE));
        tower.close_clean();
    }
}

#[test]
fn require_refused_halfway_keeps_only_assigned_blocks() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let tower = tower(&[640, 512], Assign::Require);
    let top = tower.top();
    // More than one extent, because an extent is in one group of 128 MiB.
    let wanted = 384 * MIB;
    fill(tower.lowest(), 192 * MIB);
    assert_no_space(allocate(top, wanted));
    let places = tower.places(wanted);
    let kept = length(&places[0]);
    assert!(0 < kept && kept < wanted, "{kept} bytes");
    assert_eq!(length(&places[1]), kept);
    assert_eq!(top.file.size().unwrap(), 0);
    make_room(tower.lowest());
    allocate(top, wanted).unwrap();
    let places = tower.places(wanted);
    assert_eq!((length(&places[0]), length(&places[1])), (wanted, wanted));
    tower.close_clean();
}

#[test]
fn space_that_was_required_is_written_when_the_level_below_is_full() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    for sizes in TOWERS {
        for (mode, room) in [
            (FallocateMode::Allocate, ROOM_FOR_NODES),
            (FallocateMode::WriteZeroes, 0),
        ] {
            let tower = tower(sizes, Assign::Require);
            let top = tower.top();
            top.file.fallocate(mode, ByteRange::new(0, SIZE)).unwrap();
            fill(tower.lowest(), room);
            program::run(&top.file, SIZE).unwrap();
            program::assert_holds(&top.file, SIZE, program::PASSES);
            assert!(tower.is_written(SIZE), "{mode} in {sizes:?}");
            tower.close_clean();
        }
    }
}

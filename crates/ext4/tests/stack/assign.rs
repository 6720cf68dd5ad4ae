//! Effect of an assign on the files below.

use std::sync::Arc;

use extant_ext4::Assign;
use extant_space::{ByteRange, FallocateMode, SpaceFile};
use extant_testkit::{require, requires};

use crate::program;
use crate::tower::{Tower, length};

const SIZE: u64 = 64 << 20;
/// The sizes of the levels, in MiB.
const TOWERS: [&[u64]; 2] = [&[256, 128], &[512, 256, 128]];

#[test]
fn files_below_have_the_extents_of_the_allocation_and_writes_add_none() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    for sizes in TOWERS {
        let ground = Tower::build(sizes);
        for assign in [Assign::Try, Assign::Require] {
            let tower = Tower::open(Arc::new(ground.snapshot()), sizes.len(), assign);
            let file = &tower.top().file;
            file.fallocate(FallocateMode::Allocate, ByteRange::new(0, SIZE))
                .unwrap();
            let places = tower.places(SIZE);
            assert_eq!(places.len(), sizes.len());
            for pieces in &places {
                assert!(pieces.len() <= 3, "{assign:?} of {sizes:?}: {places:?}");
                assert_eq!(length(pieces), SIZE, "{assign:?} of {sizes:?}: {places:?}");
            }
            assert!(!tower.is_written(SIZE));
            program::run(file, SIZE).unwrap();
            assert_eq!(tower.places(SIZE), places, "{assign:?} of {sizes:?}");
            assert!(tower.is_written(SIZE), "{assign:?} of {sizes:?}");
            program::assert_holds(file, SIZE, program::PASSES);
            tower.close_clean();
        }
    }
}

#[test]
fn file_below_has_no_place_for_the_allocation_without_assign() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let sizes = TOWERS[0];
    let ground = Arc::new(Tower::build(sizes));
    let tower = Tower::open(ground, sizes.len(), Assign::Off);
    let file = &tower.top().file;
    file.fallocate(FallocateMode::Allocate, ByteRange::new(0, SIZE))
        .unwrap();
    let places = tower.places(SIZE);
    assert_eq!((length(&places[0]), length(&places[1])), (SIZE, 0));
    program::run(file, SIZE).unwrap();
    assert!(tower.is_written(SIZE));
    program::assert_holds(file, SIZE, program::PASSES);
    tower.close_clean();
}

#[test]
fn second_allocation_of_the_same_range_moves_nothing() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let sizes = TOWERS[1];
    let tower = Tower::open(Arc::new(Tower::build(sizes)), sizes.len(), Assign::Require);
    let file = &tower.top().file;
    let range = ByteRange::new(0, SIZE);
    file.fallocate(FallocateMode::Allocate, range).unwrap();
    program::pass(file, SIZE, 0).unwrap();
    let places = tower.places(SIZE);
    file.fallocate(FallocateMode::Allocate, range).unwrap();
    assert_eq!(tower.places(SIZE), places);
    program::assert_holds(file, SIZE, 0);
    tower.close_clean();
}

//! Trees of full depth.

use super::*;

/// Extents of a root of depth 4 and tiny nodes that are all full.
const DEPTH_4_FULL: u32 = 4 * 6 * 6 * 6 * 6;

#[test]
fn tree_reaches_depth_5_and_comes_back() {
    let mut file = File::quick(TINY).with_extents(DEPTH_4_FULL, 2);
    assert_eq!(file.depth(), 4);
    file.insert(written(DEPTH_4_FULL * 2, 1)).unwrap();
    assert_eq!(file.depth(), 5);
    for block in [0, 1, DEPTH_4_FULL, DEPTH_4_FULL * 2] {
        let found = file.tree().find(LogicalBlock(block)).unwrap();
        assert_eq!(
            matches!(found, Mapping::Extent(_)),
            block % 2 == 0,
            "{block}"
        );
    }
    let mut depths = vec![5];
    let mut rest = Some(0..LOGICAL_END);
    while let Some(range) = rest {
        rest = file.raw().remove_last(range, &mut |_| ()).unwrap();
        depths.push(file.depth());
    }
    depths.dedup();
    assert_eq!(depths, [5, 4, 3, 2, 1, 0]);
    assert_eq!(file.check(), Summary::default());
}

#[test]
fn full_tree_of_depth_5_refuses_another_extent() {
    let mut file = File::quick(TINY).with_extents(6 * DEPTH_4_FULL, 2);
    assert_eq!(file.depth(), 5);
    let blocks = file.memory.blocks.len();
    let error = file
        .raw()
        .insert(written(12 * DEPTH_4_FULL, 1))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    assert_eq!(file.memory.blocks.len(), blocks);
    // An extent that is merged needs no room.
    file.raw().insert(written(1, 1)).unwrap();
    assert_eq!(file.check().depth, 5);
}

#[test]
fn deep_tree_moves_right_and_left_again() {
    let mut file = File::quick(TINY).with_extents(1500, 2);
    assert_eq!(file.depth(), 4);
    let before = file.extents();
    shift(&mut file, 1001, Direction::Right);
    assert_eq!(
        file.tree().find(LogicalBlock(1005)).unwrap(),
        Mapping::Hole(1001..1009)
    );
    shift(&mut file, 1008, Direction::Left);
    assert_eq!(file.extents(), before);
}

#[test]
fn deep_tree_punched_everywhere_gets_narrow_on_every_level() {
    let mut file = File::quick(TINY).with_extents(1500, 2);
    let before = file.check();
    for first in (0..3000).step_by(12) {
        file.remove(first + 1..first + 12).unwrap();
    }
    let summary = file.check();
    assert_eq!(summary.extents, 1500 / 6);
    // A node has 6 entries; neighbours join at 3 and less, so that two have more than 3 on average.
    assert!(
        summary.nodes * 3 < before.nodes * 2,
        "{summary:?}, before {before:?}"
    );
}

fn shift(file: &mut File, from: u64, direction: Direction) {
    let mut rest = file.raw().shift(from, 7, direction).unwrap();
    while let Some(shift) = rest {
        rest = file.raw().shift_next(&shift).unwrap();
    }
}

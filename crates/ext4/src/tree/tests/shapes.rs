//! Growth and shrinking of trees.

use super::*;

fn nodes_of(count: u32, place: impl Fn(u32) -> u32) -> Summary {
    let mut file = File::quick(1024);
    for index in 0..count {
        file.raw().insert(written(place(index) * 2, 1)).unwrap();
    }
    file.check()
}

#[test]
fn file_written_from_start_to_end_has_full_nodes() {
    let summary = nodes_of(84 * 84, |index| index);
    assert_eq!(summary.extents, 84 * 84);
    assert_eq!((summary.depth, summary.nodes), (2, 84 + 1));
}

#[test]
fn file_written_from_end_to_start_has_full_leaves() {
    let count = 84 * 84;
    let summary = nodes_of(count, |index| count - 1 - index);
    assert!(summary.nodes <= 84 + 2, "{summary:?}");
}

#[test]
fn file_written_at_random_has_nodes_half_full_or_more() {
    // Multiplying by a number without common factors visits all places.
    let count = 10_007;
    let summary = nodes_of(count, |index| (u64::from(index) * 6_007 % 10_007) as u32);
    assert_eq!(summary.extents, u64::from(count));
    assert!(summary.nodes <= u64::from(count) / 42 + 8, "{summary:?}");
}

#[test]
fn fifth_extent_moves_the_root_into_a_block_and_its_removal_moves_it_back() {
    let mut file = File::new(1024).with_extents(4, 2);
    assert_eq!(file.check().depth, 0);
    file.insert(written(8, 1)).unwrap();
    assert_eq!(file.check().nodes, 1);
    assert_eq!(file.depth(), 1);
    file.remove(4..5).unwrap();
    assert_eq!(file.depth(), 0);
    assert_eq!(file.lengths(), [(0, 1), (2, 1), (6, 1), (8, 1)]);
}

#[test]
fn punched_leaves_join_their_neighbours() {
    let mut file = File::new(1024).with_extents(84 * 40, 2);
    assert_eq!(file.check().nodes, 40 + 1);
    // A tenth of every leaf is kept.
    for leaf in 0..40 {
        let first = leaf * 84 * 2;
        file.remove(first + 16..first + 168).unwrap();
    }
    let summary = file.check();
    assert_eq!(summary.extents, 40 * 8);
    assert!(summary.nodes <= 20, "{summary:?}");
}

#[test]
fn truncate_from_the_middle_keeps_earlier_blocks() {
    let mut file = File::new(TINY).with_extents(500, 2);
    let freed = file.remove(501..LOGICAL_END).unwrap();
    assert_eq!(freed.len(), 249);
    assert_eq!(freed.iter().map(|run| run.logical.0).min(), Some(502));
    assert_eq!(file.check().extents, 251);
}

#[test]
fn extent_between_two_that_it_continues_makes_one_of_three() {
    let mut file = File::new(1024);
    for extent in [written(0, 5), written(6, 4), written(5, 1)] {
        file.insert(extent).unwrap();
    }
    assert_eq!(file.lengths(), [(0, 10)]);
}

#[test]
fn first_extent_before_all_others_corrects_every_key_above() {
    let mut file = File::new(TINY);
    for index in 0..400 {
        file.raw().insert(written(10 + index * 2, 1)).unwrap();
    }
    assert!(file.depth() >= 3);
    file.insert(written(0, 2)).unwrap();
    assert_eq!(
        file.tree().find(LogicalBlock(1)).unwrap(),
        Mapping::Extent(written(0, 2))
    );
    file.remove(0..12).unwrap();
    assert_eq!(
        file.tree().find(LogicalBlock(3)).unwrap(),
        Mapping::Hole(0..12)
    );
}

#[test]
fn walk_is_clipped_to_its_range_and_ends_on_break() {
    let file = File::new(TINY).with_extents(100, 10);
    let mut parts = Vec::new();
    let walk = file.tree().walk(10..31, |part| {
        parts.push(part.logical());
        ControlFlow::<()>::Continue(())
    });
    assert_eq!(walk.unwrap(), ControlFlow::Continue(()));
    assert_eq!(parts, [10..11, 11..20, 20..21, 21..30, 30..31]);
    let walk = file.tree().walk(15..u64::MAX, |part| match part {
        Mapping::Extent(extent) => ControlFlow::Break(extent.logical.0),
        Mapping::Hole(_) => ControlFlow::Continue(()),
    });
    assert_eq!(walk.unwrap(), ControlFlow::Break(20));
}

#[test]
fn collapse_joins_adjacent_extents() {
    let mut file = File::new(1024);
    let elsewhere = LeafEntry {
        physical: PhysicalBlock(1010),
        ..written(20, 5)
    };
    file.insert(written(0, 10)).unwrap();
    file.insert(elsewhere).unwrap();
    file.shift(20, 10, Direction::Left).unwrap();
    assert_eq!(file.extents(), [written(0, 15)]);
}

#[test]
fn shift_left_onto_blocks_is_refused() {
    let mut file = File::new(1024).with_extents(3, 10);
    for (from, by, detail) in [
        (10, 10, "block 0 is not a hole"),
        (15, 20, "block 15 cannot move left by 20 blocks"),
        (11, 1, "block 10 is not a hole"),
    ] {
        let error = file.shift(from, by, Direction::Left).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(error.to_string(), detail);
    }
}

#[test]
fn shift_of_nothing_does_nothing() {
    let mut file = File::new(1024).with_extents(3, 10);
    for (from, by) in [(21, 5), (LOGICAL_END, 5), (0, 0)] {
        let shift = file.step(|tree| tree.shift(from, by, Direction::Right));
        assert_eq!(shift.unwrap(), None);
    }
    assert_eq!(file.lengths(), [(0, 1), (10, 1), (20, 1)]);
}

//! The longest extents, and the last block of a file.

use super::*;

/// Half a pebibyte, so that the largest file fits.
fn large() -> File {
    let bytes = include_bytes!("../../../../ondisk/tests/data/superblock.bin");
    let mut superblock = Superblock::parse(bytes).unwrap();
    superblock
        .edit(|raw| {
            let groups = 1u32 << 18;
            raw.s_blocks_count_lo.set(0);
            raw.s_blocks_count_hi.set(groups >> 17);
            let per_group = raw.s_inodes_per_group.get();
            raw.s_inodes_count.set(groups * per_group);
        })
        .unwrap();
    File {
        layout: *superblock.layout(),
        ..File::quick(4096)
    }
}

#[test]
fn file_of_all_blocks_has_an_extent_for_every_32768() {
    let mut file = large();
    let mut at = 0;
    while at < LOGICAL_END {
        let blocks = (LOGICAL_END - at).min(32_768);
        file.raw()
            .insert(written(at as u32, blocks as u16))
            .unwrap();
        at += blocks;
    }
    let summary = file.check();
    assert_eq!((summary.extents, summary.blocks), (1 << 17, LOGICAL_END));
    let last = LogicalBlock(u32::MAX - 1);
    let Mapping::Extent(extent) = file.tree().find(last).unwrap() else {
        panic!("the last block is not a hole");
    };
    assert_eq!(extent.logical_end(), LOGICAL_END);

    let mut blocks = 0;
    let remove = file
        .raw()
        .remove(0..u64::MAX, &mut |run| blocks += u64::from(run.blocks));
    remove.unwrap();
    assert_eq!(blocks, LOGICAL_END);
    assert_eq!(file.check(), Summary::default());
}

#[test]
fn extent_past_the_last_block_is_refused() {
    let mut file = File::new(1024);
    let extent = |logical| LeafEntry {
        physical: PhysicalBlock(1000),
        ..written(logical, 2)
    };
    let error = file.insert(extent(u32::MAX - 1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    file.insert(extent(u32::MAX - 2)).unwrap();
    let error = file.shift(0, 1, Direction::Right).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    file.remove(LOGICAL_END - 1..LOGICAL_END).unwrap();
    file.shift(0, 1, Direction::Right).unwrap();
    assert_eq!(file.lengths(), [(u32::MAX - 1, 1)]);
    // Continuing at the end of the result advances as well.
    assert_eq!(
        file.tree().find(LogicalBlock(u32::MAX)).unwrap(),
        Mapping::Hole(LOGICAL_END..LOGICAL_END + 1)
    );
}

#[test]
fn longest_extents_are_not_joined_with_adjacent_ones() {
    for (first, expected) in [
        (written(0, 32_767), &[(0, 32_768)][..]),
        (written(0, 32_768), &[(0, 32_768), (32_768, 1)]),
        (unwritten(0, 32_766), &[(0, 32_767)]),
        (unwritten(0, 32_767), &[(0, 32_767), (32_767, 1)]),
    ] {
        let mut file = File::new(1024);
        file.insert(first).unwrap();
        let next = LeafEntry {
            kind: first.kind,
            ..written(first.blocks.into(), 1)
        };
        file.insert(next).unwrap();
        assert_eq!(file.lengths(), expected);
    }
}

#[test]
fn longest_written_extents_made_unwritten_become_two_each_and_one_again() {
    let mut file = File::new(TINY);
    for index in 0..3 {
        file.insert(written(index * 32_768, 32_768)).unwrap();
    }
    file.convert(0..LOGICAL_END, ExtentKind::Unwritten).unwrap();
    let extents = file.extents();
    assert!(
        extents
            .iter()
            .all(|extent| extent.kind == ExtentKind::Unwritten)
    );
    assert_eq!(file.check().blocks, 3 * 32_768);
    file.convert(0..LOGICAL_END, ExtentKind::Written).unwrap();
    assert_eq!(file.check().blocks, 3 * 32_768);
    assert!(
        file.extents()
            .iter()
            .all(|extent| extent.kind == ExtentKind::Written)
    );
}

#[test]
fn block_written_inside_an_unwritten_extent_makes_three_of_it() {
    let mut file = File::new(1024);
    file.insert(unwritten(0, 32_767)).unwrap();
    file.convert(100..101, ExtentKind::Written).unwrap();
    assert_eq!(file.lengths(), [(0, 100), (100, 1), (101, 32_666)]);
    // Contiguous written extents are merged.
    file.convert(101..200, ExtentKind::Written).unwrap();
    file.convert(0..100, ExtentKind::Written).unwrap();
    assert_eq!(file.lengths(), [(0, 200), (200, 32_567)]);
    file.convert(200..40_000, ExtentKind::Written).unwrap();
    assert_eq!(file.lengths(), [(0, 32_767)]);
}

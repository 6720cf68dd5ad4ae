//! Nodes made, changed, read back, and spoilt in every way that is refused.

use extant_space::{Corruption, ErrorKind};

use super::*;
use crate::ext4::extent::{ExtentKind, ExtentNode, NodePlace};
use crate::ext4::superblock::fixture;
use crate::ext4::{InodeNumber, LogicalBlock, PhysicalBlock, Seed};

fn extent(logical: u32, physical: u64, blocks: u16) -> LeafEntry {
    LeafEntry {
        logical: LogicalBlock(logical),
        physical: PhysicalBlock(physical),
        blocks,
        kind: ExtentKind::Written,
    }
}

fn reference(logical: u32, child: u64) -> IndexEntry {
    IndexEntry {
        logical: LogicalBlock(logical),
        child: PhysicalBlock(child),
    }
}

fn seed() -> Option<InodeSeed> {
    Some(Seed::from_stored(1).inode(InodeNumber(12), 2))
}

fn place() -> NodePlace {
    NodePlace {
        block: PhysicalBlock(5000),
        depth: 0,
        logical: 10..100,
    }
}

/// A leaf with the extents 10..15 and 20..30.
fn leaf() -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    let mut node = ExtentNodeMut::init(&mut bytes, 0);
    node.insert_leaf(0, &extent(20, 900, 10));
    node.insert_leaf(0, &extent(10, 800, 5));
    node.seal(seed());
    bytes
}

fn refusal(bytes: &[u8], place: &NodePlace) -> String {
    let layout = *fixture().layout();
    let error = ExtentNode::parse_block(bytes, place, &layout, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    error.to_string()
}

#[test]
fn leaf_reads_back_and_finds_blocks() {
    let layout = *fixture().layout();
    let bytes = leaf();
    let node = ExtentNode::parse_block(&bytes, &place(), &layout, seed()).unwrap();
    assert_eq!(node.capacity(), 340);
    let found = [9, 10, 14, 15, 20, 99].map(|block| node.find(LogicalBlock(block)));
    assert_eq!(found, [None, Some(0), Some(0), Some(0), Some(1), Some(1)]);
    assert_eq!(node.leaf(1), extent(20, 900, 10));
}

#[test]
fn changed_byte_is_found_by_the_checksum_at_the_end() {
    let layout = *fixture().layout();
    let mut bytes = leaf();
    // Past the entries in use, before the tail.
    bytes[4000] = 1;
    let error = ExtentNode::parse_block(&bytes, &place(), &layout, seed()).unwrap_err();
    assert_eq!(
        error.corruption(),
        Some(&Corruption::checksum("extent node in block 5000"))
    );
}

#[test]
fn each_spoilt_header_field_is_named() {
    for (at, value, problem) in [
        (0, 0xF30B_u16, "eh_magic is 0xf30b, not 0xf30a"),
        (2, 341, "eh_entries is 341, outside 0 to 340"),
        (4, 341, "eh_max is 341, outside 1 to 340"),
        (4, 0, "eh_max is 0, outside 1 to 340"),
        (6, 6, "eh_depth is 6, outside 0 to 5"),
        (6, 1, "eh_depth is 1, not 0"),
    ] {
        let mut bytes = leaf();
        bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
        let line = refusal(&bytes, &place());
        assert_eq!(line, format!("extent node in block 5000: {problem}"));
    }
}

#[test]
fn each_impossible_extent_is_named() {
    let blocks = fixture().layout().blocks();
    for (index, entry, problem) in [
        (
            0,
            extent(9, 800, 1),
            "entry 0 covers blocks 9 to 10, outside 10 to 100",
        ),
        (
            0,
            extent(11, 800, 1),
            "entry 0 begins at block 11, not at 10",
        ),
        (
            0,
            extent(10, 800, 11),
            "entry 1 covers blocks 20 to 30, outside 21 to 100",
        ),
        (
            1,
            extent(14, 800, 1),
            "entry 1 covers blocks 14 to 15, outside 15 to 100",
        ),
        (
            1,
            extent(95, 800, 6),
            "entry 1 covers blocks 95 to 101, outside 15 to 100",
        ),
        (
            1,
            extent(20, 0, 1),
            "entry 1 names block 0, outside the file system",
        ),
        (
            1,
            extent(20, blocks - 9, 10),
            "entry 1 names block 131063, outside the file system",
        ),
    ] {
        let mut bytes = leaf();
        ExtentNodeMut::new(&mut bytes).set_leaf(index, &entry);
        assert_eq!(
            refusal(&bytes, &place()),
            format!("extent node in block 5000: {problem}")
        );
    }
}

#[test]
fn trusted_node_is_found_and_refused_at_every_other_place() {
    let bytes = leaf();
    let node = ExtentNode::trusted(&bytes, &place()).unwrap();
    assert_eq!(node.leaf(1), extent(20, 900, 10));
    for other in [
        NodePlace {
            depth: 1,
            ..place()
        },
        NodePlace {
            logical: 9..100,
            ..place()
        },
        NodePlace {
            logical: 10..29,
            ..place()
        },
    ] {
        let error = ExtentNode::trusted(&bytes, &other).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
    for (at, value) in [(0, 0xF30B_u16), (2, 341), (4, 341), (4, 0), (2, 3)] {
        let mut bytes = leaf();
        bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
        let refused = ExtentNode::trusted(&bytes, &place()).is_err();
        // A third entry, all zeros, ends at block 0: only a full judgement finds it.
        assert_eq!(refused, (at, value) != (2, 3), "{value:#x} at {at}");
    }
}

#[test]
fn length_0_is_refused() {
    let mut bytes = leaf();
    bytes[16..18].fill(0);
    assert_eq!(
        refusal(&bytes, &place()),
        "extent node in block 5000: entry 0 has length 0"
    );
}

#[test]
fn extent_up_to_the_last_block_is_taken_and_one_past_it_refused() {
    let layout = *fixture().layout();
    let mut root = [0; 60];
    ExtentNodeMut::init(&mut root, 0).insert_leaf(0, &extent(u32::MAX - 1, 800, 1));
    ExtentNode::parse_root(&root, &layout).unwrap();
    ExtentNodeMut::new(&mut root).set_leaf(0, &extent(u32::MAX, 800, 1));
    let error = ExtentNode::parse_root(&root, &layout).unwrap_err();
    assert_eq!(
        error.to_string(),
        "extent tree root: entry 0 covers blocks 4294967295 to 4294967296, outside 0 to 4294967295"
    );
}

#[test]
fn children_cover_the_range_up_to_the_next() {
    let layout = *fixture().layout();
    let mut root = [0; 60];
    let mut node = ExtentNodeMut::init(&mut root, 2);
    for (index, logical) in [0, 50, 70, 90].into_iter().enumerate() {
        node.insert_index(index, &reference(logical, 1000 + u64::from(logical)));
    }
    assert!(node.is_full());
    let node = ExtentNode::parse_root(&root, &layout).unwrap();
    let place = node.child(1);
    assert_eq!(
        (place.block, place.depth, place.logical),
        (PhysicalBlock(1050), 1, 50..70)
    );
    assert_eq!(node.child(3).logical, 90..u64::from(u32::MAX));
}

#[test]
fn unsorted_references_and_no_references_are_refused() {
    let layout = *fixture().layout();
    let mut root = [0; 60];
    let mut node = ExtentNodeMut::init(&mut root, 1);
    node.insert_index(0, &reference(7, 1000));
    node.insert_index(1, &reference(7, 1001));
    let error = ExtentNode::parse_root(&root, &layout).unwrap_err();
    assert_eq!(
        error.to_string(),
        "extent tree root: entry 1 covers blocks 7 to 8, outside 8 to 4294967295"
    );
    ExtentNodeMut::new(&mut root).remove(0..2);
    let error = ExtentNode::parse_root(&root, &layout).unwrap_err();
    assert_eq!(
        error.to_string(),
        "extent tree root: no entries above the leaves"
    );
}

#[test]
fn split_moves_the_second_half_and_removal_closes_the_gap() {
    let layout = *fixture().layout();
    let (mut left, mut right) = ([0; 60], [0; 60]);
    let mut first = ExtentNodeMut::init(&mut left, 0);
    let mut second = ExtentNodeMut::init(&mut right, 0);
    for index in 0..4u8 {
        let at = u32::from(index);
        first.insert_leaf(index.into(), &extent(at * 10, 800, 1));
    }
    first.move_tail(2, &mut second);
    second.remove(0..1);
    let logical = |bytes: &[u8; 60]| {
        let node = ExtentNode::parse_root(bytes, &layout).unwrap();
        node.leaves().map(|leaf| leaf.logical.0).collect::<Vec<_>>()
    };
    assert_eq!(logical(&left), [0, 10]);
    assert_eq!(logical(&right), [30]);
}

//! Random operations on a tree and on a map of single blocks, which must agree after each.

use std::collections::BTreeMap;

use extant_space::ErrorKind;
use proptest::prelude::*;

use super::*;

/// Start of operations.
const SPACE: u32 = 1200;

type Model = BTreeMap<u64, (u64, ExtentKind)>;

#[derive(Clone, Debug)]
enum Operation {
    /// Fills the hole at a block, up to its end, with blocks that may be contiguous with others.
    Insert(u32, u16, u64, ExtentKind),
    Remove(Range<u64>),
    Convert(Range<u64>, ExtentKind),
    /// Removes a range and closes the gap.
    Collapse(Range<u64>),
    /// Opens a gap.
    Open(u64, u64),
}

fn kind() -> impl Strategy<Value = ExtentKind> {
    prop_oneof![Just(ExtentKind::Written), Just(ExtentKind::Unwritten)]
}

fn range(blocks_max: u32) -> impl Strategy<Value = Range<u64>> {
    (0..SPACE, 1..blocks_max).prop_map(|(start, blocks)| start.into()..(start + blocks).into())
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        8 => (0..SPACE, 1..20u16, 0..3u64, kind())
            .prop_map(|(at, blocks, area, kind)| Operation::Insert(at, blocks, area, kind)),
        2 => range(12).prop_map(Operation::Remove),
        1 => range(400).prop_map(Operation::Remove),
        4 => (range(12), kind()).prop_map(|(range, kind)| Operation::Convert(range, kind)),
        1 => (range(400), kind()).prop_map(|(range, kind)| Operation::Convert(range, kind)),
        1 => range(60).prop_map(Operation::Collapse),
        1 => (0..u64::from(SPACE), 1..60u64).prop_map(|(from, by)| Operation::Open(from, by)),
    ]
}

fn apply(file: &mut File, model: &mut Model, operation: &Operation) {
    match operation.clone() {
        Operation::Insert(at, blocks, area, kind) => {
            let at = u64::from(at);
            let free = (at..at + u64::from(blocks))
                .take_while(|block| !model.contains_key(block))
                .count() as u16;
            let extent = LeafEntry {
                logical: LogicalBlock(at as u32),
                physical: PhysicalBlock(1000 + area * 30_000 + at),
                blocks: free.max(1),
                kind,
            };
            let inserted = file.insert(extent);
            if free == 0 {
                assert_eq!(inserted.unwrap_err().kind(), ErrorKind::Corrupt);
                return;
            }
            inserted.unwrap();
            model.extend(
                (0..u64::from(free)).map(|block| (at + block, (extent.physical.0 + block, kind))),
            );
        }
        Operation::Remove(range) => {
            let freed = file.remove(range.clone()).unwrap();
            let expected: Model = model.extract_if(range, |_, _| true).collect();
            assert_eq!(flat(&freed), expected);
        }
        Operation::Convert(range, kind) => {
            file.convert(range.clone(), kind).unwrap();
            model.range_mut(range).for_each(|(_, block)| block.1 = kind);
        }
        Operation::Collapse(range) => {
            file.remove(range.clone()).unwrap();
            let by = range.end - range.start;
            file.shift(range.end, by, Direction::Left).unwrap();
            model.retain(|block, _| !range.contains(block));
            let moved = model.split_off(&range.end);
            model.extend(moved.into_iter().map(|(block, value)| (block - by, value)));
        }
        Operation::Open(from, by) => {
            file.shift(from, by, Direction::Right).unwrap();
            let moved = model.split_off(&from);
            model.extend(moved.into_iter().map(|(block, value)| (block + by, value)));
        }
    }
}

fn flat(extents: &[LeafEntry]) -> Model {
    let blocks = extents.iter().flat_map(|extent| {
        (0..u64::from(extent.blocks)).map(move |block| {
            let logical = u64::from(extent.logical.0) + block;
            (logical, (extent.physical.0 + block, extent.kind))
        })
    });
    blocks.collect()
}

/// `find` agrees with the model on every block, and its holes end where the next extent begins.
fn compare_find(file: &File, model: &Model) {
    for block in 0..u64::from(SPACE) + 100 {
        let found = file.tree().find(LogicalBlock(block as u32)).unwrap();
        assert!(found.logical().contains(&block));
        match found {
            Mapping::Extent(extent) => {
                let physical = extent.map(LogicalBlock(block as u32)).unwrap();
                assert_eq!(model.get(&block), Some(&(physical.0, extent.kind)));
            }
            Mapping::Hole(hole) => {
                let before = model.range(..block).next_back();
                let after = model.range(block..).next();
                assert_eq!(hole.start, before.map_or(0, |(block, _)| block + 1));
                assert_eq!(hole.end, after.map_or(LOGICAL_END, |(&block, _)| block));
            }
        }
    }
}

fn compare(node_bytes: usize, extents: u32, operations: &[Operation]) {
    let mut file = File::new(node_bytes).with_extents(extents, 3);
    let mut model = flat(&file.extents());
    for operation in operations {
        apply(&mut file, &mut model, operation);
        assert_eq!(flat(&file.extents()), model, "after {operation:?}");
    }
    compare_find(&file, &model);
    assert_eq!(file.check().blocks, model.len() as u64);
    file.remove(0..LOGICAL_END).unwrap();
    assert_eq!(file.check(), Summary::default());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn tree_of_tiny_nodes_agrees_with_a_map_of_blocks(
        extents in 0..400u32,
        operations in prop::collection::vec(operation(), 1..40),
    ) {
        compare(TINY, extents, &operations);
    }

    #[test]
    fn tree_of_1k_nodes_agrees_with_a_map_of_blocks(
        extents in 0..400u32,
        operations in prop::collection::vec(operation(), 1..40),
    ) {
        compare(1024, extents, &operations);
    }
}

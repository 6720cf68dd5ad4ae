//! Stores that fail at every point, and nodes made to do harm.

use extant_ondisk::ext4::extent::{ExtentNodeMut, IndexEntry};

use super::memory::Trust;
use super::*;

type Step = fn(&mut File) -> Result<()>;
type RawStep = fn(&mut TreeMut<'_, Memory>) -> Result<()>;

/// Steps that each need nodes in a tree whose nodes are full.
const GROWING: [(&str, Step); 5] = [
    ("insert", |file| file.insert(written(311, 1))),
    ("append", |file| file.insert(unwritten(2900, 1))),
    ("punch", |file| file.remove(602..603).map(drop)),
    ("convert", |file| {
        file.convert(902..903, ExtentKind::Unwritten)
    }),
    ("open a gap", |file| file.shift(603, 5, Direction::Right)),
];

/// Steps that need none.
const OTHERS: [(&str, Step); 5] = [
    ("truncate", |file| file.remove(105..LOGICAL_END).map(drop)),
    ("punch over extents", |file| file.remove(105..285).map(drop)),
    ("continue an extent", |file| {
        let extent = LeafEntry {
            physical: PhysicalBlock(1010),
            ..written(10, 5)
        };
        file.insert(extent)
    }),
    ("convert all", |file| {
        file.convert(0..LOGICAL_END, ExtentKind::Unwritten)
    }),
    ("collapse", |file| {
        file.remove(600..900)?;
        file.shift(900, 300, Direction::Left)
    }),
];

/// Full nodes of three levels; every extent has more than two blocks, and a hole after it.
fn full() -> File {
    let mut file = File::new(TINY);
    for index in 0..4 * 36 {
        let extent = LeafEntry {
            // Apart, so that neighbours do not continue each other.
            physical: PhysicalBlock(1000 + u64::from(index) * 100),
            ..written(index * 20, 10)
        };
        file.raw().insert(extent).unwrap();
    }
    assert_eq!((file.depth(), file.check().nodes), (2, 4 * 6 + 4));
    file
}

/// Lets `step` fail at its first, second, ... chance until it succeeds; returns how often it
/// failed.
fn fail_everywhere(step: Step, fail_at: impl Fn(&mut Memory, usize)) -> usize {
    let untouched = full();
    for chance in 0.. {
        let mut file = untouched.copy();
        fail_at(&mut file.memory, chance);
        let failed = step(&mut file).is_err();
        fail_at(&mut file.memory, usize::MAX);
        file.check();
        if !failed {
            return chance;
        }
        // A failed step can be repeated.
        step(&mut file).unwrap();
    }
    unreachable!("a step takes a finite number of blocks");
}

#[test]
fn no_space_at_every_new_node_changes_nothing() {
    let points = GROWING.map(|(name, step)| {
        // The checks of a step compare everything with the state before it.
        let points = fail_everywhere(step, |memory, chance| memory.creates_left = chance);
        (name, points)
    });
    // Appending leaves the old nodes full: a leaf, the node above, and one below the root.
    for (name, points) in points {
        assert_eq!(points, 3, "{name}");
    }
}

/// [`File::step`] is no use here, as its checks read as well.
#[test]
fn error_of_every_read_leaves_a_valid_tree() {
    let steps: [RawStep; 6] = [
        |tree| tree.insert(written(311, 1)),
        |tree| tree.remove(602..603, &mut |_| ()),
        |tree| tree.remove(100..LOGICAL_END, &mut |_| ()),
        |tree| tree.convert(0..LOGICAL_END, ExtentKind::Unwritten),
        |tree| match tree.shift(603, 5, Direction::Right)? {
            Some(shift) => tree.shift_next(&shift).map(drop),
            None => Ok(()),
        },
        |tree| tree.as_tree().verify(|_| ()).map(drop),
    ];
    let untouched = full();
    let blocks_before = untouched.check().blocks;
    for step in steps {
        let mut failures = 0;
        loop {
            let mut file = untouched.copy();
            file.memory.reads_left.set(failures);
            let result = step(&mut file.raw());
            file.memory.reads_left.set(usize::MAX);
            let blocks = file.check().blocks;
            assert!(blocks <= blocks_before + 1);
            match result {
                Err(error) => assert_eq!(error.kind(), ErrorKind::Io),
                Ok(()) => break,
            }
            failures += 1;
        }
        assert!(failures >= 2, "a way to a leaf has two reads");
    }
}

#[test]
fn blocks_given_to_freed_are_gone_and_others_stay_when_a_read_fails() {
    let mut stopped = 0;
    let untouched = full();
    let total = untouched.check().blocks;
    for reads in 0..60 {
        let mut file = untouched.copy();
        let mut freed = 0;
        file.memory.reads_left.set(reads);
        let removed = file
            .raw()
            .remove(100..LOGICAL_END, &mut |run| freed += u64::from(run.blocks));
        file.memory.reads_left.set(usize::MAX);
        assert_eq!(file.check().blocks + freed, total);
        stopped += u32::from(removed.is_err() && freed > 0);
    }
    assert!(stopped > 10, "{stopped} stopped half-way");
}

#[test]
fn steps_that_need_no_node_succeed_without_space() {
    for (name, step) in OTHERS {
        let mut file = full();
        file.memory.creates_left = 0;
        assert!(step(&mut file).is_ok(), "{name}");
    }
}

/// The first leaf of [`full`], and the node above.
fn first_nodes(file: &File) -> (PhysicalBlock, PhysicalBlock) {
    let mut nodes = Vec::new();
    file.tree()
        .verify(|part| {
            if let Part::Node(block) = part {
                nodes.push(block);
            }
        })
        .unwrap();
    (nodes[1], nodes[0])
}

/// All that can be asked of a tree and done to it.
fn use_everywhere(file: &File) -> Vec<ErrorKind> {
    let mut kinds = Vec::new();
    let mut note = |result: Result<()>| kinds.extend(result.err().map(|error| error.kind()));
    for block in (0..150).step_by(5).chain((150..3000).step_by(95)) {
        note(file.tree().find(LogicalBlock(block)).map(|found| {
            let found = found.logical();
            assert!(
                found.contains(&block.into()),
                "{found:?} is not about {block}"
            );
        }));
    }
    note(
        file.tree()
            .walk(0..LOGICAL_END, |_| ControlFlow::<()>::Continue(()))
            .map(drop),
    );
    note(file.tree().verify(|_| ()).map(drop));
    for block in (0..140u32).step_by(19) {
        let at = u64::from(block);
        note(file.copy().raw().insert(written(block, 1)));
        note(file.copy().raw().remove(at..at + 3, &mut |_| ()));
        note(file.copy().raw().convert(at..at + 3, ExtentKind::Unwritten));
        note(file.copy().raw().shift(at, 7, Direction::Right).map(drop));
    }
    note(file.copy().raw().remove(0..LOGICAL_END, &mut |_| ()));
    note(
        file.copy()
            .raw()
            .convert(0..LOGICAL_END, ExtentKind::Unwritten),
    );
    for direction in [Direction::Left, Direction::Right] {
        let mut copy = file.copy();
        let mut steps = 0;
        let mut shift = copy.raw().shift(20, 5, direction);
        while let Ok(Some(rest)) = shift {
            shift = copy.raw().shift_next(&rest);
            steps += 1;
            assert!(steps < 1000, "a shift ends");
        }
        note(shift.map(drop));
    }
    kinds
}

#[test]
fn every_spoilt_byte_of_a_node_from_the_disk_is_refused() {
    let file = full();
    let (leaf, above) = first_nodes(&file);
    for block in [leaf, above] {
        for at in 0..TINY {
            let mut spoilt = file.copy();
            spoilt.memory.spoil(block, |bytes| bytes[at] ^= 0x41);
            let error = spoilt.tree().find(LogicalBlock(0)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            let line = error.to_string();
            assert!(
                line.contains(&format!("block {block}")),
                "byte {at}: {line}"
            );
        }
    }
}

#[test]
fn node_that_was_judged_as_something_else_never_panics() {
    let file = full();
    let (leaf, above) = first_nodes(&file);
    let mut refused = 0;
    for block in [leaf, above] {
        for at in 0..TINY - 4 {
            for value in [0x00, 0x01, 0xFF] {
                let mut spoilt = file.copy();
                spoilt.memory.trust = Trust::Cached;
                spoilt.seed = None;
                spoilt.memory.spoil(block, |bytes| bytes[at] = value);
                let kinds = use_everywhere(&spoilt);
                refused += u32::from(kinds.contains(&ErrorKind::Corrupt));
            }
        }
    }
    assert!(refused > 200, "{refused} were noticed");
}

/// Whole nodes of nonsense that passes for a node at a glance: header, first and last entry are
/// right.
#[test]
fn nodes_valid_only_at_their_ends_never_panic_or_hang() {
    let file = full();
    let (leaf, above) = first_nodes(&file);
    let mut random = fastrand::Rng::with_seed(11);
    let mut refused = 0;
    for round in 0..120 {
        let mut spoilt = file.copy();
        spoilt.memory.trust = Trust::Cached;
        spoilt.seed = None;
        let pick = random.u8(1..16);
        spoilt.memory.spoil(leaf, |bytes| {
            let mut node = ExtentNodeMut::new(bytes);
            for index in (1..5).filter(|index| pick & (1 << (index - 1)) != 0) {
                let extent = LeafEntry {
                    physical: PhysicalBlock(random.u64(1..20_000)),
                    ..written(random.u32(0..150), random.u16(1..60))
                };
                node.set_leaf(index, &extent);
            }
        });
        if round % 2 == 0 {
            let others = [leaf, PhysicalBlock(leaf.0 + 1), PhysicalBlock(leaf.0 + 2)];
            spoilt.memory.spoil(above, |bytes| {
                let reference = IndexEntry {
                    logical: LogicalBlock(random.u32(0..800)),
                    child: others[random.usize(0..others.len())],
                };
                ExtentNodeMut::new(bytes).set_index(random.usize(1..5), &reference);
            });
        }
        refused += u32::from(use_everywhere(&spoilt).contains(&ErrorKind::Corrupt));
    }
    assert!(refused > 60, "{refused} were noticed");
}

#[test]
fn two_references_to_one_leaf_are_refused() {
    let mut file = full();
    file.memory.trust = Trust::Cached;
    let (leaf, above) = first_nodes(&file);
    file.memory.spoil(above, |bytes| {
        let again = IndexEntry {
            logical: LogicalBlock(120),
            child: leaf,
        };
        ExtentNodeMut::new(bytes).set_index(1, &again);
    });
    let error = file.tree().find(LogicalBlock(130)).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "extent node in block {leaf}: not one of depth 0 for blocks 120 to 240; \
             something else uses the block as well"
        )
    );
}

/// Cutting two blocks out of extents that overlap would leave more of them than there is room for.
#[test]
fn punch_into_extents_out_of_order_is_refused() {
    let mut file = full();
    file.memory.trust = Trust::Cached;
    let (leaf, _) = first_nodes(&file);
    file.memory.spoil(leaf, |bytes| {
        let mut node = ExtentNodeMut::new(bytes);
        let extents = [(0, 60), (51, 9), (10, 50), (51, 9), (20, 40), (100, 10)];
        for (index, (logical, blocks)) in extents.into_iter().enumerate() {
            node.set_leaf(index, &written(logical, blocks));
        }
    });
    let removed = file.raw().remove_last(50..52, &mut |_| ());
    assert_eq!(removed.unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn leaf_that_is_its_own_neighbour_is_not_joined_with_itself() {
    let mut file = full();
    file.memory.trust = Trust::Cached;
    let (leaf, above) = first_nodes(&file);
    file.memory
        .spoil(leaf, |bytes| ExtentNodeMut::new(bytes).remove(0..6));
    file.memory.spoil(above, |bytes| {
        let again = IndexEntry {
            logical: LogicalBlock(0),
            child: leaf,
        };
        ExtentNodeMut::new(bytes).set_index(1, &again);
    });
    // The leaf after it is removed, and the leaf before it is read.
    file.raw().remove_last(240..360, &mut |_| ()).unwrap();
    assert!(file.memory.blocks.contains_key(&leaf));
}

#[test]
fn reference_to_the_node_itself_is_refused() {
    let mut file = full();
    file.memory.trust = Trust::Cached;
    let (_, above) = first_nodes(&file);
    file.memory.spoil(above, |bytes| {
        let itself = IndexEntry {
            logical: LogicalBlock(0),
            child: above,
        };
        ExtentNodeMut::new(bytes).set_index(0, &itself);
    });
    assert!(use_everywhere(&file).contains(&ErrorKind::Corrupt));
}

/// Kernels accept an empty leaf, and older ones left some behind.
#[test]
fn empty_leaf_is_a_hole_and_is_freed_by_remove_and_shift() {
    let empty = || {
        let mut file = full();
        let (leaf, _) = first_nodes(&file);
        file.memory.spoil(leaf, |bytes| {
            let mut node = ExtentNodeMut::new(bytes);
            node.remove(0..6);
            node.seal(Some(seed()));
        });
        file.check();
        file
    };
    let file = empty();
    assert_eq!(
        file.tree().find(LogicalBlock(5)).unwrap(),
        Mapping::Hole(0..120)
    );
    assert_eq!(file.extents().len(), 138);

    let mut file = empty();
    file.insert(written(7, 3)).unwrap();
    assert_eq!(file.extents()[0], written(7, 3));

    for change in [
        |file: &mut File| file.remove(0..10).map(drop),
        |file: &mut File| file.shift(0, 7, Direction::Right),
        |file: &mut File| file.shift(120, 100, Direction::Left),
    ] {
        let mut file = empty();
        let nodes = file.check().nodes;
        change(&mut file).unwrap();
        assert!(file.check().nodes < nodes);
        assert_eq!(file.extents().len(), 138);
    }
}

#[test]
fn node_that_changes_between_reading_and_changing_is_refused() {
    let file = full();
    let mut file = file.copy();
    let (leaf, _) = first_nodes(&file);
    let mut tree = file.raw();
    let root = *tree.root;
    let path = tree.descend(&root, LogicalBlock(0)).unwrap();
    let other = tree.nodes.blocks.get_mut(&leaf).unwrap();
    let mut bytes = other.to_vec();
    ExtentNodeMut::new(&mut bytes).remove(5..6);
    *other = bytes.into();
    let error = tree.splice(path, 5..6, &[]).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "extent node in block {leaf}: changed by something else that uses the block as well"
        )
    );
}

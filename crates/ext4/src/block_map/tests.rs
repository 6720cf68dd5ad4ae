//! Maps built block by block or by steps, and read back.

use std::collections::{BTreeMap, BTreeSet};

use extant_ondisk::ext4::Superblock;
use extant_ondisk::ext4::extent::WRITTEN_BLOCKS_MAX;
use proptest::prelude::*;

use super::*;
use crate::tree::{NodesMut, Validator, step_cost};

/// Numbers in an indirect block.
const PER_BLOCK: u64 = 1024;
const SINGLE: u64 = 12;
const DOUBLE: u64 = SINGLE + PER_BLOCK;
const TRIPLE: u64 = DOUBLE + PER_BLOCK * PER_BLOCK;
const REACH: u64 = TRIPLE + PER_BLOCK * PER_BLOCK * PER_BLOCK;

/// A file whose indirect blocks are in memory.
struct File {
    i_block: [u8; 60],
    store: Memory,
    layout: Layout,
    data: BTreeMap<u64, u64>,
}

#[derive(Clone, PartialEq, Eq)]
struct Memory {
    blocks: BTreeMap<PhysicalBlock, Vec<u8>>,
    next: u64,
    /// Blocks that were changed, created or removed.
    touched: BTreeSet<PhysicalBlock>,
    creates_left: u32,
}

impl NodesMut for Memory {
    fn hold(&mut self, block: PhysicalBlock, validate: Validator<'_>) -> Result<Arc<[u8]>> {
        self.read(block, validate)
    }

    fn change(&mut self, block: PhysicalBlock, change: &mut dyn FnMut(&mut [u8])) {
        self.touched.insert(block);
        change(self.blocks.get_mut(&block).expect("held or created"));
    }

    fn create(&mut self, _: PhysicalBlock, limit: Option<PhysicalBlock>) -> Result<PhysicalBlock> {
        assert_eq!(limit, Some(PHYSICAL_END));
        let left = self.creates_left.checked_sub(1);
        self.creates_left = left.ok_or(Error::new(ErrorKind::NoSpace))?;
        let block = PhysicalBlock(self.next);
        self.next += 1;
        self.touched.insert(block);
        self.blocks.insert(block, vec![0; 4096]);
        Ok(block)
    }

    fn remove(&mut self, block: PhysicalBlock) {
        self.touched.insert(block);
        self.blocks.remove(&block).expect("removed once");
    }
}

impl Nodes for Memory {
    fn read(&self, block: PhysicalBlock, validate: Validator<'_>) -> Result<Arc<[u8]>> {
        let bytes = self.blocks.get(&block).ok_or(Error::new(ErrorKind::Io))?;
        validate(bytes)?;
        Ok(bytes.as_slice().into())
    }
}

impl File {
    fn new() -> Self {
        let bytes = include_bytes!("../../../ondisk/tests/data/superblock.bin");
        Self {
            i_block: [0; 60],
            store: Memory {
                blocks: BTreeMap::new(),
                next: 100_000,
                touched: BTreeSet::new(),
                creates_left: u32::MAX,
            },
            layout: *Superblock::parse(bytes).unwrap().layout(),
            data: BTreeMap::new(),
        }
    }

    /// Puts consecutive blocks at `logical`, with the indirect blocks on the way.
    fn put(&mut self, logical: u64, physical: u64, blocks: u64) {
        for index in 0..blocks {
            self.put_one(logical + index, physical + index);
            self.data.insert(logical + index, physical + index);
        }
    }

    fn put_one(&mut self, logical: u64, physical: u64) {
        let layout = self.layout;
        let path = BlockPath::to(LogicalBlock(logical as u32), &layout).unwrap();
        let (&last, above) = path.steps().split_last().unwrap();
        let mut block = None;
        for &step in above {
            let new = PhysicalBlock(self.store.next);
            let found = block_map::entry(self.bytes(block), step, &layout).unwrap();
            if found.is_none() {
                block_map::set_entry(self.bytes(block), step, Some(new));
                self.store.next += 1;
                self.store.blocks.insert(new, vec![0; 4096]);
            }
            block = found.or(Some(new));
        }
        block_map::set_entry(self.bytes(block), last, Some(PhysicalBlock(physical)));
    }

    fn bytes(&mut self, block: Option<PhysicalBlock>) -> &mut [u8] {
        match block {
            None => &mut self.i_block,
            Some(block) => self.store.blocks.get_mut(&block).unwrap(),
        }
    }

    fn edit<T>(
        &mut self,
        step: impl FnOnce(&mut BlockMapMut<'_, Memory>) -> Result<T>,
    ) -> Result<T> {
        let format = TreeFormat {
            layout: &self.layout,
            seed: None,
            off_limits: None,
        };
        self.store.touched.clear();
        let before = (self.i_block, self.store.blocks.clone());
        let done = step(&mut BlockMapMut::new(
            &mut self.i_block,
            &mut self.store,
            format,
        ));
        assert!(self.store.touched.len() as u32 <= step_cost(DEPTH).touched);
        assert!(done.is_ok() || before == (self.i_block, self.store.blocks.clone()));
        done
    }

    /// Fills the holes of `logical` with blocks of the run from `physical` on.
    fn insert(&mut self, logical: Range<u64>, physical: u64) {
        let mut at = logical.start;
        let place = |at: u64| physical + (at - logical.start);
        while at < logical.end {
            let leaf = leaf(LogicalBlock(at as u32), &self.layout);
            let Mapping::Hole(hole) = self.find(at) else {
                at = self.find(at).logical().end;
                continue;
            };
            let blocks = hole.end.min(leaf.end).min(logical.end) - at;
            let Mapping::Extent(extent) = extent(at, place(at), blocks as u16) else {
                unreachable!()
            };
            self.edit(|map| map.insert(extent)).unwrap();
            self.data
                .extend((at..at + blocks).map(|block| (block, place(block))));
            at += blocks;
        }
    }

    /// Makes a hole; exactly the mapped blocks must be freed.
    fn remove(&mut self, range: Range<u64>) {
        let mut freed = BTreeMap::new();
        let mut rest = Some(range.clone());
        while let Some(range) = rest {
            let mut runs = Vec::new();
            rest = self
                .edit(|map| map.remove_last(range, &mut |run| runs.push(run)))
                .unwrap();
            for run in runs {
                let blocks = 0..u64::from(run.blocks);
                let start = u64::from(run.logical.0);
                freed.extend(blocks.map(|block| (start + block, run.physical.0 + block)));
            }
        }
        let kept = self.data.iter().filter(|(block, _)| !range.contains(block));
        let kept = kept.map(|(&block, &place)| (block, place)).collect();
        let mut wanted = std::mem::replace(&mut self.data, kept);
        wanted.retain(|block, _| range.contains(block));
        assert_eq!(freed, wanted);
    }

    /// No indirect block is without numbers, and every one is in the map.
    fn assert_tidy(&self) {
        let mut found = BTreeSet::new();
        let mut todo: Vec<(u32, PhysicalBlock)> = Vec::new();
        for level in 0..3 {
            let number = block_map::entry(&self.i_block, 12 + level, &self.layout);
            todo.extend(number.unwrap().map(|block| (level, block)));
        }
        while let Some((level, block)) = todo.pop() {
            assert!(found.insert(block));
            let bytes = &self.store.blocks[&block];
            assert_ne!(*bytes, [0; 4096], "{block} has no numbers");
            if level > 0 {
                let numbers = (0..1024).map(|index| block_map::entry(bytes, index, &self.layout));
                todo.extend(numbers.filter_map(|number| Some((level - 1, number.unwrap()?))));
            }
        }
        assert!(found.iter().eq(self.store.blocks.keys()), "blocks leaked");
    }

    fn map(&self) -> BlockMap<'_, Memory> {
        let format = TreeFormat {
            layout: &self.layout,
            seed: None,
            off_limits: None,
        };
        BlockMap::new(&self.i_block, &self.store, format)
    }

    fn find(&self, logical: u64) -> Mapping {
        self.map().find(LogicalBlock(logical as u32)).unwrap()
    }

    /// Walks all of the file; it must equal the inserted mapping.
    fn compare(&self) {
        let mut at = 0;
        let mut found = BTreeMap::new();
        let walked = self.map().walk(0..u64::MAX, |part| {
            assert_eq!(part.logical().start, at);
            at = part.logical().end;
            if let Mapping::Extent(extent) = part {
                assert_eq!(extent.kind, ExtentKind::Written);
                let blocks = 0..u64::from(extent.blocks);
                let start = u64::from(extent.logical.0);
                found.extend(blocks.map(|block| (start + block, extent.physical.0 + block)));
            }
            ControlFlow::<()>::Continue(())
        });
        assert_eq!(walked.unwrap(), ControlFlow::Continue(()));
        assert_eq!(at, LOGICAL_END);
        assert_eq!(found, self.data);
    }
}

fn extent(logical: u64, physical: u64, blocks: u16) -> Mapping {
    Mapping::Extent(LeafEntry {
        logical: LogicalBlock(logical as u32),
        physical: PhysicalBlock(physical),
        blocks,
        kind: ExtentKind::Written,
    })
}

#[test]
fn empty_map_is_a_hole() {
    let file = File::new();
    file.compare();
    assert_eq!(file.find(3), Mapping::Hole(0..SINGLE));
    assert_eq!(file.find(SINGLE + 5), Mapping::Hole(SINGLE..DOUBLE));
    assert_eq!(file.find(DOUBLE), Mapping::Hole(DOUBLE..TRIPLE));
    assert_eq!(file.find(REACH + 1), Mapping::Hole(REACH..LOGICAL_END));
    assert_eq!(
        file.find(LOGICAL_END),
        Mapping::Hole(LOGICAL_END..LOGICAL_END + 1)
    );
}

#[test]
fn blocks_at_the_edges_of_each_level_are_found() {
    let mut file = File::new();
    for (index, logical) in [
        0,
        11,
        SINGLE,
        DOUBLE - 1,
        DOUBLE,
        TRIPLE - 1,
        TRIPLE,
        REACH - 1,
    ]
    .into_iter()
    .enumerate()
    {
        file.put(logical, 500 + index as u64 * 10, 1);
    }
    file.compare();
    assert_eq!(file.find(TRIPLE - 1), extent(TRIPLE - 1, 550, 1));
    assert_eq!(file.find(REACH - 1), extent(REACH - 1, 570, 1));
}

#[test]
fn consecutive_blocks_are_one_extent_as_far_as_one_block_says() {
    let mut file = File::new();
    file.put(5, 1000, 2000);
    file.compare();
    assert_eq!(file.find(6), extent(5, 1000, 7));
    assert_eq!(file.find(SINGLE + 9), extent(SINGLE, 1007, 1024));
    assert_eq!(file.find(DOUBLE + 1), extent(DOUBLE, 1007 + 1024, 969));
    assert_eq!(file.find(2030), Mapping::Hole(2005..DOUBLE + PER_BLOCK));
    // Elsewhere on the device is another extent.
    file.put(8, 9000, 2);
    file.compare();
    assert_eq!(file.find(5), extent(5, 1000, 3));
    assert_eq!(file.find(8), extent(8, 9000, 2));
}

#[test]
fn hole_of_a_missing_indirect_block_spans_its_whole_range() {
    let mut file = File::new();
    let second = DOUBLE + PER_BLOCK;
    file.put(second, 700, 1);
    assert_eq!(file.find(DOUBLE + 9), Mapping::Hole(DOUBLE..second));
    let third = second + PER_BLOCK;
    assert_eq!(
        file.find(third + 7),
        Mapping::Hole(third..third + PER_BLOCK)
    );
    file.put(TRIPLE, 800, 1);
    let next = TRIPLE + PER_BLOCK * PER_BLOCK;
    assert_eq!(
        file.find(next + 3),
        Mapping::Hole(next..next + PER_BLOCK * PER_BLOCK)
    );
    file.compare();
}

#[test]
fn walk_is_cut_to_its_range() {
    let mut file = File::new();
    file.put(5, 1000, 20);
    let mut parts = Vec::new();
    let walk = file.map().walk(3..14, |part| {
        parts.push(part);
        ControlFlow::<()>::Continue(())
    });
    assert_eq!(walk.unwrap(), ControlFlow::Continue(()));
    assert_eq!(
        parts,
        [Mapping::Hole(3..5), extent(5, 1000, 7), extent(12, 1007, 2)]
    );
}

#[test]
fn number_outside_the_file_system_is_refused_where_it_is_asked_for() {
    let mut file = File::new();
    file.put(SINGLE, 1000, 3);
    let block = *file.store.blocks.keys().next().unwrap();
    let outside = Some(PhysicalBlock(file.layout.blocks()));
    block_map::set_entry(file.bytes(Some(block)), 2, outside);
    assert_eq!(file.find(SINGLE), extent(SINGLE, 1000, 2));
    let error = file.map().find(LogicalBlock(14)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert_eq!(
        error.to_string(),
        "indirect block 100000: block map: entry 2 names block 131072, outside the file system"
    );
    block_map::set_entry(&mut file.i_block, 12, outside);
    assert_eq!(
        file.map().find(LogicalBlock(12)).unwrap_err().kind(),
        ErrorKind::Corrupt
    );
}

#[test]
fn indirect_block_that_cannot_be_read_is_an_error() {
    let mut file = File::new();
    file.put(DOUBLE, 1000, 1);
    file.store.blocks.pop_last();
    assert_eq!(
        file.map()
            .find(LogicalBlock(DOUBLE as u32))
            .unwrap_err()
            .kind(),
        ErrorKind::Io
    );
}

#[test]
fn indirect_block_that_names_itself_ends_after_three_levels() {
    let mut file = File::new();
    let itself = PhysicalBlock(5000);
    block_map::set_entry(&mut file.i_block, 14, Some(itself));
    let mut bytes = vec![0; 4096];
    (0..1024).for_each(|index| block_map::set_entry(&mut bytes, index, Some(itself)));
    file.store.blocks.insert(itself, bytes);
    assert_eq!(file.find(TRIPLE + 5), extent(TRIPLE + 5, 5000, 1));
    // A block being changed must not be on the path twice.
    let error = file
        .edit(|map| map.remove_last(TRIPLE..REACH, &mut |_| ()))
        .unwrap_err();
    assert_eq!(error.to_string(), "indirect block 5000 leads to itself");
}

#[test]
fn insertion_creates_the_indirect_blocks_of_each_level_and_removal_frees_them() {
    let mut file = File::new();
    for (logical, nodes) in [
        (3, 0),
        (SINGLE, 1),
        (DOUBLE - 1, 1),
        (DOUBLE, 3),
        (REACH - 1, 6),
    ] {
        file.insert(logical..logical + 1, 2000);
        assert_eq!(file.store.blocks.len(), nodes);
        file.compare();
        file.assert_tidy();
    }
    file.remove(4..LOGICAL_END);
    assert!(file.store.blocks.is_empty());
    file.remove(0..LOGICAL_END);
    assert_eq!(file.i_block, [0; 60]);
}

#[test]
fn insertion_without_space_for_all_indirect_blocks_changes_nothing() {
    let mut file = File::new();
    file.insert(0..12, 2000);
    for left in 0..3 {
        file.store.creates_left = left;
        let Mapping::Extent(extent) = extent(TRIPLE + 7, 5000, 2) else {
            unreachable!()
        };
        let error = file.edit(|map| map.insert(extent)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
    }
    let Mapping::Extent(taken) = extent(11, 5000, 1) else {
        unreachable!()
    };
    let error = file.edit(|map| map.insert(taken)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    file.compare();
}

#[test]
fn indirect_blocks_that_others_left_without_numbers_go_with_the_range_around_them() {
    let mut file = File::new();
    for logical in [SINGLE, DOUBLE + 5 * PER_BLOCK, TRIPLE] {
        file.put(logical, 900, 1);
        let block = *file.store.blocks.keys().next_back().unwrap();
        file.store.blocks.insert(block, vec![0; 4096]);
        file.data.remove(&logical);
    }
    assert_eq!(file.store.blocks.len(), 6);
    file.remove(0..LOGICAL_END);
    assert!(file.store.blocks.is_empty());
    file.assert_tidy();
}

#[test]
fn entry_outside_the_file_system_stops_a_removal_before_it_changes_anything() {
    let mut file = File::new();
    file.insert(SINGLE..SINGLE + 8, 2000);
    let block = *file.store.blocks.keys().next().unwrap();
    let outside = Some(PhysicalBlock(file.layout.blocks()));
    block_map::set_entry(file.bytes(Some(block)), 3, outside);
    let error = file
        .edit(|map| map.remove_last(0..LOGICAL_END, &mut |_| panic!("nothing is freed")))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

/// A place near one of the edges of levels and leaves.
fn place() -> impl Strategy<Value = u64> {
    let edges = [0, SINGLE, DOUBLE, DOUBLE + PER_BLOCK, TRIPLE, REACH];
    (prop::sample::select(edges.to_vec()), 0..3000_u64)
        .prop_map(|(edge, more)| (edge + more).saturating_sub(1500).min(REACH - 1))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn map_is_a_map_of_blocks(
        steps in prop::collection::vec((place(), 1..2000_u64, 0..3_u8, 200..60_000_u64), 1..12)
    ) {
        assert!(PER_BLOCK <= u64::from(WRITTEN_BLOCKS_MAX));
        let mut file = File::new();
        for (start, blocks, kind, physical) in steps {
            let range = start..(start + blocks).min(REACH);
            match kind {
                0 => file.remove(range),
                _ => file.insert(range, physical),
            }
            file.compare();
            file.assert_tidy();
        }
        file.remove(0..LOGICAL_END);
        prop_assert_eq!(file.i_block, [0; 60]);
        file.assert_tidy();
    }
}

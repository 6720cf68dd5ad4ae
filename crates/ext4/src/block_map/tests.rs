//! Maps built block by block, and read back.

use std::collections::BTreeMap;

use extant_ondisk::ext4::Superblock;

use super::*;
use crate::tree::Judge;

/// Numbers in an indirect block.
const PER_BLOCK: u64 = 1024;
const SINGLE: u64 = 12;
const DOUBLE: u64 = SINGLE + PER_BLOCK;
const TRIPLE: u64 = DOUBLE + PER_BLOCK * PER_BLOCK;
const REACH: u64 = TRIPLE + PER_BLOCK * PER_BLOCK * PER_BLOCK;

/// A file whose indirect blocks lie in memory.
struct File {
    i_block: [u8; 60],
    blocks: BTreeMap<PhysicalBlock, Vec<u8>>,
    layout: Layout,
    data: BTreeMap<u64, u64>,
}

impl Nodes for File {
    fn read(&self, block: PhysicalBlock, judge: Judge<'_>) -> Result<Arc<[u8]>> {
        let bytes = self.blocks.get(&block).ok_or(Error::new(ErrorKind::Io))?;
        judge(bytes)?;
        Ok(bytes.as_slice().into())
    }
}

impl File {
    fn new() -> Self {
        let bytes = include_bytes!("../../../ondisk/tests/data/superblock.bin");
        Self {
            i_block: [0; 60],
            blocks: BTreeMap::new(),
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
            let new = PhysicalBlock(100_000 + self.blocks.len() as u64);
            let found = block_map::entry(self.bytes(block), step, &layout).unwrap();
            if found.is_none() {
                block_map::set_entry(self.bytes(block), step, Some(new));
                self.blocks.insert(new, vec![0; 4096]);
            }
            block = found.or(Some(new));
        }
        block_map::set_entry(self.bytes(block), last, Some(PhysicalBlock(physical)));
    }

    fn bytes(&mut self, block: Option<PhysicalBlock>) -> &mut [u8] {
        match block {
            None => &mut self.i_block,
            Some(block) => self.blocks.get_mut(&block).unwrap(),
        }
    }

    fn map(&self) -> BlockMap<'_, Self> {
        let format = TreeFormat {
            layout: &self.layout,
            seed: None,
            off_limits: None,
        };
        BlockMap::new(&self.i_block, self, format)
    }

    fn find(&self, logical: u64) -> Mapping {
        self.map().find(LogicalBlock(logical as u32)).unwrap()
    }

    /// Walks all of the file; what it says must be what was put.
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
    assert_eq!(file.find(3), Mapping::Hole(3..SINGLE));
    assert_eq!(file.find(SINGLE + 5), Mapping::Hole(SINGLE + 5..DOUBLE));
    assert_eq!(file.find(DOUBLE), Mapping::Hole(DOUBLE..TRIPLE));
    assert_eq!(file.find(REACH + 1), Mapping::Hole(REACH + 1..LOGICAL_END));
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
    assert_eq!(file.find(6), extent(6, 1001, 6));
    assert_eq!(file.find(SINGLE), extent(SINGLE, 1007, 1024));
    assert_eq!(file.find(DOUBLE + 1), extent(DOUBLE + 1, 1007 + 1025, 968));
    assert_eq!(file.find(2005), Mapping::Hole(2005..DOUBLE + PER_BLOCK));
    // Elsewhere on the device is another extent.
    file.put(8, 9000, 2);
    file.compare();
    assert_eq!(file.find(5), extent(5, 1000, 3));
    assert_eq!(file.find(8), extent(8, 9000, 2));
}

#[test]
fn hole_of_a_missing_indirect_block_ends_with_what_it_would_hold() {
    let mut file = File::new();
    let second = DOUBLE + PER_BLOCK;
    file.put(second, 700, 1);
    assert_eq!(file.find(DOUBLE + 9), Mapping::Hole(DOUBLE + 9..second));
    let third = second + PER_BLOCK;
    assert_eq!(
        file.find(third + 7),
        Mapping::Hole(third + 7..third + PER_BLOCK)
    );
    file.put(TRIPLE, 800, 1);
    let next = TRIPLE + PER_BLOCK * PER_BLOCK;
    assert_eq!(
        file.find(next + 3),
        Mapping::Hole(next + 3..next + PER_BLOCK * PER_BLOCK)
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
    let block = *file.blocks.keys().next().unwrap();
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
    file.blocks.pop_last();
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
    file.blocks.insert(itself, bytes);
    assert_eq!(file.find(TRIPLE + 5), extent(TRIPLE + 5, 5000, 1));
}

//! Bitmaps of a disk in memory, as the allocators of the tests read them.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use extant_mballoc::{BitmapSource, Block, Geometry, GroupNumber};
use extant_space::Result;

/// Bitmaps of groups as a file system has them: bits of used blocks are set, those past a group's
/// end too.
///
/// Of the standard library's lock, also under the model checker: no thread blocks with it held.
#[derive(Clone)]
pub struct Disk {
    bitmaps: Arc<Mutex<Vec<Vec<u64>>>>,
}

impl Disk {
    /// A disk with the groups of `geometry`, where the blocks for which `is_used` holds are in use.
    pub fn new(geometry: &Geometry, is_used: impl Fn(Block) -> bool) -> Self {
        let disk = Self {
            bitmaps: Arc::default(),
        };
        disk.format(0..geometry.groups(), geometry, is_used);
        disk
    }

    /// Makes `groups` again, as before the allocator grows to them. Others stay, also a last one
    /// that gets longer: the allocator knows the added blocks.
    pub fn format(&self, groups: Range<u32>, geometry: &Geometry, is_used: impl Fn(Block) -> bool) {
        let mut bitmaps = self.bitmaps.lock().unwrap();
        bitmaps.truncate(groups.start as usize);
        for group in groups.map(GroupNumber) {
            let start = geometry.start_of(group).0;
            let free =
                (0..geometry.length_of(group)).filter(|at| !is_used(Block(start + u64::from(*at))));
            let mut words = vec![u64::MAX; (geometry.blocks_per_group as usize).div_ceil(64)];
            free.for_each(|at| words[at as usize / 64] &= !(1 << (at % 64)));
            bitmaps.push(words);
        }
    }
}

impl BitmapSource for Disk {
    fn free_blocks(&self, group: GroupNumber) -> u32 {
        let words = &self.bitmaps.lock().unwrap()[group.0 as usize];
        words.iter().map(|word| word.count_zeros()).sum()
    }

    fn load(&self, group: GroupNumber, used: &mut [u64]) -> Result<()> {
        used.copy_from_slice(&self.bitmaps.lock().unwrap()[group.0 as usize]);
        Ok(())
    }
}

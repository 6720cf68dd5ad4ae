//! The bitmaps for the allocator.

use std::sync::{Arc, Mutex};

use extant_mballoc::{BitmapSource, GroupNumber};
use extant_ondisk::ext4::GroupNumber as DiskGroup;
use extant_space::Result;

use super::Groups;
use crate::sync::lock;

/// The allocator's source of bitmaps.
pub(crate) struct Source {
    groups: Arc<Groups>,
    /// Free blocks of every group as read at the start, until the allocator is open: asked for one
    /// by one, the descriptors of a large file system would take long.
    at_start: Arc<Mutex<Vec<u32>>>,
}

impl Source {
    pub(crate) fn new(groups: Arc<Groups>, at_start: Arc<Mutex<Vec<u32>>>) -> Self {
        Self { groups, at_start }
    }
}

impl BitmapSource for Source {
    fn free_blocks(&self, group: GroupNumber) -> u32 {
        lock(&self.at_start)
            .get(group.0 as usize)
            .copied()
            .unwrap_or_default()
    }

    fn load(&self, group: GroupNumber, used: &mut [u64]) -> Result<()> {
        let mut group = self.groups.group_with_blocks(DiskGroup(group.0))?;
        group.handed_over = true;
        let bitmap = group.block_bitmap.as_ref().expect("just read");
        let (words, _) = bitmap.bytes().as_chunks::<8>();
        for (word, bytes) in used.iter_mut().zip(words) {
            *word = u64::from_le_bytes(*bytes);
        }
        Ok(())
    }
}

impl Groups {
    /// Whether the allocator has read the bitmap of a group: from then on it follows changes by
    /// itself.
    pub(crate) fn is_handed_over(&self, number: DiskGroup) -> Result<bool> {
        Ok(self.group(number)?.handed_over)
    }
}

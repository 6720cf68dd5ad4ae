//! The log as a layer above the device, for readers of a file system that must not be changed.

use std::collections::HashMap;

use extant_ondisk::ext4::PhysicalBlock;
use extant_ondisk::jbd2::{Escaped, unescape};
use extant_space::Result;

use super::Copy;
use crate::disk::Disk;

/// The log's copies of file system blocks. Holds their locations, and reads them on demand.
pub struct Overlay {
    disk: Disk,
    copies: HashMap<PhysicalBlock, (u32, Escaped)>,
}

impl Overlay {
    pub(super) fn new(disk: Disk, copies: &[Copy]) -> Self {
        let copies = copies
            .iter()
            .map(|copy| (copy.tag.block, (copy.log_block, copy.tag.escaped)));
        Self {
            disk,
            copies: copies.collect(),
        }
    }

    /// Fills `into`, a whole block, with the log's copy of `block`. `false` when it has nothing:
    /// then the block in place is current.
    ///
    /// # Errors
    /// Those of the device.
    pub fn read(&self, block: PhysicalBlock, into: &mut [u8]) -> Result<bool> {
        let Some(&(log_block, escaped)) = self.copies.get(&block) else {
            return Ok(false);
        };
        self.disk.read(log_block, 1, into)?;
        unescape(into, escaped);
        Ok(true)
    }

    /// Whether the log has anything of `block`.
    pub fn contains(&self, block: PhysicalBlock) -> bool {
        self.copies.contains_key(&block)
    }

    /// The blocks that the log has something of, in no order.
    pub fn blocks(&self) -> impl ExactSizeIterator<Item = PhysicalBlock> + '_ {
        self.copies.keys().copied()
    }
}

//! The blocks of the journal that are reserved for fast commits.

use std::ops::Range;

use extant_space::Result;

use crate::disk::Disk;

/// The blocks for fast commits, read one by one. Ends after an error.
pub struct FastCommitBlocks<'r> {
    disk: &'r Disk,
    blocks: Range<u32>,
}

impl<'r> FastCommitBlocks<'r> {
    pub(crate) fn new(disk: &'r Disk, blocks: Range<u32>) -> Self {
        Self { disk, blocks }
    }
}

impl Iterator for FastCommitBlocks<'_> {
    type Item = Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        let block = self.blocks.next()?;
        let mut contents = vec![0; self.disk.block_bytes()];
        let read = self.disk.read(block, 1, &mut contents);
        if read.is_err() {
            self.blocks = 0..0;
        }
        Some(read.map(|()| contents))
    }
}

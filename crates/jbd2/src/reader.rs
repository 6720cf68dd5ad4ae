//! Reads the log in order, with read-ahead.

use extant_space::Result;

use crate::disk::Disk;
use crate::ring::Ring;

/// Bytes that are read at a time.
const WINDOW_BYTES: usize = 256 << 10;

/// Blocks of the log, one at a time.
pub(crate) struct LogReader<'d> {
    disk: &'d Disk,
    ring: Ring,
    window: Vec<u8>,
    /// The blocks that the window holds.
    first: u32,
    count: u32,
}

impl<'d> LogReader<'d> {
    pub(crate) fn new(disk: &'d Disk, ring: Ring) -> Self {
        Self {
            disk,
            ring,
            window: Vec::new(),
            first: ring.first(),
            count: 0,
        }
    }

    /// The contents of a block of the ring.
    pub(crate) fn block(&mut self, block: u32) -> Result<&[u8]> {
        let bytes = self.disk.block_bytes();
        if block.wrapping_sub(self.first) >= self.count {
            let most = (WINDOW_BYTES / bytes) as u32;
            let [part, _] = self.ring.parts(block, most.min(self.ring.blocks()));
            self.count = 0;
            self.window.resize(part.len() * bytes, 0);
            self.disk
                .read(part.start, part.len() as u32, &mut self.window)?;
            self.first = part.start;
            self.count = part.len() as u32;
        }
        let at = (block - self.first) as usize * bytes;
        Ok(&self.window[at..at + bytes])
    }
}

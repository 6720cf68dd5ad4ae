//! A device read and written by bytes.
//!
//! Model: requests in whole blocks go to the device as they are. A part of a block is written by a
//! read of the block, a change and a write.
//!
//! Invariant: no other write is in flight while a part of a block is written, or it could restore
//! what that write has replaced. Lock: `partial` is shared by writes of whole blocks, and exclusive
//! for parts of blocks.

use std::sync::Arc;

use extant_blockdev::{Device, Persistence, Zeroing};
use extant_space::{ByteRange, Result};
use parking_lot::{RwLock, RwLockWriteGuard};

/// Byte access to a device. Callers keep to its size.
pub(crate) struct ByteDevice {
    device: Arc<dyn Device>,
    block: u64,
    partial: RwLock<()>,
}

impl ByteDevice {
    pub fn new(device: Arc<dyn Device>) -> Self {
        Self {
            block: device.geometry().logical_block.into(),
            device,
            partial: RwLock::new(()),
        }
    }

    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Bytes of the device, now.
    pub fn size(&self) -> u64 {
        self.device.geometry().size
    }

    /// The whole blocks that hold `range`.
    pub fn blocks_of(&self, range: ByteRange) -> ByteRange {
        ByteRange::new(
            range.start() & !(self.block - 1),
            range.end().next_multiple_of(self.block),
        )
    }

    /// Excludes all writes until it is dropped.
    pub fn exclusive(&self) -> RwLockWriteGuard<'_, ()> {
        self.partial.write()
    }

    fn is_whole(&self, range: ByteRange) -> bool {
        self.blocks_of(range) == range
    }

    /// Fills `into` from `offset`.
    pub fn read(&self, into: &mut [u8], offset: u64) -> Result<()> {
        let range = ByteRange::new(offset, offset + into.len() as u64);
        if self.is_whole(range) {
            return self.device.read_at(into, offset);
        }
        let outer = self.blocks_of(range);
        let mut blocks = vec![0; outer.len() as usize];
        self.device.read_at(&mut blocks, outer.start())?;
        into.copy_from_slice(&blocks[(offset - outer.start()) as usize..][..into.len()]);
        Ok(())
    }

    /// Writes `from` at `offset`.
    pub fn write(&self, from: &[u8], offset: u64, persistence: Persistence) -> Result<()> {
        let range = ByteRange::new(offset, offset + from.len() as u64);
        if self.is_whole(range) {
            let _shared = self.partial.read();
            return self.device.write_at(from, offset, persistence);
        }
        let _exclusive = self.exclusive();
        self.write_parts(from, offset, persistence)
    }

    /// The same; the caller excludes other writes.
    fn write_parts(&self, from: &[u8], offset: u64, persistence: Persistence) -> Result<()> {
        let outer = self.blocks_of(ByteRange::new(offset, offset + from.len() as u64));
        let mut blocks = vec![0; outer.len() as usize];
        let block = self.block as usize;
        self.device.read_at(&mut blocks[..block], outer.start())?;
        if blocks.len() > block {
            let last = blocks.len() - block;
            self.device
                .read_at(&mut blocks[last..], outer.end() - self.block)?;
        }
        blocks[(offset - outer.start()) as usize..][..from.len()].copy_from_slice(from);
        self.device.write_at(&blocks, outer.start(), persistence)
    }

    /// Makes `range` read as zeros: its whole blocks by `zeroing`, the rest by zeros as data.
    pub fn zero(&self, range: ByteRange, zeroing: Zeroing) -> Result<()> {
        let inner = range.shrink_to_blocks(self.block);
        if inner == range {
            let _shared = self.partial.read();
            return self.device.write_zeroes(range, zeroing);
        }
        let _exclusive = self.exclusive();
        let (head, tail) = if inner.is_empty() {
            (range, ByteRange::new(range.end(), range.end()))
        } else {
            self.device.write_zeroes(inner, zeroing)?;
            (
                ByteRange::new(range.start(), inner.start()),
                ByteRange::new(inner.end(), range.end()),
            )
        };
        for part in [head, tail].into_iter().filter(|part| !part.is_empty()) {
            let zeros = vec![0; part.len() as usize];
            self.write_parts(&zeros, part.start(), zeroing.persistence)?;
        }
        Ok(())
    }
}

//! The store of an image as a file: for work before the image is a device, and for changes of an
//! image on a disk.

use std::ops::ControlFlow;
use std::sync::Arc;

use extant_blockdev::{Device, Operation, Persistence, Speed, Zeroing};
use extant_space::{
    ByteRange, Error, ErrorKind, Extent, FallocateMode, Result, SpaceFile, SyncMode,
};

use super::Store;

/// A store that reads and writes whole blocks.
pub(crate) struct StoreFile(pub(crate) Arc<dyn Store>);

impl StoreFile {
    /// The blocks that `bytes` from `offset` touch, within the device.
    fn blocks(&self, offset: u64, bytes: usize) -> ByteRange {
        let geometry = self.0.geometry();
        let block = u64::from(geometry.logical_block);
        let end = (offset + bytes as u64)
            .next_multiple_of(block)
            .min(geometry.size / block * block);
        let start = offset / block * block;
        ByteRange::new(start.min(end), end)
    }
}

impl SpaceFile for StoreFile {
    fn size(&self) -> Result<u64> {
        self.0.file_bytes()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let blocks = self.blocks(offset, buffer.len());
        if blocks.end() <= offset {
            return Ok(0);
        }
        let mut there = vec![0; blocks.len() as usize];
        self.0.read_at(&mut there, blocks.start())?;
        let there = &there[(offset - blocks.start()) as usize..];
        let count = there.len().min(buffer.len());
        buffer[..count].copy_from_slice(&there[..count]);
        Ok(count)
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()> {
        let blocks = self.blocks(offset, buffer.len());
        let end = offset + buffer.len() as u64;
        if blocks.end() < end {
            return Err(Error::new(ErrorKind::InvalidArgument)
                .detail(format!("{end:#x} is past the end of the file")));
        }
        let mut there = vec![0; blocks.len() as usize];
        if ByteRange::new(offset, end) != blocks {
            self.0.read_at(&mut there, blocks.start())?;
        }
        there[(offset - blocks.start()) as usize..][..buffer.len()].copy_from_slice(buffer);
        self.0.write_at(&there, blocks.start(), Persistence::Cached)
    }

    fn resize(&self, size_bytes: u64) -> Result<()> {
        self.0.resize(size_bytes)
    }

    /// Zeroes whole blocks, in both modes; partial blocks at the edges are written.
    fn fallocate(&self, mode: FallocateMode, range: ByteRange) -> Result<()> {
        let zeroing = match mode {
            FallocateMode::PunchHole => Zeroing {
                speed: Speed::OnlyIfFast,
                ..Zeroing::ANY
            },
            FallocateMode::ZeroRangeKeepSize => Zeroing::ALLOCATED,
            _ => return Err(Error::new(ErrorKind::Unsupported)),
        };
        let whole = range.shrink_to_blocks(self.0.geometry().logical_block.into());
        if !whole.is_empty() {
            self.0.write_zeroes(whole, zeroing)?;
        }
        for edge in [
            ByteRange::new(range.start(), whole.start()),
            ByteRange::new(whole.end(), range.end()),
        ] {
            if !edge.is_empty() {
                self.write_at(&vec![0; edge.len() as usize], edge.start())?;
            }
        }
        Ok(())
    }

    fn for_each_extent(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        let inside = ByteRange::new(0, self.0.geometry().size);
        match range.intersection(inside) {
            Some(range) => self.0.extents(range, visit),
            None => Ok(()),
        }
    }

    fn sync(&self, _: SyncMode) -> Result<()> {
        self.0.run(Operation::Flush)
    }
}

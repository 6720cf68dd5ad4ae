//! A file in a device as the offline changes of images see it.

use std::ops::ControlFlow;
use std::sync::Arc;

use extant_blockdev::{Device, Persistence, Zeroing};
use extant_image::device::Store;
use extant_space::{
    ByteRange, Error, ErrorKind, Extent, ExtentFlags, ExtentState, FallocateMode, Result,
    SpaceFile, SyncMode,
};

use super::super::{File, SECTOR};

/// Reads and writes of any bytes, over sectors.
pub struct Cuttable<D>(pub Arc<File<D>>);

impl<D: Device> Cuttable<D> {
    /// The sectors that hold `range`.
    fn sectors(&self, offset: u64, length: usize) -> Result<(u64, Vec<u8>)> {
        let start = offset - offset % SECTOR;
        let end = (offset + length as u64).next_multiple_of(SECTOR);
        let mut bytes = vec![0; (end - start) as usize];
        self.0.device.read_at(&mut bytes, start)?;
        Ok((start, bytes))
    }
}

impl<D: Device + 'static> SpaceFile for Cuttable<D> {
    fn size(&self) -> Result<u64> {
        self.0.file_bytes()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let length = self.size()?.saturating_sub(offset).min(buffer.len() as u64) as usize;
        let (start, bytes) = self.sectors(offset, length)?;
        buffer[..length].copy_from_slice(&bytes[(offset - start) as usize..][..length]);
        Ok(length)
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()> {
        let end = offset + buffer.len() as u64;
        if end > self.size()? {
            self.0.resize(end)?;
        }
        let (start, mut bytes) = self.sectors(offset, buffer.len())?;
        bytes[(offset - start) as usize..][..buffer.len()].copy_from_slice(buffer);
        self.0.device.write_at(&bytes, start, Persistence::Cached)
    }

    fn resize(&self, size_bytes: u64) -> Result<()> {
        self.0.resize(size_bytes)
    }

    fn fallocate(&self, mode: FallocateMode, range: ByteRange) -> Result<()> {
        let is_aligned = [range.start(), range.end()]
            .iter()
            .all(|end| end.is_multiple_of(SECTOR));
        match mode {
            FallocateMode::AllocateKeepSize => Ok(()),
            FallocateMode::PunchHole if is_aligned => {
                self.0.device.write_zeroes(range, Zeroing::ANY)
            }
            _ => Err(Error::new(ErrorKind::Unsupported)),
        }
    }

    fn for_each_extent(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        let _ = visit(Extent {
            logical: range,
            physical: None,
            state: ExtentState::Written,
            flags: ExtentFlags::empty(),
        });
        Ok(())
    }

    fn sync(&self, _: SyncMode) -> Result<()> {
        self.0.device.flush()
    }
}

//! The file of an image, in memory.
//!
//! A file in a larger device, so that the device reports requests outside of it as errors. It is a
//! [`Store`] for the image as a disk, and a [`SpaceFile`] for operations on the whole image.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_blockdev::{
    Device, Geometry, MemoryDevice, MemoryOptions, Persistence, RangeStatus, Request, Zeroing,
};
use extant_image::device::Store;
use extant_space::{
    ByteRange, Error, ErrorKind, Extent, FallocateMode, Result, SpaceFile, SyncMode,
};

/// A file that grows up to the size of its device.
#[derive(Debug)]
pub(crate) struct MemoryFile {
    device: MemoryDevice,
    bytes: AtomicU64,
}

impl MemoryFile {
    /// An empty file that can have `bytes_max`.
    pub(crate) fn new(bytes_max: u64) -> Arc<Self> {
        let options = MemoryOptions {
            logical_block: 1,
            ..MemoryOptions::new(bytes_max)
        };
        Arc::new(Self {
            device: MemoryDevice::with_options(options),
            bytes: AtomicU64::new(0),
        })
    }

    /// Overwrites bytes inside the file.
    pub(crate) fn put(&self, offset: u64, bytes: &[u8]) {
        let written = self.device.write_at(bytes, offset, Persistence::Cached);
        written.expect("inside the file");
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn set_bytes(&self, bytes: u64) -> Result<()> {
        if bytes > self.device.geometry().size {
            return Err(Error::new(ErrorKind::NoSpace));
        }
        let old = self.bytes.swap(bytes, Ordering::Relaxed);
        if bytes < old {
            let cut = ByteRange::new(bytes, old);
            self.device.write_zeroes(cut, Zeroing::ANY)?;
        }
        Ok(())
    }
}

impl Device for MemoryFile {
    fn geometry(&self) -> Geometry {
        Geometry {
            size: self.bytes(),
            ..self.device.geometry()
        }
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        self.device.submit(requests);
    }

    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()> {
        self.device.status(range, visit)
    }
}

impl Store for MemoryFile {
    fn file_bytes(&self) -> Result<u64> {
        Ok(self.bytes())
    }

    fn resize(&self, bytes: u64) -> Result<()> {
        self.set_bytes(bytes)
    }
}

impl SpaceFile for MemoryFile {
    fn size(&self) -> Result<u64> {
        Ok(self.bytes())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let there = self.bytes().saturating_sub(offset);
        let length = there.min(buffer.len() as u64) as usize;
        Device::read_at(&self.device, &mut buffer[..length], offset)?;
        Ok(length)
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()> {
        let end = offset.checked_add(buffer.len() as u64);
        let end = end.ok_or_else(|| Error::new(ErrorKind::TooLarge))?;
        if end > self.bytes() {
            self.set_bytes(end)?;
        }
        Device::write_at(&self.device, buffer, offset, Persistence::Cached)
    }

    fn resize(&self, bytes: u64) -> Result<()> {
        self.set_bytes(bytes)
    }

    fn fallocate(&self, mode: FallocateMode, range: ByteRange) -> Result<()> {
        match mode {
            FallocateMode::Allocate | FallocateMode::AllocateKeepSize => {
                if mode == FallocateMode::Allocate && range.end() > self.bytes() {
                    self.set_bytes(range.end())?;
                }
                self.device.assign(range).map(drop)
            }
            FallocateMode::PunchHole => {
                let range = range.intersection(ByteRange::new(0, self.bytes()));
                range.map_or(Ok(()), |range| {
                    self.device.write_zeroes(range, Zeroing::ANY)
                })
            }
            _ => Err(Error::new(ErrorKind::Unsupported)),
        }
    }

    fn for_each_extent(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        self.device.extents(range, visit)
    }

    fn sync(&self, _: SyncMode) -> Result<()> {
        Ok(())
    }
}

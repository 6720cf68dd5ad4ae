//! The map of the guest's disk in a qcow2 image: guest offsets, and locations on the host's device.
//!
//! The image maps a cluster to its file, the map of the file to the device. Clusters in another
//! file (backing file, data file) have no location here.

use std::ops::ControlFlow;
use std::sync::Arc;

use extant_image::{Format, ImageExtent, Layer};
use extant_space::{
    ByteRange, Error, ErrorKind, Extent, ExtentFlags, FallocateMode, Result, SpaceFile, SyncMode,
};

/// The disk as a read-only file.
pub(super) struct Disk {
    layer: Layer,
    file: Arc<dyn SpaceFile>,
    has_data_file: bool,
}

impl Disk {
    /// Of the qcow2 image in `file`.
    ///
    /// # Errors
    /// Those of [`Layer::open`].
    pub(super) fn open(file: Arc<dyn SpaceFile>) -> Result<Self> {
        let layer = Layer::open(Arc::clone(&file), Format::Qcow2)?;
        let has_data_file = layer.header().is_some_and(|header| header.has_data_file());
        Ok(Self {
            layer,
            file,
            has_data_file,
        })
    }

    /// Splits the extents of the image by the file's extents on the device.
    fn place(
        &self,
        found: &ImageExtent,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let whole = Extent {
            logical: found.guest,
            physical: None,
            state: found.state,
            flags: found.flags,
        };
        let in_file = found
            .offset
            .and_then(|offset| ByteRange::at(offset, found.guest.len()))
            .filter(|_| !self.has_data_file);
        let Some(in_file) = in_file else {
            return Ok(visit(whole));
        };
        let mut at = in_file.start();
        let mut flow = ControlFlow::Continue(());
        let mut show = |from: u64, to: u64, physical: Option<u64>, flags: ExtentFlags| {
            let start = found.guest.start() + (from - in_file.start());
            visit(Extent {
                logical: ByteRange::new(start, start + (to - from)),
                physical,
                flags: whole.flags | flags,
                ..whole
            })
        };
        self.file.for_each_extent(in_file, &mut |extent| {
            let Some(extent) = extent.clip(in_file) else {
                return ControlFlow::Continue(());
            };
            let (start, end) = (extent.logical.start(), extent.logical.end());
            if at < start {
                flow = show(at, start, None, ExtentFlags::empty());
            }
            if flow.is_continue() {
                flow = show(start, end, extent.physical, extent.flags);
            }
            at = end;
            flow
        })?;
        if flow.is_continue() && at < in_file.end() {
            flow = show(at, in_file.end(), None, ExtentFlags::empty());
        }
        Ok(flow)
    }
}

fn refused() -> Error {
    Error::new(ErrorKind::ReadOnly)
}

impl SpaceFile for Disk {
    fn size(&self) -> Result<u64> {
        Ok(self.layer.virtual_bytes())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let there = self.layer.virtual_bytes().saturating_sub(offset);
        let length = there.min(buffer.len() as u64) as usize;
        self.layer.read_at(&mut buffer[..length], offset)?;
        Ok(length)
    }

    fn write_at(&self, _: &[u8], _: u64) -> Result<()> {
        Err(refused())
    }

    fn resize(&self, _: u64) -> Result<()> {
        Err(refused())
    }

    fn fallocate(&self, _: FallocateMode, _: ByteRange) -> Result<()> {
        Err(refused())
    }

    fn for_each_extent(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        self.layer
            .for_each_extent(range, &mut |found| self.place(&found, visit))
    }

    fn sync(&self, _: SyncMode) -> Result<()> {
        Ok(())
    }
}

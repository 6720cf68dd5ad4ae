//! The map of the guest's disk in a qcow2 image: guest offsets, and locations on the host's device.
//!
//! The image maps a cluster to its file, the map of the file to the device. Clusters in another
//! file (backing file, data file) have no location here. Of the layers below, the file of the image
//! is the first.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use extant_image::{Format, ImageExtent, Layer};
use extant_space::{
    ByteRange, Error, ErrorKind, Extent, ExtentFlags, FallocateMode, LayerRange, LayerVisitor,
    Result, SpaceFile, SyncMode,
};

/// The disk as a read-only file.
pub(super) struct Disk {
    layer: Layer,
    file: Arc<dyn SpaceFile>,
    /// Path of the file.
    name: String,
    has_data_file: bool,
}

impl Disk {
    /// Of the qcow2 image in `file`, which has the path `path`.
    ///
    /// # Errors
    /// Those of [`Layer::open`].
    pub(super) fn open(file: Arc<dyn SpaceFile>, path: &Path) -> Result<Self> {
        let layer = Layer::open(Arc::clone(&file), Format::Qcow2)?;
        let has_data_file = layer.header().is_some_and(|header| header.has_data_file());
        Ok(Self {
            layer,
            file,
            name: path.to_string_lossy().into_owned(),
            has_data_file,
        })
    }

    /// The bytes of the image's file that store those of the disk.
    fn in_file(&self, found: &ImageExtent) -> Option<ByteRange> {
        let offset = found.offset.filter(|_| !self.has_data_file)?;
        ByteRange::at(offset, found.guest.len())
    }

    /// Visits the extents of the file that store `at`, and those of the layers below it.
    fn layers_of_file(
        &self,
        at: LayerRange,
        visit: &mut LayerVisitor<'_>,
    ) -> Result<ControlFlow<()>> {
        for extent in self.file.extents(at.range)? {
            let Some(extent) = extent.clip(at.range) else {
                continue;
            };
            let found = at.extent(&self.name, extent);
            let below = LayerRange {
                depth: at.depth + 1,
                top_start: found.top_start,
                range: extent.logical,
            };
            if visit(&found).is_break() || self.file.visit_layers(below, visit)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
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
        let Some(in_file) = self.in_file(found) else {
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

    fn visit_layers(
        &self,
        at: LayerRange,
        visit: &mut LayerVisitor<'_>,
    ) -> Result<ControlFlow<()>> {
        let mut flow = ControlFlow::Continue(());
        let mut failed = Ok(());
        self.layer.for_each_extent(at.range, &mut |found| {
            // Bytes that are compressed have no places of their own.
            let is_plain = !found.flags.contains(ExtentFlags::ENCODED);
            let range = self.in_file(&found).filter(|_| is_plain);
            if let Some(range) = range {
                let top_start = at.top_start + (found.guest.start() - at.range.start());
                let depth = at.depth;
                let at = LayerRange {
                    depth,
                    top_start,
                    range,
                };
                match self.layers_of_file(at, visit) {
                    Ok(found) => flow = found,
                    Err(error) => {
                        failed = Err(error);
                        flow = ControlFlow::Break(());
                    }
                }
            }
            Ok(flow)
        })?;
        failed.map(|()| flow)
    }

    fn sync(&self, _: SyncMode) -> Result<()> {
        Ok(())
    }
}

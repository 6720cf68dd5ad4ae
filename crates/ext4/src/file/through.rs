//! The layers below a file: their maps, and written space that is written in them too.

use std::ops::ControlFlow;
use std::sync::Arc;

use extant_blockdev::{Device, Zeroing};
use extant_space::{ByteRange, Extent, ExtentState, LayerRange, LayerVisitor, Result};

use crate::engine::Engine;
use crate::inode_cell::InodeCell;
use crate::options::DeviceZeroes;
use crate::state::FsState;
use crate::sync::write;

impl FsState {
    /// Visits the extents of the device that store `at`, and those of the layers below it.
    pub(crate) fn visit_layers(
        &self,
        cell: &InodeCell,
        at: LayerRange,
        visit: &mut LayerVisitor<'_>,
    ) -> Result<ControlFlow<()>> {
        let mut extents = Vec::new();
        self.for_each_extent(cell, at.range, &mut |extent| {
            extents.push(extent);
            ControlFlow::Continue(())
        })?;
        for extent in extents {
            if let Some(place) = place_on_device(at, &extent)
                && self.device.visit_layers(place, visit)?.is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// The parts of the device that store written blocks of `range`, and that are a hole or
    /// unwritten in some layer: they read as zeros. In whole logical blocks of the device.
    fn not_written_below(&self, cell: &InodeCell, range: ByteRange) -> Result<Vec<ByteRange>> {
        let mut written = Vec::new();
        self.for_each_extent_locked(cell, range, &mut |extent| {
            if let (ExtentState::Written, Some(place)) = (extent.state, extent.physical) {
                written.push(ByteRange::new(place, place + extent.logical.len()));
            }
            ControlFlow::Continue(())
        })?;
        let block = u64::from(self.device.geometry().logical_block);
        let mut missing: Vec<ByteRange> = Vec::new();
        for place in written {
            let at = LayerRange {
                depth: 1,
                top_start: place.start(),
                range: place,
            };
            let _ = self.device.visit_layers(at, &mut |found| {
                if found.extent.state != ExtentState::Written {
                    missing.push(found.top().shrink_to_blocks(block));
                }
                ControlFlow::Continue(())
            })?;
        }
        Ok(ByteRange::joined(missing))
    }
}

impl Engine {
    /// Makes written blocks of `range` written in the layers below too; data is kept. Returns the
    /// bytes zeroed for that.
    pub(crate) fn write_through(&self, cell: &Arc<InodeCell>, range: ByteRange) -> Result<u64> {
        self.changeable()?;
        let fs = &*self.fs;
        if fs.options.zeroes != DeviceZeroes::Written {
            return Ok(0);
        }
        // No block of the file is written, moved or freed between the look and the zeros.
        let _alone = write(&cell.operation);
        let bits = fs.layout.block_bits();
        let first = u64::from(fs.block_of(range.start()).0);
        let blocks = ByteRange::new(first << bits, fs.block_after(range.end()) << bits);
        let missing = fs.not_written_below(cell, blocks)?;
        for part in &missing {
            fs.write_zeroes(cell, *part, Zeroing::WRITTEN)?;
        }
        Ok(missing.into_iter().map(ByteRange::len).sum())
    }
}

/// The bytes of the device that store `extent`, which is a part of `at` in the file.
fn place_on_device(at: LayerRange, extent: &Extent) -> Option<LayerRange> {
    let below = at.below(extent)?;
    Some(LayerRange {
        depth: at.depth,
        ..below
    })
}

//! The extent map of a file, in the types of `extant-space`.

use std::ops::ControlFlow;

use extant_ondisk::ext4::extent::{ExtentKind, LOGICAL_END};
use extant_space::{ByteRange, Extent, ExtentFlags, ExtentState, Result};

use crate::inode_cell::InodeCell;
use crate::mapping;
use crate::state::FsState;
use crate::sync::read;
use crate::tree::Mapping;

impl FsState {
    /// Visits the extents of `range` in order, holes included, until `visit` breaks; holes past the
    /// end of the file are left out.
    pub(crate) fn for_each_extent(
        &self,
        cell: &InodeCell,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        let _shared = read(&cell.operation);
        self.for_each_extent_locked(cell, range, visit)
    }

    /// [`for_each_extent`](Self::for_each_extent), under the operation lock of the caller.
    pub(crate) fn for_each_extent_locked(
        &self,
        cell: &InodeCell,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        let state = read(&cell.state);
        state.check_data()?;
        let bits = self.layout.block_bits();
        let size = state.inode.size_bytes(&self.layout);
        let blocks = range.start() >> bits..self.block_after(range.end()).min(LOGICAL_END);
        let _ = mapping::walk(
            &state.inode,
            &self.cache,
            self.tree_format(&state),
            blocks,
            |part| {
                let logical = part.logical();
                let logical = ByteRange::new(logical.start << bits, logical.end << bits);
                let extent = match part {
                    Mapping::Hole(_) => Extent {
                        logical,
                        physical: None,
                        state: ExtentState::Hole,
                        flags: ExtentFlags::empty(),
                    },
                    Mapping::Extent(found) => Extent {
                        logical,
                        physical: Some(found.physical.0 << bits),
                        state: match found.kind {
                            ExtentKind::Written => ExtentState::Written,
                            ExtentKind::Unwritten => ExtentState::Unwritten,
                        },
                        flags: ExtentFlags::empty(),
                    },
                };
                let shown = match extent.state {
                    ExtentState::Hole => {
                        ByteRange::new(range.start(), range.end().min(size).max(range.start()))
                    }
                    _ => range,
                };
                match extent.clip(shown) {
                    Some(extent) => visit(extent),
                    None => ControlFlow::Continue(()),
                }
            },
        )?;
        Ok(())
    }
}

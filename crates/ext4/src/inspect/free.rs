//! Free space, run by run.

use std::ops::{ControlFlow, Range};

use extant_ondisk::ext4::GroupNumber;
use extant_space::Result;

use crate::filesystem::Filesystem;

impl Filesystem {
    /// Visits the runs of free blocks in order, until `visit` breaks. A run continues across groups
    /// if nothing separates them.
    ///
    /// # Errors
    /// `Corrupt` naming the bitmap; errors of the device.
    pub fn for_each_free_run(
        &self,
        visit: &mut dyn FnMut(Range<u64>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.sync()?;
        self.engine.record_corruption(self.free_runs(visit))
    }

    fn free_runs(&self, visit: &mut dyn FnMut(Range<u64>) -> ControlFlow<()>) -> Result<()> {
        let fs = &self.engine.fs;
        let layout = &fs.layout;
        let mut open: Option<Range<u64>> = None;
        for group in (0..layout.groups()).map(GroupNumber) {
            let bitmap = fs.groups.block_bitmap_now(group)?;
            let (first, blocks) = (layout.first_block(group).0, layout.blocks_in(group));
            let mut at = 0;
            while let Some(start) = bitmap.first_unset(at..blocks) {
                let end = bitmap.first_set(start..blocks).unwrap_or(blocks);
                let found = first + u64::from(start)..first + u64::from(end);
                at = end;
                open = match open {
                    Some(run) if run.end == found.start => Some(run.start..found.end),
                    Some(run) => {
                        if visit(run).is_break() {
                            return Ok(());
                        }
                        Some(found)
                    }
                    None => Some(found),
                };
            }
        }
        if let Some(run) = open {
            let _ = visit(run);
        }
        Ok(())
    }
}

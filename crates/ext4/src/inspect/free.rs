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
            let (first, clusters) = (layout.first_block(group).0, layout.clusters_in(group));
            let group_end = first + u64::from(layout.blocks_in(group));
            // The last cluster of a group may be a part of one.
            let block = |cluster: u32| {
                let blocks = u64::from(cluster) * u64::from(layout.blocks_per_cluster());
                group_end.min(first + blocks)
            };
            let mut at = 0;
            while let Some(start) = bitmap.first_unset(at..clusters) {
                let end = bitmap.first_set(start..clusters).unwrap_or(clusters);
                let found = block(start)..block(end);
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

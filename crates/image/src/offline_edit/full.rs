//! Size of the file with the whole disk mapped.

use std::sync::Arc;

use extant_space::{ByteRange, Result};

use super::OfflineEdit;
use crate::format::Incompatible;
use crate::image_file::ImageFile;
use crate::qcow2::Qcow2;

impl<'a> OfflineEdit<'a> {
    /// An image opened for reading only: necessary repairs are not done.
    pub(crate) fn looking(file: &'a ImageFile) -> Result<Self> {
        let image = Qcow2::open(Arc::clone(file.file()))?;
        Ok(Self::of(file, image))
    }

    /// Size of the file when [`truncate_tail`](Self::truncate_tail) has cut off its unused end and
    /// [`map_range`](Self::map_range) has mapped all of the disk. For a dirty image it is the upper
    /// bound.
    pub(crate) fn full_bytes(&self) -> Result<u64> {
        let file_bytes = self.file().size()?;
        let all = ByteRange::new(0, self.image.header.virtual_bytes);
        let clusters = if self.has_data_file() {
            0
        } else {
            self.new_places(all)?
        };
        let tables = self.tables_to_make(all);
        let is_dirty = self.image.header.incompatible.contains(Incompatible::DIRTY);
        let table = self.refcount_table()?;
        // The file is cut off behind the last counted cluster; a dirty image does not count all.
        let start = if is_dirty {
            self.end_cluster(&table)?
        } else {
            self.counted_end(&table)?
        };
        let kept_bytes = if self.file.is_disk() {
            file_bytes
        } else {
            file_bytes.min(start << self.geometry().cluster_bits())
        };
        let full_bytes = match clusters + tables {
            0 => kept_bytes,
            _ => self.end_bytes(&self.plan_behind(start, &table, tables, clusters)?),
        };
        let repair_bytes = if is_dirty {
            self.recount_bytes_max(file_bytes)
        } else {
            0
        };
        Ok(full_bytes.max(kept_bytes) + repair_bytes)
    }

    /// Maximum growth of the file by [`rebuild_refcounts`](crate::rebuild_refcounts): blocks, and a
    /// table.
    fn recount_bytes_max(&self, file_bytes: u64) -> u64 {
        let geometry = self.geometry();
        let blocks = geometry.clusters(file_bytes) / geometry.refcount_block_entries() + 2;
        let table = geometry.clusters((blocks + 1) * 8);
        (blocks + table) << geometry.cluster_bits()
    }
}

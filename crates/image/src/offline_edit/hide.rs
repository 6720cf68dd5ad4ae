//! Hides the data of a backing file past the end of a disk that grows.
//!
//! An unallocated cluster shows the backing file. If that is longer than the disk was, the new part
//! would show data that the disk never had. Zero clusters are mapped there before the header gets
//! the new size: a crash leaves the old disk, and table entries past its end that the next growth
//! clears. Version 2 has no zero clusters; allocated clusters of zeros are used instead.
//!
//! The length of the backing file is known only if it may be opened. Otherwise the whole new part
//! is hidden.

use extant_space::{ByteRange, Control, Remedy, Result};

use super::OfflineEdit;
use super::map::encode;
use crate::format::{L1Entry, L2Entry, Mapping, Version};
use crate::image_file::ImageFile;
use crate::preallocation::Preallocation;

impl OfflineEdit<'_> {
    /// End of the backing file within the new part of the disk.
    fn backing_end(&self, virtual_bytes: u64) -> u64 {
        match (&self.image.header.backing_file, self.file.backing()) {
            (None, _) => 0,
            (Some(_), None) => virtual_bytes,
            (Some(_), Some(backing)) => virtual_bytes.min(backing.virtual_bytes()),
        }
    }

    /// Whole clusters past the end of the disk that a growth to `virtual_bytes` has to hide.
    ///
    /// # Errors
    /// `Unsupported` if part of a cluster would have to be hidden, and the backing file may not be
    /// read.
    pub(super) fn hidden_range(&self, virtual_bytes: u64) -> Result<ByteRange> {
        let geometry = self.geometry();
        let old_bytes = self.image.header.virtual_bytes;
        let start = old_bytes.next_multiple_of(geometry.cluster_bytes());
        let end = self.backing_end(virtual_bytes).max(start);
        if self.shows_part(virtual_bytes)? && self.file.backing().is_none() {
            return Err(ImageFile::refuse(
                "the disk ends inside a cluster of its backing file, whose other bytes would show in a larger disk",
            )
            .remedy(Remedy::ReadBacking));
        }
        Ok(ByteRange::new(start, end))
    }

    /// Whether the disk ends inside a cluster that shows the backing file.
    fn shows_part(&self, virtual_bytes: u64) -> Result<bool> {
        let old_bytes = self.image.header.virtual_bytes;
        if self.geometry().is_aligned(old_bytes) || self.backing_end(virtual_bytes) <= old_bytes {
            return Ok(false);
        }
        let mut shows = false;
        let last = ByteRange::new(old_bytes - 1, old_bytes);
        self.image.for_each_run(last, &mut |run| {
            shows = run.mapping == Mapping::Unallocated;
            Ok(std::ops::ControlFlow::Continue(()))
        })?;
        Ok(shows)
    }

    /// Allocates the cluster in which the old disk ends, with the backing file's data up to that
    /// end, and zeros behind.
    pub(super) fn take_partial_cluster(
        &mut self,
        virtual_bytes: u64,
        control: Control<'_>,
    ) -> Result<()> {
        if !self.shows_part(virtual_bytes)? {
            return Ok(());
        }
        let geometry = self.geometry();
        let end = self.image.header.virtual_bytes;
        let start = end - end % geometry.cluster_bytes();
        let mut bytes = vec![0; (end - start) as usize];
        let backing = self.file.backing().expect("refused before without it");
        backing.read_at(&mut bytes, start)?;
        if let Some(data) = self.file.data_file() {
            data.lengthen(end)?;
        } else {
            bytes.resize(geometry.cluster_bytes() as usize, 0);
        }
        self.below = Some((start >> geometry.cluster_bits(), bytes));
        let done = self.map_range(ByteRange::new(start, end), Preallocation::Off, control);
        self.below = None;
        done
    }

    /// Makes the clusters of `hidden`, past the end of the disk, read as zeros. The L1 table has
    /// room for them.
    pub(super) fn hide(
        &mut self,
        hidden: ByteRange,
        virtual_bytes: u64,
        control: Control<'_>,
    ) -> Result<()> {
        if hidden.is_empty() {
            return Ok(());
        }
        if self.image.header.version == Version::V3 {
            return self.hide_by_zero_clusters(hidden, control);
        }
        // Tables are made as for the larger disk, which the header in the file does not have yet.
        let old_bytes = self.image.header.virtual_bytes;
        self.shown_bytes = Some(old_bytes);
        self.image.header.virtual_bytes = virtual_bytes;
        let done = self.map_range(hidden, Preallocation::Off, control);
        self.shown_bytes = None;
        self.image.header.virtual_bytes = old_bytes;
        done
    }

    fn hide_by_zero_clusters(&mut self, hidden: ByteRange, control: Control<'_>) -> Result<()> {
        let geometry = self.geometry();
        let bits = geometry.cluster_bits();
        // Only the first may be there.
        self.own_table((hidden.start() / geometry.l2_coverage_bytes()) as usize)?;
        let plan = self.plan(self.tables_to_make(hidden), 0)?;
        if self.tables_to_make(hidden) > 0 {
            self.lengthen(&plan)?;
            self.count(&plan)?;
        }
        let mut new_tables = plan.tables..;
        let mut l1 = self.image.l1.clone();
        for part in hidden.chunks(geometry.l2_coverage_bytes()) {
            control.cancel.check()?;
            let index = (part.start() / geometry.l2_coverage_bytes()) as usize;
            let first = (part.start() >> bits) % geometry.l2_entries();
            let count = geometry.clusters(part.end()) - (part.start() >> bits);
            let zeros = vec![L2Entry::ZERO.raw(); count as usize];
            match L1Entry(l1[index]).offset() {
                0 => {
                    let table = new_tables.next().expect("an endless range") << bits;
                    let mut entries = vec![0; geometry.l2_entries() as usize];
                    entries[first as usize..][..count as usize].copy_from_slice(&zeros);
                    self.file().write_at(&encode(&entries), table)?;
                    l1[index] = L1Entry::exclusive(table).raw();
                }
                table => self.file().write_at(&encode(&zeros), table + first * 8)?,
            }
        }
        self.sync()?;
        self.file()
            .write_at(&encode(&l1), self.image.header.l1_offset)?;
        self.sync()?;
        self.image.l1 = l1;
        Ok(())
    }
}

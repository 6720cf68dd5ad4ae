//! Makes the disk smaller: the size first, then the tables, then the counts, then the file.

use std::ops::{ControlFlow, Range};

use extant_space::{ByteRange, Control, ErrorKind, FallocateMode, Result};

use super::OfflineEdit;
use super::map::encode;
use crate::format::{L1Entry, Mapping};

impl OfflineEdit<'_> {
    /// Shrinks the disk to `virtual_bytes` and frees the clusters beyond. Snapshots keep theirs.
    pub(crate) fn shrink(&mut self, virtual_bytes: u64, control: Control<'_>) -> Result<()> {
        let geometry = self.geometry();
        let bits = geometry.cluster_bits();
        // They would be unreachable.
        self.clear_behind(self.image.header.virtual_bytes, control)?;
        self.zero_tail(virtual_bytes, control)?;
        let kept = geometry.l1_entries(virtual_bytes) as usize;
        let used = geometry.clusters(virtual_bytes) % geometry.l2_entries();
        let last = match used {
            0 => 0,
            _ => self.own_table(kept - 1)?,
        };
        let freed = self.places_behind(virtual_bytes)?;
        control.cancel.check()?;
        // From here on the change is completed: an interruption leaves unreachable clusters.
        self.set_size(virtual_bytes)?;
        let mut l1 = self.image.l1.clone();
        let tables = l1.drain(kept..).map(|entry| L1Entry(entry).offset());
        let tables: Vec<u64> = tables.filter(|&table| table != 0).collect();
        l1.resize(self.image.l1.len(), 0);
        if last != 0 {
            let count = geometry.l2_entries() - used;
            self.file()
                .write_at(&vec![0; count as usize * 8], last + used * 8)?;
        }
        self.file()
            .write_at(&encode(&l1), self.image.header.l1_offset)?;
        self.sync()?;
        self.image.l1 = l1;
        let tables = tables
            .into_iter()
            .map(|table| table >> bits..(table >> bits) + 1);
        let clusters = freed.into_iter().chain(tables).flatten();
        let free = self.release_counts(clusters)?;
        self.sync()?;
        self.give_back(&free)?;
        match self.file.data_file() {
            Some(data) => data.truncate(virtual_bytes),
            None => Ok(()),
        }
    }

    /// The clusters of the file that hold whole clusters past the new end.
    fn places_behind(&self, virtual_bytes: u64) -> Result<Vec<Range<u64>>> {
        let old_bytes = self.image.header.virtual_bytes;
        let geometry = self.geometry();
        let first = geometry.clusters(virtual_bytes) << geometry.cluster_bits();
        let behind = ByteRange::new(first.min(old_bytes), old_bytes);
        let mut places = Vec::new();
        self.image.for_each_run(behind, &mut |run| {
            places.extend(self.clusters_of(run.mapping, run.guest.len()));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(places)
    }

    /// The clusters of the image's file that a run of `run_bytes` occupies, if any.
    pub(super) fn clusters_of(&self, mapping: Mapping, run_bytes: u64) -> Option<Range<u64>> {
        let geometry = self.geometry();
        let (start, bytes) = match mapping {
            Mapping::Data(place) | Mapping::Zero(Some(place)) if !self.has_data_file() => {
                (place, run_bytes)
            }
            Mapping::Compressed(place) => (place.offset, place.length_bytes),
            _ => return None,
        };
        Some(start >> geometry.cluster_bits()..geometry.clusters(start + bytes))
    }

    /// Truncates the file after the last used cluster.
    pub(crate) fn truncate_tail(&self) -> Result<()> {
        let table = self.refcount_table()?;
        let end = self.counted_end(&table)? << self.geometry().cluster_bits();
        if end < self.file().size()? {
            self.file.truncate(end)
        } else {
            Ok(())
        }
    }

    /// Returns the space of clusters that nothing uses any more to the file system, or to the disk.
    fn give_back(&self, free: &[Range<u64>]) -> Result<()> {
        self.truncate_tail()?;
        let bits = self.geometry().cluster_bits();
        let kept = ByteRange::new(0, self.file().size()?);
        let bytes = |run: &Range<u64>| ByteRange::new(run.start << bits, run.end << bits);
        for range in free.iter().filter_map(|run| bytes(run).intersection(kept)) {
            match self.file().fallocate(FallocateMode::PunchHole, range) {
                // It is free in the image; the file's space does not matter.
                Err(error) if error.kind() == ErrorKind::Unsupported => break,
                done => done?,
            }
        }
        Ok(())
    }
}

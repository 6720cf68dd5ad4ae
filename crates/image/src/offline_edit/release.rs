//! Makes the disk smaller: the size first, then the tables, then the counts, then the file.

use std::ops::{ControlFlow, Range};

use extant_space::{ByteRange, Control, ErrorKind, FallocateMode, Result};

use super::OfflineEdit;
use super::map::encode;
use crate::format::{L1Entry, L2Entry, Mapping};
use crate::qcow2::read_table;

impl OfflineEdit<'_> {
    /// Shrinks the disk to `virtual_bytes` and frees the clusters beyond. Snapshots keep theirs.
    pub(crate) fn shrink(&mut self, virtual_bytes: u64, control: Control<'_>) -> Result<()> {
        let geometry = self.geometry();
        // They would be unreachable.
        self.clear_behind(self.image.header.virtual_bytes, control)?;
        self.zero_tail(virtual_bytes, control)?;
        let kept = geometry.l1_entries(virtual_bytes) as usize;
        let used = geometry.clusters(virtual_bytes) % geometry.l2_entries();
        let last = match used {
            0 => 0,
            _ => self.own_table(kept - 1)?,
        };
        let mut freed = self.places_behind(virtual_bytes)?;
        freed.extend(self.places_of(kept)?);
        control.cancel.check()?;
        // From here on the change is completed: an interruption leaves unreachable clusters.
        self.set_size(virtual_bytes)?;
        let mut l1 = self.image.l1.clone();
        l1[kept..].fill(0);
        if last != 0 {
            let count = geometry.l2_entries() - used;
            self.file()
                .write_at(&vec![0; count as usize * 8], last + used * 8)?;
        }
        self.file()
            .write_at(&encode(&l1), self.image.header.l1_offset)?;
        self.sync()?;
        self.image.l1 = l1;
        let free = self.release_counts(freed.into_iter().flatten())?;
        self.sync()?;
        self.give_back(&free)?;
        match self.file.data_file() {
            Some(data) => data.truncate(virtual_bytes),
            None => Ok(()),
        }
    }

    /// The clusters of the file that hold whole clusters past the new end, by the L2 table in which
    /// it is.
    fn places_behind(&self, virtual_bytes: u64) -> Result<Vec<Range<u64>>> {
        let geometry = self.geometry();
        let table_end = geometry.l1_entries(virtual_bytes) * geometry.l2_coverage_bytes();
        let end = self.image.header.virtual_bytes.min(table_end);
        let first = geometry.clusters(virtual_bytes) << geometry.cluster_bits();
        let behind = ByteRange::new(first.min(end), end);
        let mut places = Vec::new();
        self.image.for_each_run(behind, &mut |run| {
            places.extend(self.clusters_of(run.mapping, run.guest.len()));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(places)
    }

    /// The clusters of the file that the L1 entries from `first` on refer to, once for each
    /// reference: those that the tables map, then the tables. Entries past the end of the disk
    /// (the state of a virtual machine) are included.
    pub(super) fn places_of(&self, first: usize) -> Result<Vec<Range<u64>>> {
        let geometry = self.geometry();
        let bits = geometry.cluster_bits();
        let file_bytes = self.file().size()?;
        let (mut places, mut tables) = (Vec::new(), Vec::new());
        for (index, &entry) in self.image.l1.iter().enumerate().skip(first) {
            let Some(table) = L1Entry(entry).table(geometry, index as u64, file_bytes)? else {
                continue;
            };
            let entries = read_table(self.file(), table, geometry.l2_entries())?;
            let mut guest = index as u64 * geometry.l2_coverage_bytes();
            for entry in entries {
                let mapping = L2Entry(entry).mapping(geometry, self.entry_rules(), guest)?;
                places.extend(self.clusters_of(mapping, geometry.cluster_bytes()));
                guest = guest.saturating_add(geometry.cluster_bytes());
            }
            tables.push(table >> bits..(table >> bits) + 1);
        }
        places.append(&mut tables);
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

//! Grows the disk by unallocated clusters, and ensures that the new part reads as zeros. Over a
//! backing file, zero clusters may have to hide its data there (`hide.rs`).

use std::ops::ControlFlow;

use extant_space::{ByteRange, Control, Error, ErrorKind, Result};

use super::OfflineEdit;
use super::map::encode;
use crate::format::{L1Entry, L2Entry, Mapping, Version};
use crate::preallocation::Preallocation;
use crate::qcow2::read_table;

const L1_BYTES_MAX: u64 = 32 << 20;

impl OfflineEdit<'_> {
    /// Refuses a larger disk before anything is changed if a file or device of fixed size has no
    /// room for it. Elsewhere that shows when space is made.
    ///
    /// # Errors
    /// `NoSpace` with the missing bytes; those of [`hidden_range`](Self::hidden_range).
    pub(crate) fn check_room(
        &self,
        virtual_bytes: u64,
        preallocation: Preallocation,
    ) -> Result<()> {
        let hidden = self.hidden_range(virtual_bytes)?;
        if let Some(data) = self.file.data_file() {
            data.check_fits(virtual_bytes)?;
        }
        if !self.file.is_disk() {
            return Ok(());
        }
        let geometry = self.geometry();
        let mut tables = self.new_l1_clusters(virtual_bytes)?;
        let mut clusters = 0;
        if preallocation != Preallocation::Off {
            let old_bytes = self.image.header.virtual_bytes;
            let new = ByteRange::new(old_bytes, virtual_bytes);
            tables += self.tables_to_make(new);
            if !self.has_data_file() {
                let last = old_bytes - old_bytes % geometry.cluster_bytes();
                clusters += geometry.clusters(virtual_bytes) - geometry.clusters(old_bytes);
                clusters += self.new_places(ByteRange::new(last, old_bytes))?;
            }
        }
        tables += self.tables_to_make(hidden);
        if self.image.header.version == Version::V2 {
            clusters += hidden.len().div_ceil(geometry.cluster_bytes());
        }
        match tables + clusters {
            0 => Ok(()),
            _ => {
                let plan = self.plan(tables, clusters)?;
                self.file.check_fits(self.end_bytes(&plan))
            }
        }
    }

    /// Clusters of the L1 table that a larger disk needs in another place; 0: it does not move.
    fn new_l1_clusters(&self, virtual_bytes: u64) -> Result<u64> {
        let geometry = self.geometry();
        let needed = geometry.l1_entries(virtual_bytes);
        if needed * 8 > L1_BYTES_MAX {
            return Err(Error::new(ErrorKind::TooLarge)
                .detail("the L1 table of such small clusters cannot hold the larger disk")
                .advice("convert it to larger clusters (cluster_size)"));
        }
        let clusters = geometry.clusters(needed * 8);
        let room = geometry.clusters(u64::from(self.image.header.l1_entries) * 8);
        Ok(if clusters > room { clusters } else { 0 })
    }

    /// Grows the disk by unallocated clusters.
    ///
    /// Table entries beyond the old end (the state of a virtual machine, what an interrupted growth
    /// left) are cleared, and their clusters released: they were unreachable and would become
    /// visible.
    pub(crate) fn grow(&mut self, virtual_bytes: u64, control: Control<'_>) -> Result<()> {
        let old_bytes = self.image.header.virtual_bytes;
        let hidden = self.hidden_range(virtual_bytes)?;
        if !self.places_of(self.l1_used())?.is_empty() {
            self.check_counts(control)?;
        }
        self.take_partial_cluster(virtual_bytes, control)?;
        self.clear_behind(old_bytes, control)?;
        if let Some(data) = self.file.data_file() {
            self.clear_data(ByteRange::new(old_bytes, virtual_bytes), control)?;
            data.lengthen(virtual_bytes)?;
        }
        self.lengthen_l1(virtual_bytes)?;
        self.hide(hidden, virtual_bytes, control)?;
        self.set_size(virtual_bytes)
    }

    /// Extends the L1 table for a larger disk, and clears entries past the end of the present one.
    fn lengthen_l1(&mut self, virtual_bytes: u64) -> Result<()> {
        let geometry = self.geometry();
        let bits = geometry.cluster_bits();
        let new_l1 = self.new_l1_clusters(virtual_bytes)?;
        let moves = new_l1 > 0;
        let needed = geometry.l1_entries(virtual_bytes);
        let used = self.l1_used();
        let behind = self.places_of(used)?;
        let mut l1 = self.image.l1.clone();
        l1.truncate(used);
        l1.resize((needed as usize).max(self.image.l1.len()), 0);
        let bytes = encode(&l1);
        let old = self.image.header.l1_range();
        if moves {
            let plan = self.plan(new_l1, 0)?;
            self.lengthen(&plan)?;
            self.count(&plan)?;
            self.image.header.l1_offset = plan.tables << bits;
        }
        self.file().write_at(&bytes, self.image.header.l1_offset)?;
        self.sync()?;
        self.image.header.l1_entries = l1.len() as u32;
        self.image.l1 = l1;
        self.write_fields()?;
        if !behind.is_empty() {
            self.release_counts(behind.into_iter().flatten())?;
            self.sync()?;
        }
        if moves && !old.is_empty() {
            self.release_counts(old.start() >> bits..geometry.clusters(old.end()))?;
            self.sync()?;
        }
        Ok(())
    }

    /// Entries of the L1 table that map the disk.
    fn l1_used(&self) -> usize {
        self.geometry().l1_entries(self.image.header.virtual_bytes) as usize
    }

    /// Clears the rest of the last cluster and of its L2 table past the end of the disk.
    pub(super) fn clear_behind(&mut self, end: u64, control: Control<'_>) -> Result<()> {
        let geometry = self.geometry();
        self.zero_tail(end, control)?;
        let index = (end / geometry.l2_coverage_bytes()) as usize;
        let is_inside = !end.is_multiple_of(geometry.l2_coverage_bytes());
        let entry = L1Entry(self.image.l1.get(index).copied().unwrap_or(0));
        let table = entry.table(geometry, index as u64, self.file().size()?)?;
        let first = geometry.clusters(end) % geometry.l2_entries();
        let Some(table) = table.filter(|_| is_inside && first != 0) else {
            return Ok(());
        };
        let count = geometry.l2_entries() - first;
        let behind = read_table(self.file(), table + first * 8, count)?;
        if behind.iter().all(|&entry| entry == 0) {
            return Ok(());
        }
        let mut left = Vec::new();
        for &raw in &behind {
            let mapping = L2Entry(raw).mapping(geometry, self.entry_rules(), end)?;
            left.extend(self.clusters_of(mapping, geometry.cluster_bytes()));
        }
        let table = self.own_table(index)?;
        self.file()
            .write_at(&vec![0; count as usize * 8], table + first * 8)?;
        self.sync()?;
        self.release_counts(left.into_iter().flatten())?;
        self.sync()
    }

    /// The L2 table of an entry of the L1 table, which is a copy now if snapshots have it as well;
    /// 0: there is none.
    pub(super) fn own_table(&mut self, index: usize) -> Result<u64> {
        let old = L1Entry(self.image.l1[index]);
        if old.offset() == 0 || old.is_copied() {
            return Ok(old.offset());
        }
        let bits = self.geometry().cluster_bits();
        let entries = read_table(self.file(), old.offset(), self.geometry().l2_entries())?;
        let plan = self.plan(1, 0)?;
        self.lengthen(&plan)?;
        self.count(&plan)?;
        let place = plan.tables << bits;
        self.file().write_at(&encode(&entries), place)?;
        self.sync()?;
        let new = L1Entry::exclusive(place).raw();
        let at = self.image.header.l1_offset + index as u64 * 8;
        self.file().write_at(&new.to_be_bytes(), at)?;
        self.sync()?;
        self.image.l1[index] = new;
        self.release_counts(std::iter::once(old.offset() >> bits))?;
        self.sync()?;
        Ok(place)
    }

    /// Zeros in the part of the last cluster that is behind `end`.
    pub(super) fn zero_tail(&mut self, end: u64, control: Control<'_>) -> Result<()> {
        let geometry = self.geometry();
        if geometry.is_aligned(end) {
            return Ok(());
        }
        let mut tail = self.tail(end)?;
        let is_clear = match &tail {
            Tail::Nothing => true,
            Tail::Compressed => false,
            Tail::Own(range) | Tail::Shared(range) => self.reads_zero(*range)?,
        };
        if is_clear {
            return Ok(());
        }
        if !matches!(tail, Tail::Own(_)) {
            let start = end - end % geometry.cluster_bytes();
            self.map_range(ByteRange::new(start, end), Preallocation::Off, control)?;
            tail = self.tail(end)?;
        }
        match tail {
            Tail::Own(range) => self.clear_data(range, control),
            _ => Ok(()),
        }
    }

    fn reads_zero(&self, range: ByteRange) -> Result<bool> {
        let mut bytes = vec![0; range.len() as usize];
        // A file that ends before has nothing there.
        let got = self.data().read_at(&mut bytes, range.start())?;
        Ok(bytes[..got].iter().all(|&byte| byte == 0))
    }

    /// The rest of the cluster in which the disk ends.
    fn tail(&self, end: u64) -> Result<Tail> {
        let geometry = self.geometry();
        let within = end % geometry.cluster_bytes();
        let start = end - within;
        let mut tail = Tail::Nothing;
        self.image
            .for_each_run(ByteRange::new(start, end), &mut |run| {
                tail = match run.mapping {
                    Mapping::Data(place) => {
                        let range =
                            ByteRange::new(place + within, place + geometry.cluster_bytes());
                        if run.is_copied || self.has_data_file() {
                            Tail::Own(range)
                        } else {
                            Tail::Shared(range)
                        }
                    }
                    Mapping::Compressed(_) => Tail::Compressed,
                    Mapping::Unallocated | Mapping::Zero(_) => Tail::Nothing,
                };
                Ok(ControlFlow::Continue(()))
            })?;
        Ok(tail)
    }
}

/// State of the rest of the cluster in which the disk ends.
enum Tail {
    Nothing,
    /// Bytes of the image alone, here in the file of the guest's data.
    Own(ByteRange),
    /// Bytes that snapshots have as well.
    Shared(ByteRange),
    Compressed,
}

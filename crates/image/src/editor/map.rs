//! Gives every cluster of a range of the guest a place, and makes a longer L1 table.

use std::ops::ControlFlow;

use extant_space::{ByteRange, Control, Error, ErrorKind, Result};

use super::Editor;
use crate::format::{L1Entry, L2Entry, Mapping};
use crate::preallocation::Preallocation;
use crate::qcow2::{Run, read_table};

const L1_BYTES_MAX: u64 = 32 << 20;
/// Zeros are written in such pieces.
const ZEROS_BYTES: u64 = 1 << 20;

impl Editor<'_> {
    /// Maps all clusters of `range` that have no place, in one run of the file with the space that `preallocation` asks for.
    ///
    /// # Errors
    /// After `NoSpace`, `Cancelled` and whatever else comes before clusters are counted, the image is as it was.
    pub(crate) fn map_range(
        &mut self,
        range: ByteRange,
        preallocation: Preallocation,
        control: Control<'_>,
    ) -> Result<()> {
        let geometry = self.geometry();
        let bits = geometry.cluster_bits();
        let missing = self.missing(range)?;
        for &(start, end) in &missing.zeroed {
            self.write_zeros(ByteRange::new(start, end), control)?;
        }
        let tables = self.missing_tables(range);
        let plan = self.plan(tables.len() as u64, missing.clusters)?;
        let file_bytes = self.file().size()?;
        if missing.clusters > 0 || !tables.is_empty() {
            self.lengthen(&plan)
                .and_then(|()| {
                    let data = self.data_range(&plan);
                    self.target.make_space(data, preallocation.space(), control)
                })
                .inspect_err(|_| {
                    // Nothing refers to it yet, and the error is the one to tell.
                    let _ = self.file().resize(file_bytes);
                })?;
            self.count(&plan)?;
        }
        self.sync()?;
        let mut next = plan.data << bits;
        let mut new_tables = (plan.tables..).map(|cluster| cluster << bits);
        let mut l1 = self.image.l1.clone();
        for part in range.chunks(geometry.l2_coverage_bytes()) {
            let index = (part.start() / geometry.l2_coverage_bytes()) as usize;
            let (table, mut entries) = match L1Entry(l1[index]).offset() {
                0 => {
                    let place = new_tables.next().expect("as many as are planned");
                    l1[index] = L1Entry::exclusive(place).raw();
                    (place, vec![0; geometry.l2_entries() as usize])
                }
                place => (
                    place,
                    read_table(self.file(), place, geometry.l2_entries())?,
                ),
            };
            let mut is_changed = false;
            for cluster in part.start() >> bits..geometry.clusters(part.end()) {
                let entry = &mut entries[(cluster % geometry.l2_entries()) as usize];
                let mapping = L2Entry(*entry).mapping(geometry, false, cluster << bits)?;
                let place = match mapping {
                    Mapping::Unallocated | Mapping::Zero(None) => {
                        next += geometry.cluster_bytes();
                        next - geometry.cluster_bytes()
                    }
                    Mapping::Zero(Some(place)) => place,
                    Mapping::Data(_) | Mapping::Compressed(_) => continue,
                };
                *entry = L2Entry::exclusive(place).raw();
                is_changed = true;
            }
            if is_changed {
                let bytes: Vec<u8> = entries
                    .iter()
                    .flat_map(|entry| entry.to_be_bytes())
                    .collect();
                self.file().write_at(&bytes, table)?;
            }
        }
        self.sync()?;
        if l1 != self.image.l1 {
            let bytes: Vec<u8> = l1.iter().flat_map(|entry| entry.to_be_bytes()).collect();
            self.file().write_at(&bytes, self.image.header.l1_offset)?;
            self.sync()?;
            self.image.l1 = l1;
        }
        Ok(())
    }

    /// What of `range` has no place, and what has one that must be zeroed first.
    fn missing(&self, range: ByteRange) -> Result<Missing> {
        let geometry = self.geometry();
        let bits = geometry.cluster_bits();
        let mut missing = Missing::default();
        self.image.for_each_run(range, &mut |run: Run| {
            match run.mapping {
                Mapping::Unallocated | Mapping::Zero(None) => {
                    missing.clusters +=
                        geometry.clusters(run.guest.end()) - (run.guest.start() >> bits);
                }
                Mapping::Zero(Some(place)) => {
                    let start = place >> bits << bits;
                    let end = place + run.guest.len();
                    let end = geometry.clusters(end) << bits;
                    missing.zeroed.push((start, end));
                }
                Mapping::Data(_) | Mapping::Compressed(_) => {}
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(missing)
    }

    /// Numbers of the L2 tables that `range` needs and that are not there.
    fn missing_tables(&self, range: ByteRange) -> Vec<u64> {
        let coverage = self.geometry().l2_coverage_bytes();
        (range.start() / coverage..range.end().div_ceil(coverage))
            .filter(|&index| L1Entry(self.image.l1[index as usize]).offset() == 0)
            .collect()
    }

    /// Writes zeros over space that the image has.
    pub(super) fn write_zeros(&self, range: ByteRange, control: Control<'_>) -> Result<()> {
        let zeros = vec![0; ZEROS_BYTES.min(range.len()) as usize];
        for piece in range.chunks(ZEROS_BYTES) {
            control.cancel.check()?;
            self.file()
                .write_at(&zeros[..piece.len() as usize], piece.start())?;
        }
        Ok(())
    }

    /// Makes the disk larger, by clusters without a place.
    ///
    /// What tables hold behind the old end becomes unallocated: it was nobody's, and would be seen.
    pub(crate) fn grow(&mut self, virtual_bytes: u64, control: Control<'_>) -> Result<()> {
        let geometry = self.geometry();
        let bits = geometry.cluster_bits();
        let old_bytes = self.image.header.virtual_bytes;
        let needed = geometry.l1_entries(virtual_bytes);
        if needed * 8 > L1_BYTES_MAX {
            return Err(Error::new(ErrorKind::TooLarge)
                .detail("the L1 table of such small clusters cannot hold the larger disk")
                .advice("convert it to larger clusters (cluster_size)"));
        }
        self.clear_behind(old_bytes, control)?;
        let used = geometry.l1_entries(old_bytes) as usize;
        let mut l1 = self.image.l1.clone();
        l1.truncate(used);
        l1.resize((needed as usize).max(self.image.l1.len()), 0);
        let bytes: Vec<u8> = l1.iter().flat_map(|entry| entry.to_be_bytes()).collect();
        let room = geometry.clusters(u64::from(self.image.header.l1_entries) * 8) << bits;
        let old = self.image.header.l1_range();
        let moves = bytes.len() as u64 > room;
        if moves {
            let plan = self.plan(geometry.clusters(bytes.len() as u64), 0)?;
            self.lengthen(&plan)?;
            self.count(&plan)?;
            self.image.header.l1_offset = plan.tables << bits;
        }
        self.file().write_at(&bytes, self.image.header.l1_offset)?;
        self.sync()?;
        self.image.header.l1_entries = l1.len() as u32;
        self.image.l1 = l1;
        self.set_size(virtual_bytes)?;
        if moves && !old.is_empty() {
            self.release_counts(old.start() >> bits..geometry.clusters(old.end()))?;
            self.sync()?;
        }
        Ok(())
    }

    /// What the last cluster and its L2 table hold behind the end of the disk.
    fn clear_behind(&self, end: u64, control: Control<'_>) -> Result<()> {
        let geometry = self.geometry();
        self.zero_tail(end, control)?;
        let index = end / geometry.l2_coverage_bytes();
        let is_inside = !end.is_multiple_of(geometry.l2_coverage_bytes());
        let table = self.image.l1.get(index as usize).copied().unwrap_or(0);
        let table = L1Entry(table).offset();
        if !is_inside || table == 0 {
            return Ok(());
        }
        let first = geometry.clusters(end) % geometry.l2_entries();
        if first == 0 {
            return Ok(());
        }
        let at = table + first * 8;
        let count = geometry.l2_entries() - first;
        if read_table(self.file(), at, count)?
            .iter()
            .any(|&entry| entry != 0)
        {
            self.file().write_at(&vec![0; count as usize * 8], at)?;
            self.sync()?;
        }
        Ok(())
    }

    /// Zeros in the part of the last cluster that is behind `end`.
    pub(super) fn zero_tail(&self, end: u64, control: Control<'_>) -> Result<()> {
        let geometry = self.geometry();
        let bits = geometry.cluster_bits();
        if geometry.is_aligned(end) {
            return Ok(());
        }
        let start = end >> bits << bits;
        let mut place = None;
        self.image.for_each_run(ByteRange::new(start, end), &mut |run| {
            place = match run.mapping {
                Mapping::Data(offset) => Some(offset),
                Mapping::Compressed(_) => {
                    return Err(super::Target::refuse(
                        "the last cluster is compressed and the disk ends inside it; convert the image instead",
                    ));
                }
                Mapping::Unallocated | Mapping::Zero(_) => None,
            };
            Ok(ControlFlow::Continue(()))
        })?;
        match place {
            None => Ok(()),
            Some(offset) => {
                let cluster_end = offset + geometry.cluster_bytes();
                let tail = ByteRange::new(offset + (end - start), cluster_end);
                // A file that ends before has nothing there.
                let file = ByteRange::new(0, self.file().size()?);
                match tail.intersection(file) {
                    Some(tail) => self.write_zeros(tail, control),
                    None => Ok(()),
                }
            }
        }
    }
}

#[derive(Default)]
struct Missing {
    clusters: u64,
    /// Places in the file.
    zeroed: Vec<(u64, u64)>,
}

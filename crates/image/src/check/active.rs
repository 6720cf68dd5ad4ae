//! The tables that the guest sees: how much they map, and their copied flags. An entry that has the
//! flag is overwritten in place, so it must mean a refcount of one.

use extant_space::Result;

use super::{Check, for_each_block};
use crate::format::{L1Entry, L2Entry, Mapping};
use crate::qcow2::read_table;

impl Check<'_> {
    /// Compares the flags with the refcounts, except for the clusters in `is_excepted`, and counts
    /// the mapped clusters.
    pub(super) fn check_active(&mut self, is_excepted: &dyn Fn(u64) -> bool) -> Result<()> {
        // One bit for each cluster: its refcount is one.
        let mut ones = vec![0_u64; self.uses.len().div_ceil(64) as usize];
        for_each_block(self.image, self.uses.len(), &mut |first, block| {
            let entries = self.geometry.refcount_block_entries();
            let end = (first + entries).min(self.uses.len());
            if let Some(block) = block {
                for cluster in first..end {
                    let is_one = block.get((cluster - first) as usize) == 1;
                    ones[(cluster / 64) as usize] |= u64::from(is_one) << (cluster % 64);
                }
            }
            Ok(())
        })?;
        let bits = self.geometry.cluster_bits();
        let is_one = |offset: u64| {
            let cluster = offset >> bits;
            let word = ones.get((cluster / 64) as usize).copied().unwrap_or(0);
            word >> (cluster % 64) & 1 == 1
        };
        let rules = self.image.header.entry_rules();
        let mut seen = vec![0_u64; ones.len()];
        for (index, &raw) in (0..).zip(&self.image.l1) {
            let entry = L1Entry(raw);
            let Ok(Some(table)) = entry.table(self.geometry, index, self.file_bytes) else {
                continue;
            };
            self.control.cancel.check()?;
            if entry.is_copied() != is_one(table) && !is_excepted(table >> bits) {
                self.report.corrupt(format_args!(
                    "L1 entry {index}: copied is {}, and the refcount of {table:#x} is {}one",
                    entry.is_copied(),
                    if is_one(table) { "" } else { "not " }
                ));
            }
            // Once for each table, however often it is used.
            let cluster = table >> bits;
            let word = &mut seen[(cluster / 64) as usize];
            if *word >> (cluster % 64) & 1 == 1 {
                continue;
            }
            *word |= 1 << (cluster % 64);
            let entries = read_table(&*self.image.file, table, self.geometry.l2_entries())?;
            // Within a table, as QEMU counts: the next table may be between its clusters and the
            // previous ones.
            let mut next_offset = None;
            for (number, raw) in (0..).zip(entries) {
                let entry = L2Entry(raw);
                let offset = match entry.mapping(self.geometry, rules, 0) {
                    Ok(Mapping::Data(offset) | Mapping::Zero(Some(offset))) => offset,
                    Ok(Mapping::Compressed(_)) => {
                        self.report.allocated_clusters += 1;
                        self.report.compressed_clusters += 1;
                        self.report.fragmented_clusters += 1;
                        continue;
                    }
                    _ => continue,
                };
                self.report.allocated_clusters += 1;
                if next_offset.is_some_and(|next| next != offset) {
                    self.report.fragmented_clusters += 1;
                }
                next_offset = Some(offset + self.geometry.cluster_bytes());
                let is_one = rules.has_data_file || is_one(offset);
                if entry.is_copied() != is_one && !is_excepted(offset >> bits) {
                    self.report.corrupt(format_args!(
                        "L2 table at {table:#x}, entry {number}: copied is {}, and the refcount of {offset:#x} is {}one",
                        entry.is_copied(),
                        if is_one { "" } else { "not " }
                    ));
                }
            }
        }
        Ok(())
    }
}

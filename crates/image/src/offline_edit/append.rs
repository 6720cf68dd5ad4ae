//! New clusters behind all others.
//!
//! In the order of the file: refcount blocks for clusters that none counts yet, a larger refcount
//! table where the old one is full, tables, data. First planned; then the caller allocates their
//! space, and may abort; then counted, durably.

use std::sync::Arc;

use extant_space::{ByteRange, Control, Error, ErrorKind, Remedy, Result};

use super::OfflineEdit;
use crate::check::check;
use crate::format::{RefcountBlock, RefcountTableEntry};
use crate::image_file::ImageFile;

/// Bytes at which data begins, where clusters are smaller.
const DATA_ALIGNMENT: u64 = 4096;
const TABLE_BYTES_MAX: u64 = 8 << 20;

/// Clusters that will be used, by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Before it, everything that is in use.
    start: u64,
    /// Refcount blocks that are made.
    blocks: u64,
    /// Clusters of a new refcount table; 0: the old one is kept.
    table: u64,
    /// Offset of the caller's tables.
    pub(super) tables: u64,
    tables_count: u64,
    /// Offset of the data.
    pub(super) data: u64,
    data_count: u64,
}

impl Plan {
    fn end(&self) -> u64 {
        self.data + self.data_count
    }

    fn uses(&self, cluster: u64) -> bool {
        (self.start..self.tables + self.tables_count).contains(&cluster)
            || (self.data..self.end()).contains(&cluster)
    }
}

/// Refuses an image with corruptions before anything is changed. On a disk only the counts show
/// where the image ends: new clusters could overwrite used ones. Elsewhere released or copied
/// clusters could be in use, or the change could fail half-way.
pub(super) fn check_counts(file: &ImageFile, control: Control<'_>) -> Result<()> {
    match check(Arc::clone(file.file()), 0, control) {
        // Too many clusters to be counted in memory.
        Err(error) if error.kind() == ErrorKind::TooLarge && !file.is_disk() => Ok(()),
        Err(error) => Err(error),
        Ok(report) if report.corruptions == 0 => Ok(()),
        Ok(report) => Err(Error::new(ErrorKind::Corrupt)
            .detail(format!(
                "the image has {} corruptions: a change could destroy clusters in use",
                report.corruptions
            ))
            .remedy(Remedy::RepairImage)),
    }
}

impl OfflineEdit<'_> {
    /// Clusters for tables and data.
    pub(super) fn plan(&self, tables_count: u64, data_count: u64) -> Result<Plan> {
        let table = self.refcount_table()?;
        let start = self.end_cluster(&table)?;
        self.plan_behind(start, &table, tables_count, data_count)
    }

    /// The same, if the image ends before the cluster `start`; `old` is its refcount table.
    pub(super) fn plan_behind(
        &self,
        start: u64,
        old: &[u64],
        tables_count: u64,
        data_count: u64,
    ) -> Result<Plan> {
        let geometry = self.geometry();
        let entries = geometry.refcount_block_entries();
        let mut plan = Plan {
            start,
            blocks: 0,
            table: 0,
            tables: 0,
            tables_count,
            data: 0,
            data_count,
        };
        loop {
            plan.tables = plan.start + plan.blocks + plan.table;
            plan.data = plan.tables + tables_count;
            if data_count > 0 {
                plan.data = plan
                    .data
                    .next_multiple_of(geometry.clusters(DATA_ALIGNMENT));
            }
            let touched = plan.start / entries..plan.end().div_ceil(entries);
            let is_new = |&index: &u64| {
                let entry = old.get(index as usize);
                entry.is_none_or(|&raw| RefcountTableEntry(raw).offset() == 0)
            };
            let blocks = touched.clone().filter(is_new).count() as u64;
            let table = if touched.end <= old.len() as u64 {
                0
            } else {
                geometry.clusters(touched.end * 8)
            };
            if blocks <= plan.blocks && table <= plan.table {
                break;
            }
            plan.blocks = plan.blocks.max(blocks);
            plan.table = plan.table.max(table);
        }
        if plan.table * geometry.cluster_bytes() > TABLE_BYTES_MAX {
            return Err(Error::new(ErrorKind::TooLarge)
                .detail("the refcount table of such small clusters cannot count the larger image")
                .advice("convert it to larger clusters (cluster_size)"));
        }
        Ok(plan)
    }

    /// The first cluster behind all that are counted or, where the file ends with the image, in the
    /// file.
    pub(super) fn end_cluster(&self, table: &[u64]) -> Result<u64> {
        let counted = self.counted_end(table)?;
        if self.file.is_disk() {
            Ok(counted)
        } else {
            Ok(counted.max(self.geometry().clusters(self.file().size()?)))
        }
    }

    /// One past the last cluster that is counted.
    pub(super) fn counted_end(&self, table: &[u64]) -> Result<u64> {
        let geometry = self.geometry();
        let file_bytes = self.file().size()?;
        let entries = geometry.refcount_block_entries();
        let mut bytes = vec![0; geometry.cluster_bytes() as usize];
        for (index, &raw) in table.iter().enumerate().rev() {
            let index = index as u64;
            let Some(offset) = RefcountTableEntry(raw).block(geometry, index, file_bytes)? else {
                continue;
            };
            self.file().read_at(&mut bytes, offset)?;
            let block = RefcountBlock::new(&bytes[..], geometry);
            if let Some(last) = (0..entries as usize).rev().find(|&at| block.get(at) != 0) {
                return Ok(index * entries + last as u64 + 1);
            }
        }
        Ok(0)
    }

    /// The range of a plan's data in the file.
    pub(super) fn data_range(&self, plan: &Plan) -> ByteRange {
        let bits = self.geometry().cluster_bits();
        ByteRange::new(plan.data << bits, plan.end() << bits)
    }

    /// End of the file with the complete plan written.
    pub(super) fn end_bytes(&self, plan: &Plan) -> u64 {
        plan.end() << self.geometry().cluster_bits()
    }

    /// The file gets the size that the plan needs.
    pub(super) fn lengthen(&self, plan: &Plan) -> Result<()> {
        self.file.lengthen(self.end_bytes(plan))
    }

    /// Counts the clusters of the plan; durable on return. From here on they are lost if nothing is
    /// made of them.
    pub(super) fn count(&mut self, plan: &Plan) -> Result<()> {
        let geometry = self.geometry();
        let (entries, bits) = (geometry.refcount_block_entries(), geometry.cluster_bits());
        let mut table = self.refcount_table()?;
        let old_entries = table.len();
        table.resize(old_entries.max((plan.table << bits) as usize / 8), 0);
        let touched = plan.start / entries..plan.end().div_ceil(entries);
        let mut next_block = plan.start;
        let mut bytes = vec![0; geometry.cluster_bytes() as usize];
        let file_bytes = self.file().size()?;
        let mut linked = Vec::new();
        for index in touched {
            let first = index * entries;
            let entry = RefcountTableEntry(table[index as usize]);
            let offset = match entry.block(geometry, index, file_bytes)? {
                Some(offset) => {
                    self.file().read_at(&mut bytes, offset)?;
                    offset
                }
                None => {
                    bytes.fill(0);
                    let offset = next_block << bits;
                    next_block += 1;
                    table[index as usize] = offset;
                    linked.push(index as usize);
                    offset
                }
            };
            let mut block = RefcountBlock::new(&mut bytes[..], geometry);
            for cluster in first.max(plan.start)..(first + entries).min(plan.end()) {
                block.set((cluster - first) as usize, u64::from(plan.uses(cluster)));
            }
            self.file().write_at(&bytes, offset)?;
        }
        let encode = |table: &[u64]| -> Vec<u8> {
            table.iter().flat_map(|entry| entry.to_be_bytes()).collect()
        };
        if plan.table == 0 {
            self.sync()?;
            if let (Some(&first), Some(&last)) = (linked.first(), linked.last()) {
                let at = self.image.header.refcount_table_offset + first as u64 * 8;
                self.file().write_at(&encode(&table[first..=last]), at)?;
                self.sync()?;
            }
            return Ok(());
        }
        let place = (plan.start + plan.blocks) << bits;
        self.file().write_at(&encode(&table), place)?;
        self.sync()?;
        let old = self.image.header.refcount_table_range();
        self.image.header.refcount_table_offset = place;
        self.image.header.refcount_table_clusters = plan.table as u32;
        self.write_fields()?;
        self.release_counts(old.start() >> bits..old.end() >> bits)?;
        self.sync()
    }
}

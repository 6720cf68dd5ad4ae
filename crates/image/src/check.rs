//! The check of a qcow2 image: counts the references to every cluster and compares them with the
//! refcounts.
//!
//! As in `qemu-img check`, a refcount that is too low is a *corruption*, because the cluster may be
//! reused while it is referenced; one that is too high is a *leak*. An L2 table that several
//! snapshots share is read once.
//!
//! Memory: two counts of 16 bits per cluster of the file, allocated on first use, 1 GiB at most; a
//! count saturates at 65,535. Only [`repair_leaks`] and [`rebuild_refcounts`] write.

mod active;
mod bitmaps;
mod count;
mod flags;
mod rebuild;
mod repair;
mod report;

use extant_space::{ByteRange, ByteSize, Control, Error, ErrorKind, Phase, Result, SpaceFile};

use crate::format::{
    Geometry, L1Entry, L2Entry, Mapping, RefcountBlock, RefcountTableEntry, Version, read_snapshots,
};
use crate::qcow2::{Qcow2, read_table};
use count::Counts;

pub use rebuild::rebuild_refcounts;
pub use repair::repair_leaks;
pub use report::{CheckReport, Finding, FindingKind};

/// Read at once of an L1 table.
const L1_PIECE_ENTRIES: u64 = 64 << 10;

/// Checks the image in `file`, which no other process may change meanwhile. At most `findings_max`
/// findings are listed, all are counted.
///
/// # Errors
/// A header that makes counting impossible; `TooLarge` if the counts would need more than 1 GiB;
/// read errors.
pub fn check(
    file: std::sync::Arc<dyn SpaceFile>,
    findings_max: usize,
    control: Control<'_>,
) -> Result<CheckReport> {
    let image = Qcow2::open(file)?;
    let mut check = Check::new(&image, findings_max, control)?;
    check.count_uses()?;
    check.compare()?;
    check.check_active(&|_| false)?;
    Ok(check.report)
}

struct Check<'a> {
    image: &'a Qcow2,
    geometry: Geometry,
    file_bytes: u64,
    /// Use count of each cluster.
    uses: Counts,
    /// Use count of each cluster as an L2 table.
    tables: Counts,
    /// End of the last cluster that is in use.
    used_end_bytes: u64,
    report: CheckReport,
    control: Control<'a>,
}

impl<'a> Check<'a> {
    fn new(image: &'a Qcow2, findings_max: usize, control: Control<'a>) -> Result<Self> {
        let geometry = image.header.geometry;
        let file_bytes = image.file.size()?;
        let clusters = geometry.clusters(file_bytes);
        let too_large = || {
            Error::new(ErrorKind::TooLarge).detail(format!(
                "counting the {clusters} clusters of a file of {} takes too much memory",
                ByteSize(file_bytes)
            ))
        };
        Ok(Self {
            image,
            geometry,
            file_bytes,
            uses: Counts::new(clusters).ok_or_else(too_large)?,
            tables: Counts::new(clusters).ok_or_else(too_large)?,
            used_end_bytes: 0,
            report: CheckReport::new(findings_max, geometry.clusters(image.header.virtual_bytes)),
            control,
        })
    }

    /// Counts all references in the file.
    fn count_uses(&mut self) -> Result<()> {
        let header = &self.image.header;
        let (image, cluster_bytes) = (self.image, self.geometry.cluster_bytes());
        self.add(ByteRange::new(0, cluster_bytes), || "header".into());
        self.add(header.refcount_table_range(), || "refcount table".into());
        self.count_l1(header.l1_offset, header.l1_entries, "L1 table")?;
        let mut list_bytes = 0;
        let mut snapshots = Vec::new();
        read_snapshots(&*image.file, header, &mut |snapshot| {
            if header.version == Version::V3 && snapshot.virtual_bytes.is_none() {
                let index = snapshots.len();
                self.report.corrupt(format_args!(
                    "snapshot {index}: too little extra data for version 3"
                ));
            }
            list_bytes += snapshot.entry_bytes;
            snapshots.push((snapshot.l1_offset, snapshot.l1_entries));
            Ok(())
        })?;
        let list = ByteRange::at(header.snapshots.offset, list_bytes).expect("it was read");
        self.add(list, || "snapshot list".into());
        for (index, (offset, entries)) in snapshots.into_iter().enumerate() {
            self.count_l1(offset, entries, &format!("L1 table of snapshot {index}"))?;
        }
        self.count_bitmaps()?;
        self.count_refcount_blocks()?;
        self.count_tables()
    }

    /// An L1 table, and the places of its L2 tables.
    fn count_l1(&mut self, offset: u64, entries: u32, what: &str) -> Result<()> {
        let bytes = u64::from(entries) * 8;
        let range = ByteRange::at(offset, bytes).expect("validated with the header");
        self.add(range, || what.into());
        let mut first = 0;
        while first < u64::from(entries) {
            self.control.cancel.check()?;
            let count = L1_PIECE_ENTRIES.min(u64::from(entries) - first);
            let table = read_table(&*self.image.file, offset + first * 8, count)?;
            for (index, raw) in (first..).zip(table) {
                let entry = L1Entry(raw);
                if entry.reserved() != 0 {
                    self.report.corrupt(format_args!(
                        "{what}, entry {index}: reserved bits {:#x}",
                        entry.reserved()
                    ));
                }
                match entry.table(self.geometry, index, self.file_bytes) {
                    Ok(None) if entry.is_copied() => self
                        .report
                        .corrupt(format_args!("{what}, entry {index}: copied, and no table")),
                    Ok(None) => {}
                    Ok(Some(table)) => {
                        self.tables.add(table >> self.geometry.cluster_bits(), 1);
                        self.add_cluster(table, 1);
                    }
                    Err(error) => self.report.corrupt(format_args!("{what}: {error}")),
                }
            }
            first += count;
        }
        Ok(())
    }

    fn count_refcount_blocks(&mut self) -> Result<()> {
        let range = self.image.header.refcount_table_range();
        let table = read_table(&*self.image.file, range.start(), range.len() / 8)?;
        for (index, raw) in (0..).zip(table) {
            let entry = RefcountTableEntry(raw);
            if entry.reserved() != 0 {
                self.report.corrupt(format_args!(
                    "refcount table, entry {index}: reserved bits {:#x}",
                    entry.reserved()
                ));
            }
            match entry.block(self.geometry, index, self.file_bytes) {
                Ok(None) => {}
                Ok(Some(block)) => self.add_cluster(block, 1),
                Err(error) => self.report.corrupt(error),
            }
        }
        Ok(())
    }

    /// Each L2 table is counted once, its clusters once per reference to the table.
    fn count_tables(&mut self) -> Result<()> {
        let total = self.tables.nonzero();
        let mut at = 0;
        let mut done = 0;
        while let Some((cluster, times)) = self.tables.next_nonzero(at) {
            at = cluster + 1;
            self.control.cancel.check()?;
            let offset = cluster << self.geometry.cluster_bits();
            let entries = read_table(&*self.image.file, offset, self.geometry.l2_entries())?;
            for (index, raw) in (0..).zip(entries) {
                if raw != 0 {
                    self.count_entry(L2Entry(raw), times, offset, index);
                }
            }
            done += self.geometry.cluster_bytes();
            let total = total * self.geometry.cluster_bytes();
            self.control.report(Phase::Scan, done, total);
        }
        Ok(())
    }

    fn count_entry(&mut self, entry: L2Entry, times: u16, table: u64, index: u64) {
        let place = || format!("L2 table at {table:#x}, entry {index}");
        if entry.reserved() != 0 {
            let reserved = entry.reserved();
            self.report
                .corrupt(format_args!("{}: reserved bits {reserved:#x}", place()));
        }
        let rules = self.image.header.entry_rules();
        if rules.forbids(entry) {
            self.report.corrupt(format_args!(
                "{}: a zero cluster, which version 2 does not have",
                place()
            ));
        }
        // The location is given by table and index, because a table may be used at several guest
        // offsets.
        match entry.mapping(self.geometry, rules, 0) {
            Err(_) => {
                if !self.geometry.is_aligned(entry.offset()) {
                    self.report.corrupt(format_args!(
                        "{}: {:#x} is not the start of a cluster",
                        place(),
                        entry.offset()
                    ));
                }
                // The entry has a cluster nevertheless.
                if entry.offset() != 0 {
                    self.add_cluster_at(entry.offset(), times, place);
                }
            }
            Ok(Mapping::Compressed(compressed)) => {
                if entry.is_copied() {
                    self.report
                        .corrupt(format_args!("{}: compressed and marked as copied", place()));
                }
                let range = ByteRange::at(compressed.offset, compressed.length_bytes);
                let range = range.expect("offsets have fewer than 62 bits");
                self.add_times(range, times, place);
            }
            Ok(Mapping::Data(offset) | Mapping::Zero(Some(offset))) => {
                self.add_cluster_at(offset, times, place);
            }
            Ok(Mapping::Unallocated | Mapping::Zero(None)) => {}
        }
    }

    /// A guest cluster, which may be in another file.
    fn add_cluster_at(&mut self, offset: u64, times: u16, place: impl Fn() -> String) {
        if !self.image.header.has_data_file() {
            let end = offset + self.geometry.cluster_bytes();
            self.add_times(ByteRange::new(offset, end), times, place);
        }
    }

    fn add(&mut self, range: ByteRange, place: impl Fn() -> String) {
        self.add_times(range, 1, place);
    }

    fn add_cluster(&mut self, offset: u64, times: u16) {
        self.uses.add(offset >> self.geometry.cluster_bits(), times);
        let end = offset + self.geometry.cluster_bytes();
        self.used_end_bytes = self.used_end_bytes.max(end);
    }

    /// Counts all clusters that `range` touches; one that begins past the end of the file is a
    /// corruption.
    fn add_times(&mut self, range: ByteRange, times: u16, place: impl Fn() -> String) {
        if range.is_empty() {
            return;
        }
        let bits = self.geometry.cluster_bits();
        let last = (range.end() - 1) >> bits;
        if last >= self.uses.len() {
            self.report.corrupt(format_args!(
                "{}: {:#x} to {:#x} is past the end of the file",
                place(),
                range.start(),
                range.end()
            ));
            return;
        }
        for cluster in range.start() >> bits..=last {
            self.add_cluster(cluster << bits, times);
        }
    }

    /// Holds the refcounts against the uses.
    fn compare(&mut self) -> Result<()> {
        let image = self.image;
        let mut at = 0;
        self.report.image_end_bytes = self.used_end_bytes;
        for_each_block(image, self.uses.len(), &mut |first, block| {
            self.control.cancel.check()?;
            let end = (first + self.geometry.refcount_block_entries()).min(self.uses.len());
            debug_assert_eq!(at, first);
            for cluster in first..end {
                let stored = block.map_or(0, |block| block.get((cluster - first) as usize));
                let used = self.uses.get(cluster);
                if stored > 0 {
                    let end = (cluster + 1) << self.geometry.cluster_bits();
                    self.report.image_end_bytes = self.report.image_end_bytes.max(end);
                }
                if used == stored || (used == u64::from(u16::MAX) && stored > used) {
                    continue;
                }
                let offset = cluster << self.geometry.cluster_bits();
                let detail =
                    format_args!("cluster at {offset:#x}: used {used} times, counted as {stored}");
                if stored < used {
                    self.report.corrupt(detail)
                } else {
                    self.report.leak(detail)
                }
            }
            at = end;
            Ok(())
        })
    }
}

type Block<'a> = RefcountBlock<&'a [u8]>;

/// Visits the refcounts of the first `clusters`, a block at a time; `None` where there is no block
/// that can be read.
fn for_each_block(
    image: &Qcow2,
    clusters: u64,
    visit: &mut dyn FnMut(u64, Option<&Block<'_>>) -> Result<()>,
) -> Result<()> {
    let geometry = image.header.geometry;
    let file_bytes = image.file.size()?;
    let range = image.header.refcount_table_range();
    let table = read_table(&*image.file, range.start(), range.len() / 8)?;
    let mut bytes = vec![0; geometry.cluster_bytes() as usize];
    let blocks = clusters.div_ceil(geometry.refcount_block_entries());
    for index in 0..blocks {
        let entry = RefcountTableEntry(table.get(index as usize).copied().unwrap_or(0));
        let first = index * geometry.refcount_block_entries();
        match entry.block(geometry, index, file_bytes) {
            Ok(Some(offset)) => {
                image.file.read_at(&mut bytes, offset)?;
                visit(first, Some(&RefcountBlock::new(&bytes[..], geometry)))?;
            }
            // A wrong entry was counted as one already.
            Ok(None) | Err(_) => visit(first, None)?,
        }
    }
    Ok(())
}

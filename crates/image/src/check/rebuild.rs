//! Rebuilds refcounts and copied flags from the tables.
//!
//! For images with lazy refcounts whose user was killed (marked as dirty), as QEMU does on opening,
//! and for other wrong refcounts. The mark is cleared last, so an interrupted rebuild starts again.
//! Images with impossible entries, or with metadata that has another use, are not changed.

use std::mem::offset_of;
use std::ops::Range;
use std::sync::Arc;

use extant_space::{Control, Error, ErrorKind, Result, SpaceFile, SyncMode};

use super::Check;
use crate::format::{Incompatible, RawHeader, RefcountBlock, RefcountTableEntry, Version};
use crate::qcow2::{Qcow2, read_table};

/// Offset of the incompatible features.
const INCOMPATIBLE_FEATURES: u64 = 0x48;
const TABLE_BYTES_MAX: u64 = 8 << 20;

/// Sets every refcount and every copied flag to the references found; returns the number of
/// changes. Clears the dirty and corrupt bits. The file is open for writing under exclusive access.
///
/// # Errors
/// `Corrupt` for an image that this cannot repair: nothing is changed then. Those of
/// [`check`](super::check), and write errors.
pub fn rebuild_refcounts(file: Arc<dyn SpaceFile>, control: Control<'_>) -> Result<u64> {
    let image = Qcow2::open(file)?;
    let mut check = Check::new(&image, 1, control)?;
    check.count_uses()?;
    let wanted = Wanted::plan(&check)?;
    wanted.check(&check)?;
    wanted.make_room(&check)?;
    let features = image.header.incompatible;
    let marked = features | Incompatible::DIRTY;
    if image.header.version == Version::V3 && features != marked {
        write_features(&image, marked)?;
    }
    let counts = wanted.write_counts(&check)?;
    let is_one = |cluster| Some(wanted.count(cluster) == 1);
    let flags = check.write_flags(&is_one)?;
    if image.header.version == Version::V3 {
        let repaired = features - (Incompatible::DIRTY | Incompatible::CORRUPT);
        write_features(&image, repaired)?;
    }
    Ok(counts + flags)
}

fn write_features(image: &Qcow2, features: Incompatible) -> Result<()> {
    let bytes = features.bits().to_be_bytes();
    image.file.write_at(&bytes, INCOMPATIBLE_FEATURES)?;
    image.file.sync(SyncMode::Data)
}

fn unrepaired(detail: String) -> Error {
    Error::new(ErrorKind::Corrupt)
        .detail(detail)
        .advice("qemu-img check -r all may repair it; work on a copy")
}

/// The counts as they will be.
struct Wanted<'c> {
    uses: &'c super::Counts,
    /// Offsets of the refcount blocks, by index; those that are made as well.
    blocks: Vec<u64>,
    /// Clusters behind all that are in use: new blocks, then a new table.
    made: Range<u64>,
    /// The old table, where a new one takes its place.
    left: Range<u64>,
    /// Offset of the new table in bytes, and its clusters.
    table: u64,
    table_clusters: u64,
}

impl<'c> Wanted<'c> {
    /// Places for the blocks that are missing, and for a longer table if it takes one.
    fn plan(check: &'c Check<'_>) -> Result<Self> {
        let geometry = check.geometry;
        let bits = geometry.cluster_bits();
        let entries = geometry.refcount_block_entries();
        let header = &check.image.header;
        let range = header.refcount_table_range();
        let old = read_table(&*check.image.file, range.start(), range.len() / 8)?;
        let block_of = |index: u64| -> Result<Option<u64>> {
            let raw = old.get(index as usize).copied().unwrap_or(0);
            RefcountTableEntry(raw).block(geometry, index, check.file_bytes)
        };
        // Not at the end of the file, because a disk is longer than the image on it.
        let start = geometry.clusters(check.used_end_bytes);
        let (mut new_blocks, mut new_table) = (0, 0);
        let mut blocks = Vec::new();
        loop {
            let end = start + new_blocks + new_table;
            let count = end.div_ceil(entries).max(old.len() as u64);
            let mut next = start;
            blocks.clear();
            for index in 0..count {
                let covered = index * entries..(index + 1) * entries;
                let is_made = covered.start < end && covered.end > start && end > start;
                let is_used = || is_made || check.uses.has_any(covered.clone());
                blocks.push(match block_of(index)? {
                    Some(place) => place,
                    None if is_used() => {
                        next += 1;
                        (next - 1) << bits
                    }
                    None => 0,
                });
            }
            let needed = blocks.iter().rposition(|&place| place != 0);
            let needed = needed.map_or(0, |last| last as u64 + 1);
            let table = if needed > old.len() as u64 {
                geometry.clusters(needed * 8)
            } else {
                0
            };
            if next - start <= new_blocks && table <= new_table {
                break;
            }
            (new_blocks, new_table) = (new_blocks.max(next - start), new_table.max(table));
        }
        if new_table * geometry.cluster_bytes() > TABLE_BYTES_MAX {
            return Err(Error::new(ErrorKind::TooLarge)
                .detail("the refcount table of such small clusters cannot count the file"));
        }
        let moves = new_table > 0;
        Ok(Self {
            uses: &check.uses,
            blocks,
            made: start..start + new_blocks + new_table,
            left: if moves {
                range.start() >> bits..range.end() >> bits
            } else {
                0..0
            },
            table: if moves {
                (start + new_blocks) << bits
            } else {
                range.start()
            },
            table_clusters: if moves {
                new_table
            } else {
                header.refcount_table_clusters.into()
            },
        })
    }

    fn count(&self, cluster: u64) -> u64 {
        if self.made.contains(&cluster) {
            return 1;
        }
        if cluster >= self.uses.len() {
            return 0;
        }
        let uses = self.uses.get(cluster);
        uses - u64::from(self.left.contains(&cluster))
    }

    /// Refuses corruptions that new refcounts do not repair.
    fn check(&self, check: &Check<'_>) -> Result<()> {
        if check.report.corruptions > 0 {
            let found = check.report.findings.first();
            let found = found.map_or("", |found| &found.detail);
            return Err(unrepaired(format!(
                "{} entries cannot be, such as: {found}",
                check.report.corruptions
            )));
        }
        let (geometry, header) = (check.geometry, &check.image.header);
        let bits = geometry.cluster_bits();
        let clusters =
            |range: extant_space::ByteRange| range.start() >> bits..geometry.clusters(range.end());
        let old_blocks = self.blocks.iter().filter(|&&place| place != 0);
        let old_blocks = old_blocks.map(|place| place >> bits..(place >> bits) + 1);
        let metadata = [
            0..1,
            clusters(header.refcount_table_range()),
            clusters(header.l1_range()),
        ];
        for cluster in metadata.into_iter().chain(old_blocks).flatten() {
            if cluster < self.uses.len() && self.uses.get(cluster) > 1 {
                return Err(unrepaired(format!(
                    "metadata at {:#x} is used for something else as well",
                    cluster << bits
                )));
            }
        }
        let mut at = 0;
        while let Some((cluster, uses)) = self.uses.next_nonzero(at) {
            check.control.cancel.check()?;
            at = cluster + 1;
            let tables = check.tables.get(cluster);
            if tables > 0 && tables != u64::from(uses) {
                return Err(unrepaired(format!(
                    "an L2 table at {:#x} is used for something else as well",
                    cluster << bits
                )));
            }
            if uses == u16::MAX || u64::from(uses) > geometry.refcount_max() {
                return Err(unrepaired(format!(
                    "the cluster at {:#x} has more references than its refcount of {} bits can hold",
                    cluster << bits,
                    geometry.refcount_bits()
                )));
            }
        }
        Ok(())
    }

    /// The file grows to hold the new blocks.
    fn make_room(&self, check: &Check<'_>) -> Result<()> {
        let end = self.made.end << check.geometry.cluster_bits();
        if !self.made.is_empty() && end > check.file_bytes {
            check.image.file.resize(end)
        } else {
            Ok(())
        }
    }

    /// Writes the blocks that differ, and the table if it does; durable on return.
    fn write_counts(&self, check: &Check<'_>) -> Result<u64> {
        let geometry = check.geometry;
        let file = &check.image.file;
        let entries = geometry.refcount_block_entries();
        let mut changed = 0;
        let mut bytes = vec![0; geometry.cluster_bytes() as usize];
        for (index, &place) in (0..).zip(&self.blocks) {
            if place == 0 {
                continue;
            }
            check.control.cancel.check()?;
            let is_new = self.made.contains(&(place >> geometry.cluster_bits()));
            bytes.fill(0);
            if !is_new {
                file.read_at(&mut bytes, place)?;
            }
            let before = changed;
            let mut block = RefcountBlock::new(&mut bytes[..], geometry);
            for at in 0..entries {
                let wanted = self.count(index * entries + at);
                if block.get(at as usize) != wanted {
                    block.set(at as usize, wanted);
                    changed += 1;
                }
            }
            if is_new || changed > before {
                file.write_at(&bytes, place)?;
            }
        }
        file.sync(SyncMode::Data)?;
        if self.made.is_empty() {
            return Ok(changed);
        }
        let mut table = self.blocks.clone();
        table.resize((self.table_clusters * geometry.l2_entries()) as usize, 0);
        let table: Vec<u8> = table.iter().flat_map(|entry| entry.to_be_bytes()).collect();
        file.write_at(&table, self.table)?;
        file.sync(SyncMode::Data)?;
        if !self.left.is_empty() {
            // One sector of the header.
            let mut fields = self.table.to_be_bytes().to_vec();
            fields.extend((self.table_clusters as u32).to_be_bytes());
            file.write_at(&fields, offset_of!(RawHeader, refcount_table_offset) as u64)?;
            file.sync(SyncMode::Data)?;
        }
        Ok(changed)
    }
}

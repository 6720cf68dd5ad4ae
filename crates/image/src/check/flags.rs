//! Sets the copied flags of the active tables from the refcounts.

use extant_space::{Result, SyncMode};

use super::Check;
use crate::format::{L1Entry, L2Entry, Mapping};
use crate::qcow2::{Qcow2, read_table};

impl Check<'_> {
    /// Sets the copied flags as `is_one` says of the refcount of a cluster; `None` leaves them
    /// unchanged. Number of changed ones; durable on return.
    pub(super) fn write_flags(&self, is_one: &dyn Fn(u64) -> Option<bool>) -> Result<u64> {
        let geometry = self.geometry;
        let bits = geometry.cluster_bits();
        let image = self.image;
        let rules = image.header.entry_rules();
        let mut changed = 0;
        let mut l1 = image.l1.clone();
        for (index, raw) in (0..).zip(&mut l1) {
            self.control.cancel.check()?;
            let entry = L1Entry(*raw);
            let Some(table) = entry.table(geometry, index, self.file_bytes)? else {
                continue;
            };
            let is_copied = is_one(table >> bits).unwrap_or(entry.is_copied());
            let flagged = entry.with_copied(is_copied);
            changed += u64::from(flagged.raw() != *raw);
            *raw = flagged.raw();
            let mut entries = read_table(&*image.file, table, geometry.l2_entries())?;
            let before = changed;
            for raw in &mut entries {
                let entry = L2Entry(*raw);
                let place = match entry.mapping(geometry, rules, 0)? {
                    Mapping::Data(place) | Mapping::Zero(Some(place)) => place,
                    _ => continue,
                };
                let is_one = if rules.has_data_file {
                    Some(true)
                } else {
                    is_one(place >> bits)
                };
                let flagged = entry.with_copied(is_one.unwrap_or(entry.is_copied()));
                changed += u64::from(flagged != entry);
                *raw = flagged.raw();
            }
            if changed > before {
                write_entries(image, table, &entries)?;
            }
        }
        if l1 != image.l1 {
            write_entries(image, image.header.l1_offset, &l1)?;
        }
        image.file.sync(SyncMode::Data)?;
        Ok(changed)
    }
}

fn write_entries(image: &Qcow2, place: u64, entries: &[u64]) -> Result<()> {
    let bytes: Vec<u8> = entries.iter().flat_map(|raw| raw.to_be_bytes()).collect();
    image.file.write_at(&bytes, place)
}

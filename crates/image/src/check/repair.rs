//! Lowers refcounts that exceed the references.
//!
//! Only these counts are changed, and the copied flags of clusters that have one reference
//! afterwards, and only in an image without other corruptions. The flags are written first, because
//! the counts show which they are: another run completes an interrupted repair.

use std::collections::HashSet;
use std::sync::Arc;

use extant_space::{Control, Error, ErrorKind, Result, SpaceFile, SyncMode};

use super::{Check, for_each_block};
use crate::format::{RefcountBlock, RefcountTableEntry};
use crate::qcow2::{Qcow2, read_table};

/// Lowers refcounts to the references where they are higher; returns their number. The file is open
/// for writing under exclusive access.
///
/// # Errors
/// `Corrupt` for corruptions that this cannot repair: nothing is changed then. Those of
/// [`check`](super::check), and write errors.
pub fn repair_leaks(file: Arc<dyn SpaceFile>, control: Control<'_>) -> Result<u64> {
    let image = Qcow2::open(file)?;
    let mut check = Check::new(&image, 0, control)?;
    check.count_uses()?;
    check.compare()?;
    let lowered = clusters_to_lower(&check)?;
    check.check_active(&|cluster| lowered.contains(&cluster))?;
    if check.report.corruptions > 0 {
        return Err(Error::new(ErrorKind::Corrupt).detail(format!(
            "{} corruptions: leaks are not repaired before those",
            check.report.corruptions
        )));
    }
    if !lowered.is_empty() {
        let is_one = |cluster| (lowered.contains(&cluster)).then(|| check.uses.get(cluster) == 1);
        check.write_flags(&is_one)?;
    }
    let geometry = image.header.geometry;
    let range = image.header.refcount_table_range();
    let table = read_table(&*image.file, range.start(), range.len() / 8)?;
    let mut bytes = vec![0; geometry.cluster_bytes() as usize];
    let mut repaired = 0;
    for (index, raw) in (0..).zip(table) {
        let entry = RefcountTableEntry(raw).block(geometry, index, check.file_bytes)?;
        let first = index * geometry.refcount_block_entries();
        let (Some(offset), true) = (entry, first < check.uses.len()) else {
            continue;
        };
        control.cancel.check()?;
        image.file.read_at(&mut bytes, offset)?;
        let mut block = RefcountBlock::new(&mut bytes[..], geometry);
        let end = (first + geometry.refcount_block_entries()).min(check.uses.len());
        let before = repaired;
        for cluster in first..end {
            let at = (cluster - first) as usize;
            let uses = check.uses.get(cluster);
            if uses < u16::MAX.into() && block.get(at) > uses {
                block.set(at, uses);
                repaired += 1;
            }
        }
        if repaired > before {
            image.file.write_at(&bytes, offset)?;
        }
    }
    image.file.sync(SyncMode::Data)?;
    Ok(repaired)
}

/// Clusters in use with too high a refcount.
fn clusters_to_lower(check: &Check<'_>) -> Result<HashSet<u64>> {
    let mut found = HashSet::new();
    for_each_block(check.image, check.uses.len(), &mut |first, block| {
        let end = (first + check.geometry.refcount_block_entries()).min(check.uses.len());
        for cluster in first..end {
            let stored = block.map_or(0, |block| block.get((cluster - first) as usize));
            let uses = check.uses.get(cluster);
            if uses > 0 && uses < u16::MAX.into() && stored > uses {
                found.insert(cluster);
            }
        }
        Ok(())
    })?;
    Ok(found)
}

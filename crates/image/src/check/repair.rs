//! Gives back what nothing uses.
//!
//! Only counts of clusters without any use are changed, to 0, and only in an image without corruptions: wherever the work is cut
//! off, what is left are fewer leaks.

use std::sync::Arc;

use extant_space::{Control, Error, ErrorKind, Result, SpaceFile, SyncMode};

use super::Check;
use crate::format::{RefcountBlock, RefcountTableEntry};
use crate::qcow2::{Qcow2, read_table};

/// Sets the refcounts of clusters that nothing uses to 0; how many there were. The file is open for writing, and nobody else uses it.
///
/// # Errors
/// `Corrupt` when there are corruptions as well: nothing is changed then. Those of [`check`](super::check), and of writing.
pub fn repair_leaks(file: Arc<dyn SpaceFile>, control: Control<'_>) -> Result<u64> {
    let image = Qcow2::open(file)?;
    let mut check = Check::new(&image, 0, control)?;
    check.count_uses()?;
    check.compare()?;
    check.check_active()?;
    if check.report.corruptions > 0 {
        return Err(Error::new(ErrorKind::Corrupt).detail(format!(
            "{} corruptions: leaks are not repaired before those",
            check.report.corruptions
        )));
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
            if check.uses.get(cluster) == 0 && block.get(at) != 0 {
                block.set(at, 0);
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

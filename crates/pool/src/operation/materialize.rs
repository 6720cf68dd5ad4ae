//! Holes and unwritten parts of a volume become written.

use std::sync::Arc;

use extant_hostfs::Access;
use extant_image::Format;
use extant_space::{Control, Result};

use super::open_to_undo;
use crate::format::{Facts, known, qcow2};
use crate::job::Materialize;
use crate::storage::{Done, MakeWritten, Storage, VolumeFile};
use crate::volume_lock::lock_alone;
use crate::work::Work;

pub(super) fn perform(
    work: &Work<'_>,
    materialize: &Materialize,
    control: Control<'_>,
) -> Result<Done> {
    let file = work.storage.open(&materialize.volume, Access::ReadWrite)?;
    let file: Arc<dyn VolumeFile> = Arc::from(file);
    let _locked = lock_alone(&*file)?;
    if known(&*file, &materialize.volume)? == Format::Qcow2 {
        let change = qcow2::Change::new(&file, work.pace(), materialize.unshare)?;
        if work.is_resumed {
            change.reclaim(control)?;
        }
        return change.materialize(control).map(|()| Done::default());
    }
    let wanted = MakeWritten {
        range: None,
        unshare: materialize.unshare,
        is_unknown_to_others: false,
        pace: work.pace(),
    };
    file.make_written(&wanted, control)
}

/// Materialized space is harmless and is kept; space that was only allocated is freed.
pub(super) fn roll_back(storage: &dyn Storage, materialize: &Materialize) -> Result<()> {
    match open_to_undo(storage, &materialize.volume)? {
        Some(file) if Facts::of(&*file, &materialize.volume)?.format == Some(Format::Qcow2) => {
            qcow2::undo(&file, None)
        }
        _ => Ok(()),
    }
}

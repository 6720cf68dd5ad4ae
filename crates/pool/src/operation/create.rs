//! A new volume.
//!
//! The storage makes the file, as `extant create` does; what a killed run left is taken up.

use extant_space::{Control, Error, ErrorKind, Result, SyncMode};

use super::publish;
use crate::folder::OnExisting;
use crate::job::{CreateVolume, Work};
use crate::storage::{NewFile, complete_name};
use crate::volume::keep;

pub(super) fn perform(work: &Work<'_>, create: &CreateVolume, control: Control<'_>) -> Result<()> {
    create.format.check_supports("creation")?;
    let name = complete_name(work.record.id);
    let new = NewFile {
        size_bytes: create.capacity_bytes,
        allocation_bytes: create.allocation_bytes,
        preallocation: create.preallocation,
        mode: create.mode,
        nocow: create.nocow,
    };
    work.storage
        .create_work(&name, &new, work.pace(), control)?;
    if let Some(kept) = &create.kept {
        let file = work.storage.open_work(&name)?;
        let file = file.ok_or_else(|| Error::new(ErrorKind::NotFound))?;
        keep(&*file, kept)?;
        file.sync(SyncMode::All)?;
    }
    publish(work, &name, OnExisting::Refuse)
}

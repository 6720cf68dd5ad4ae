//! A new volume.
//!
//! The storage makes the file as `extant create` does; the file of a killed process is adopted.

use extant_image::{Format, NewImage};
use extant_space::{Control, Error, ErrorKind, Result, SyncMode};

use super::publish;
use crate::folder::OnExisting;
use crate::format::say;
use crate::job::{CreateVolume, Done, Work};
use crate::storage::{NewFile, complete_name};
use crate::volume::keep;

pub(super) fn perform(
    work: &Work<'_>,
    create: &CreateVolume,
    control: Control<'_>,
) -> Result<Done> {
    let name = complete_name(work.record.id);
    let image = NewImage::new(&create.image())?;
    let new = NewFile {
        image,
        mode: create.mode,
        nocow: create.nocow,
    };
    let done = work
        .storage
        .create_work(&name, &new, work.pace(), control)?;
    let file = work.storage.open_work(&name)?;
    let file = file.ok_or_else(|| Error::new(ErrorKind::NotFound))?;
    say(&*file, &create.volume, create.format)?;
    if let Some(kept) = &create.kept {
        keep(&*file, kept)?;
    }
    // A raw volume that has lost the word in a crash is raw nevertheless.
    if create.kept.is_some() || create.format != Format::Raw {
        file.sync(SyncMode::All)?;
    }
    publish(work, &name, OnExisting::Refuse)?;
    Ok(done)
}

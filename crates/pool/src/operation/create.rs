//! A new volume.
//!
//! The storage makes the file as `extant create` does; the file of a killed process is adopted.

use extant_image::{Format, NewImage};
use extant_provision::Provisioner;
use extant_space::{ByteRange, Control, Error, ErrorKind, Result, SyncMode};

use super::publish;
use crate::foreign::store_foreign;
use crate::format::store_format;
use crate::job::{CreateVolume, Verification, complete_name};
use crate::storage::{Done, NewFile};
use crate::work::Work;
use extant_hostfs::Existing;

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
        .create_work(&name, &new, work.pace(), work, control)?;
    let file = work.storage.open_work(&name)?;
    let file = file.ok_or_else(|| Error::new(ErrorKind::NotFound))?;
    if create.verification == Verification::Full {
        let whole = ByteRange::new(0, file.size()?);
        Provisioner::new(&*file, whole, control).verify_all_zeros()?;
    }
    store_format(&*file, &create.volume, create.format)?;
    if let Some(foreign) = &create.foreign {
        store_foreign(&*file, foreign)?;
    }
    // A raw volume that has lost the word in a crash is raw nevertheless.
    if create.foreign.is_some() || create.format != Format::Raw {
        file.sync(SyncMode::All)?;
    }
    publish(work, &name, Existing::Refuse)?;
    Ok(done)
}

//! A new volume with the content of another.

use extant_hostfs::{Access, Existing};
use extant_image::{Format, Use};
use extant_space::{Control, Error, ErrorKind, Result, SyncMode};

use super::copy::{Target, copy};
use super::publish;
use crate::format;
use crate::job::{CloneMethod, CloneVolume, copy_name};
use crate::storage::VolumeFile;
use crate::volume_lock::lock_for_reading;
use crate::work::Work;

pub(super) fn perform(work: &Work<'_>, clone: &CloneVolume, control: Control<'_>) -> Result<()> {
    let name = copy_name(work.record.id);
    let source = work.storage.open(&clone.source, Access::Read)?;
    let _locked = lock_for_reading(&*source)?;
    let format = format::known(&*source, &clone.source)?;
    let _held = match format {
        Format::Qcow2 => Some(format::qcow2::hold(&*source, Use::Read)?),
        Format::Raw => None,
    };
    let (target, state) = open_target(work)?;
    let shared = match (clone.method, state) {
        // What a copy has begun, a copy ends.
        (CloneMethod::Copy, _) | (CloneMethod::Auto, Target::Begun) => false,
        (CloneMethod::Auto | CloneMethod::Reflink, _) => {
            let shared = target.share_space_of(&*source)?;
            if !shared && clone.method == CloneMethod::Reflink {
                return Err(Error::new(ErrorKind::Unsupported)
                    .detail("this file system cannot share space between files (reflink)"));
            }
            shared
        }
    };
    if shared {
        target.sync(SyncMode::All)?
    } else {
        copy(&*source, &*target, state, &|| work.rate(), control)
            .map_err(|error| error.at(source.path()))?
    }
    format::store_format(&*target, &clone.volume, format)?;
    target.set_mode(clone.mode)?;
    publish(work, &name, Existing::Refuse)
}

/// The file that a job copies to, made or found.
pub(super) fn open_target(work: &Work<'_>) -> Result<(Box<dyn VolumeFile>, Target)> {
    let name = copy_name(work.record.id);
    match work.storage.open_work(&name)? {
        Some(file) => Ok((file, Target::Begun)),
        None => Ok((work.storage.new_work(&name)?, Target::Empty)),
    }
}

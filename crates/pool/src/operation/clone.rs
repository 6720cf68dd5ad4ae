//! A new volume with the content of another.

use extant_hostfs::{Access, Existing};
use extant_image::{Format, LockAccess};
use extant_space::{Control, Error, ErrorKind, Result, SyncMode};

use super::copy::{TargetContent, copy};
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
        Format::Qcow2 => Some(format::qcow2::hold(&*source, LockAccess::Read)?),
        Format::Raw => None,
    };
    let (target, state) = open_target(work, source.size()?)?;
    let shared = match (clone.method, state) {
        // A clone that began by copying continues by copying.
        (CloneMethod::Copy, _) | (CloneMethod::Auto, TargetContent::Begun) => false,
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
        copy(&*source, &*target, state, work, control).map_err(|error| error.at(source.path()))?
    }
    format::store_format(&*target, &clone.volume, format)?;
    target.set_mode(clone.mode)?;
    publish(work, &name, Existing::Refuse)
}

/// The file that a job copies `size_bytes` to, made or found.
pub(super) fn open_target(
    work: &Work<'_>,
    size_bytes: u64,
) -> Result<(Box<dyn VolumeFile>, TargetContent)> {
    let name = copy_name(work.record.id);
    match work.storage.open_work(&name)? {
        Some(file) => Ok((file, TargetContent::Begun)),
        None => Ok((
            work.storage.new_work(&name, size_bytes)?,
            TargetContent::Empty,
        )),
    }
}

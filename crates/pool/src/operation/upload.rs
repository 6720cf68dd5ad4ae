//! A volume gets the content of a file.

use extant_hostfs::{Access, Existing, HostFile};
use extant_image::{Format, LockAccess};
use extant_space::{Control, Result, SpaceFile};

use super::clone::open_target;
use super::copy::copy;
use super::publish;
use crate::format::{Trust, check_content, of_content, qcow2, store_format};
use crate::job::{Upload, copy_name};
use crate::volume_lock::{check_not_open, lock_alone};
use crate::work::Work;

/// Checks the format of an upload.
///
/// # Errors
/// `InvalidArgument` for an image that names other files, for content that contradicts the default
/// format, and for an invalid header.
pub(crate) fn content_format(upload: &Upload, file: &dyn SpaceFile) -> Result<Format> {
    let format = of_content(file, upload.format, &upload.volume)?;
    let trust = Trust {
        backing: upload.allow_backing,
    };
    check_content(file, format, trust).map(|()| format)
}

pub(super) fn perform(work: &Work<'_>, upload: &Upload, control: Control<'_>) -> Result<()> {
    let source = HostFile::open(&upload.source, Access::Read)?;
    let format = content_format(upload, &source).map_err(|error| error.at(source.path()))?;
    let _held = match format {
        Format::Qcow2 => Some(qcow2::hold(&source, LockAccess::Read)?),
        Format::Raw => None,
    };
    let is_there = work.storage.has_name(&upload.volume)?;
    let replaced = if upload.replace && is_there {
        Some(work.storage.open(&upload.volume, Access::Read)?)
    } else {
        None
    };
    let _locked = replaced.as_deref().map(lock_alone).transpose()?;
    if let Some(file) = replaced.as_deref() {
        check_not_open(file)?;
    }
    let (target, state) = open_target(work, source.size()?)?;
    copy(&source, &*target, state, work, control).map_err(|error| error.at(source.path()))?;
    // The copy is checked: the source may have changed since the job was made.
    let format = content_format(upload, &*target).map_err(|error| error.about(source.path()))?;
    store_format(&*target, &upload.volume, format)?;
    target.set_mode(upload.mode)?;
    let existing = match replaced {
        Some(_) => Existing::Replace,
        None => Existing::Refuse,
    };
    publish(work, &copy_name(work.record.id), existing)
}

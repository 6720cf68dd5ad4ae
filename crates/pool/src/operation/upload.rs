//! A volume gets the content of a file.

use extant_hostfs::{Access, HostFile};
use extant_space::{Control, Result};

use super::clone::open_target;
use super::copy::copy;
use super::publish;
use crate::folder::OnExisting;
use crate::job::{Upload, Work};
use crate::storage::copy_name;
use crate::volume::{check_nobody_has_it_open, lock_alone};

pub(super) fn perform(work: &Work<'_>, upload: &Upload, control: Control<'_>) -> Result<()> {
    let source = HostFile::open(&upload.source, Access::Read)?;
    let is_there = work.storage.has_name(&upload.volume)?;
    let replaced = match upload.replace && is_there {
        true => Some(work.storage.open(&upload.volume, Access::Read)?),
        false => None,
    };
    let _locked = replaced.as_deref().map(lock_alone).transpose()?;
    if let Some(file) = replaced.as_deref() {
        check_nobody_has_it_open(file)?;
    }
    let (target, state) = open_target(work)?;
    copy(&source, &*target, state, &|| work.rate(), control)
        .map_err(|error| error.at(source.path()))?;
    target.set_mode(upload.mode)?;
    let existing = match replaced {
        Some(_) => OnExisting::Replace,
        None => OnExisting::Refuse,
    };
    publish(work, &copy_name(work.record.id), existing)
}

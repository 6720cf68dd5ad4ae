//! A volume gets the content of a file.

use extant_hostfs::{Access, HostFile};
use extant_space::{Control, Result};
use rustix::fs::OFlags;

use super::clone::{open_target, set_mode};
use super::copy::copy;
use super::publish;
use crate::folder::OnExisting;
use crate::job::{Upload, Work};
use crate::state::copy_name;
use crate::volume::{check_nobody_has_it_open, lock_alone};

pub(super) fn perform(work: &Work<'_>, upload: &Upload, control: Control<'_>) -> Result<()> {
    let source = HostFile::open(&upload.source, Access::Read)?;
    let is_there = work.pool.folder().stat(upload.volume.as_str())?.is_some();
    let replaced = match upload.replace && is_there {
        true => Some(work.pool.open_volume(&upload.volume, OFlags::RDONLY)?),
        false => None,
    };
    let _locked = replaced.as_ref().map(lock_alone).transpose()?;
    if let Some(file) = &replaced {
        check_nobody_has_it_open(file)?;
    }
    let (target, state) = open_target(work)?;
    copy(&source, &target, state, &|| work.rate(), control)?;
    set_mode(&target, upload.mode)?;
    let existing = match replaced {
        Some(_) => OnExisting::Replace,
        None => OnExisting::Refuse,
    };
    publish(work, &copy_name(work.record.id), existing)
}

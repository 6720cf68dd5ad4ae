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
    let replaced =
        match upload.replace && work.pool.folder().stat(upload.volume.as_str())?.is_some() {
            true => {
                let file = work.pool.open_volume(&upload.volume, OFlags::RDONLY)?;
                lock_alone(&file)?;
                check_nobody_has_it_open(&file)?;
                Some(file)
            }
            false => None,
        };
    let (target, state) = open_target(work)?;
    copy(&source, &target, state, &|| work.rate(), control)?;
    set_mode(&target, upload.mode)?;
    let existing = match replaced {
        Some(_) => OnExisting::Replace,
        None => OnExisting::Refuse,
    };
    publish(work, &copy_name(work.record.id), existing)
}

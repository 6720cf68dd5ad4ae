//! A new volume with the content of another.

use extant_hostfs::HostFile;
use extant_space::{Control, Error, ErrorKind, Result, SpaceFile, SyncMode};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::copy::{Target, copy};
use super::publish;
use crate::folder::OnExisting;
use crate::job::{CloneMethod, CloneVolume, Work};
use crate::state::copy_name;
use crate::volume::{file_error, lock_for_reading};

pub(super) fn perform(work: &Work<'_>, clone: &CloneVolume, control: Control<'_>) -> Result<()> {
    let name = copy_name(work.record.id);
    let source = work.pool.open_volume(&clone.source, OFlags::RDONLY)?;
    let _locked = lock_for_reading(&source)?;
    let (target, state) = open_target(work)?;
    let shared = match (clone.method, state) {
        // What a copy has begun, a copy ends.
        (CloneMethod::Copy, _) | (CloneMethod::Auto, Target::Begun) => false,
        (CloneMethod::Auto | CloneMethod::Reflink, _) => {
            match rustix::fs::ioctl_ficlone(target.as_file(), source.as_file()) {
                Ok(()) => true,
                Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL | Errno::NOSYS)
                    if clone.method == CloneMethod::Auto =>
                {
                    false
                }
                Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL | Errno::NOSYS) => {
                    return Err(Error::new(ErrorKind::Unsupported)
                        .detail("this file system cannot share space between files (reflink)"));
                }
                Err(errno) => return Err(file_error(&target, errno).during("clone")),
            }
        }
    };
    match shared {
        true => target.sync(SyncMode::All)?,
        false => copy(&source, &target, state, &|| work.rate(), control)?,
    }
    set_mode(&target, clone.mode)?;
    publish(work, &name, OnExisting::Refuse)
}

/// The file that a job copies to, made or found.
pub(super) fn open_target(work: &Work<'_>) -> Result<(HostFile, Target)> {
    let name = copy_name(work.record.id);
    let folder = &work.state.work;
    let (file, state) = match folder.stat(&name)? {
        None => (folder.new_file(&name)?, Target::Empty),
        Some(_) => (folder.file(&name, OFlags::RDWR)?, Target::Begun),
    };
    Ok((
        HostFile::from_file(file, &folder.path().join(&name))?,
        state,
    ))
}

pub(super) fn set_mode(file: &HostFile, mode: u32) -> Result<()> {
    rustix::fs::fchmod(file.as_file(), Mode::from_raw_mode(mode))
        .and_then(|()| rustix::fs::fsync(file.as_file()))
        .map_err(|errno| file_error(file, errno).during("set mode"))
}

//! A file gets the content of a volume. It is created in the directory of its final name, outside
//! of the pool.

use std::fs::File;
use std::path::Path;

use extant_hostfs::{Access, Directory, Existing, HostFile, remove_soon};
use extant_image::{Format, LockAccess};
use extant_space::{Control, Error, ErrorKind, Remedy, Result};
use rustix::fs::OFlags;

use super::copy::{TargetContent, copy};
use crate::format::{Facts, qcow2};
use crate::job::{Download, JobId, MadeFile};
use crate::volume_lock::lock_for_reading;
use crate::work::Work;

pub(super) fn perform(work: &Work<'_>, download: &Download, control: Control<'_>) -> Result<()> {
    let source = work.storage.open(&download.volume, Access::Read)?;
    let _locked = lock_for_reading(&*source)?;
    let _held = match Facts::of(&*source, &download.volume)?.format {
        Some(Format::Qcow2) => Some(qcow2::hold(&*source, LockAccess::Read)?),
        Some(Format::Raw) | None => None,
    };
    let (dir, name) = place_of(&download.target)?;
    if !download.replace && dir.stat(name)?.is_some() {
        return Err(Error::new(ErrorKind::AlreadyExists)
            .at(&download.target)
            .remedy(Remedy::Replace));
    }
    let partial = partial_name(work.pool_identity, work.record.id);
    let (file, state) = open_partial(work, &dir, &partial)?;
    let target = HostFile::from_file(file, &download.target)?;
    copy(&*source, &target, state, work, control).map_err(|error| error.at(source.path()))?;
    work.begin_publication()?;
    let existing = if download.replace {
        Existing::Replace
    } else {
        Existing::Refuse
    };
    dir.rename(&partial, &dir, name, existing)?;
    dir.sync()
}

/// The unfinished file, new or existing. A user who can write to the directory may have placed
/// another file under its name, also one that belongs to this user. Only the file that this job has
/// made is adopted; any other is removed unread.
fn open_partial(work: &Work<'_>, dir: &Directory, name: &str) -> Result<(File, TargetContent)> {
    if let Some(made) = work.made()
        && MadeFile::at(dir, name)? == Some(made)
    {
        let file = dir.file(name, OFlags::RDWR)?;
        if MadeFile::of(&file)? == made {
            return Ok((file, TargetContent::Begun));
        }
    }
    dir.remove(name)?;
    let file = dir.new_file(name)?;
    work.set_made(MadeFile::of(&file)?)?;
    Ok((file, TargetContent::Empty))
}

pub(super) fn roll_back(pool_identity: (u64, u64), id: JobId, download: &Download) -> Result<()> {
    let (dir, _) = match place_of(&download.target) {
        Ok(place) => place,
        // Then no part of it exists.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    match remove_soon(&dir, partial_name(pool_identity, id).as_ref()) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error.about(&download.target)),
        _ => Ok(()),
    }
}

/// The file that the job has `made` has its name.
pub(super) fn was_published(
    pool_identity: (u64, u64),
    id: JobId,
    download: &Download,
    made: Option<MadeFile>,
) -> Result<bool> {
    let (dir, name) = match place_of(&download.target) {
        Ok(place) => place,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let found = MadeFile::at(&dir, name)?;
    let was_published =
        dir.stat(partial_name(pool_identity, id))?.is_none() && found.is_some() && found == made;
    if was_published {
        // The process may have ended before it did so.
        dir.sync()?;
    }
    Ok(was_published)
}

/// Unique to this job of this pool: jobs of several pools may download to one place.
fn partial_name(pool_identity: (u64, u64), id: JobId) -> String {
    format!(
        ".extant-download-{:x}-{:x}-{id}",
        pool_identity.0, pool_identity.1
    )
}

fn place_of(target: &Path) -> Result<(Directory, &str)> {
    let name = target.file_name().and_then(|name| name.to_str());
    match (target.parent(), name) {
        (Some(parent), Some(name)) => Ok((Directory::open(parent)?, name)),
        _ => Err(Error::new(ErrorKind::InvalidArgument)
            .at(target)
            .detail("not the name of a file, in UTF-8")),
    }
}

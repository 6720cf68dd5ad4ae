//! A file gets the content of a volume. It is made beside its name, outside of the pool.

use std::fs::File;
use std::path::Path;

use extant_hostfs::{Access, HostFile, remove_soon};
use extant_image::{Format, Use};
use extant_space::{Control, Error, ErrorKind, Result};
use rustix::fs::OFlags;

use super::copy::{Target, copy};
use crate::folder::{Folder, OnExisting};
use crate::format::{Facts, qcow2};
use crate::job::{Download, JobId, MadeFile, Work};
use crate::pool::Pool;
use crate::volume::lock_for_reading;

pub(super) fn perform(work: &Work<'_>, download: &Download, control: Control<'_>) -> Result<()> {
    let source = work.storage.open(&download.volume, Access::Read)?;
    let _locked = lock_for_reading(&*source)?;
    let _held = match Facts::of(&*source, &download.volume)?.format {
        Some(Format::Qcow2) => Some(qcow2::hold(&*source, Use::Read)?),
        Some(Format::Raw) | None => None,
    };
    let (folder, name) = place_of(&download.target)?;
    if !download.replace && folder.stat(name)?.is_some() {
        return Err(Error::new(ErrorKind::AlreadyExists)
            .at(&download.target)
            .advice("--force replaces it"));
    }
    let partial = partial_name(work.pool, work.record.id)?;
    let (file, state) = open_partial(work, &folder, &partial)?;
    let target = HostFile::from_file(file, &download.target)?;
    copy(&*source, &target, state, &|| work.rate(), control)
        .map_err(|error| error.at(source.path()))?;
    work.begin_publication()?;
    let existing = if download.replace {
        OnExisting::Replace
    } else {
        OnExisting::Refuse
    };
    folder.rename(&partial, &folder, name, existing)?;
    folder.sync()
}

/// The unfinished file, new or existing. A user who can write to the directory may have placed
/// another file under its name, also one that belongs to this user. Only the file that this job has
/// made is adopted; any other is removed unread.
fn open_partial(work: &Work<'_>, folder: &Folder, name: &str) -> Result<(File, Target)> {
    if let Some(made) = work.made()
        && MadeFile::at(folder, name)? == Some(made)
    {
        let file = folder.file(name, OFlags::RDWR)?;
        if MadeFile::of(&file)? == made {
            return Ok((file, Target::Begun));
        }
    }
    folder.remove(name)?;
    let file = folder.new_file(name)?;
    work.set_made(MadeFile::of(&file)?)?;
    Ok((file, Target::Empty))
}

pub(super) fn roll_back(pool: &Pool, id: JobId, download: &Download) -> Result<()> {
    let (folder, _) = match place_of(&download.target) {
        Ok(place) => place,
        // Then nothing of it is there.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    match remove_soon(&folder, partial_name(pool, id)?.as_ref()) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error.about(&download.target)),
        _ => Ok(()),
    }
}

/// The file that the job has `made` has its name.
pub(super) fn was_published(
    pool: &Pool,
    id: JobId,
    download: &Download,
    made: Option<MadeFile>,
) -> Result<bool> {
    let (folder, name) = place_of(&download.target)?;
    let found = MadeFile::at(&folder, name)?;
    Ok(folder.stat(&partial_name(pool, id)?)?.is_none() && found.is_some() && found == made)
}

/// Of this pool's job alone: jobs of several pools may download to one place.
fn partial_name(pool: &Pool, id: JobId) -> Result<String> {
    let pool = pool.identity()?;
    Ok(format!(".extant-download-{:x}-{:x}-{id}", pool.0, pool.1))
}

fn place_of(target: &Path) -> Result<(Folder, &str)> {
    let name = target.file_name().and_then(|name| name.to_str());
    match (target.parent(), name) {
        (Some(parent), Some(name)) => Ok((Folder::open(parent)?, name)),
        _ => Err(Error::new(ErrorKind::InvalidArgument)
            .at(target)
            .detail("not the name of a file, in UTF-8")),
    }
}

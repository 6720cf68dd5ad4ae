//! The operations of jobs, one module each.
//!
//! An operation that creates a file works in the state directory, a download in the directory of
//! its destination. It renames the file to its final name when the file is complete and durable.
//! Before the rename, the job's status records it: if the unfinished file does not exist, a later
//! process knows that a file under the final name is the job's own.

mod clone;
mod copy;
mod create;
mod download;
mod materialize;
mod resize;
mod upload;
mod wipe;

use std::sync::Arc;

use extant_hostfs::{Access, Existing};
use extant_space::{Control, Error, ErrorKind, Result};

use crate::job::{Operation, Record, RunFile, Stage, job_of, remove_work_of};
use crate::name::VolumeName;
use crate::storage::{Done, Storage, VolumeFile};
use crate::work::Work;

pub(crate) use upload::content_format;

/// Runs the operation of a job that has a slot.
pub(crate) fn perform(work: &Work<'_>, control: Control<'_>) -> Result<Done> {
    let plain = |done: Result<()>| done.map(|()| Done::default());
    match &work.record.operation {
        Operation::Create(create) => create::perform(work, create, control),
        Operation::Clone(clone) => plain(clone::perform(work, clone, control)),
        Operation::Resize(resize) => plain(resize::perform(work, resize, control)),
        Operation::Wipe(wipe) => plain(wipe::perform(work, wipe, control)),
        Operation::Materialize(materialize) => materialize::perform(work, materialize, control),
        Operation::Upload(upload) => plain(upload::perform(work, upload, control)),
        Operation::Download(download) => plain(download::perform(work, download, control)),
    }
    .map_err(|error| explain(work, error))
}

/// An error about a file of the pool's own is about the volume that it was to become.
fn explain(work: &Work<'_>, error: Error) -> Error {
    // Not of components: in some kinds it is the beginning of a name.
    let inner = work.storage.work_path();
    let inner = inner.as_os_str().as_encoded_bytes();
    let is_inner = error
        .path()
        .is_some_and(|path| path.as_os_str().as_encoded_bytes().starts_with(inner));
    let volume = work.storage.path_of(work.record.operation.volume());
    if is_inner {
        error.about(volume)
    } else {
        error.at(volume)
    }
}

/// Rolls an unfinished job back: restores the state of the pool before the job.
pub(crate) fn roll_back(
    storage: &dyn Storage,
    record: &Record,
    pool_identity: (u64, u64),
) -> Result<()> {
    match &record.operation {
        Operation::Create(_) | Operation::Clone(_) | Operation::Upload(_) => {
            remove_work_of(storage, record.id)
        }
        Operation::Resize(resize) => resize::roll_back(storage, record, resize),
        Operation::Download(download) => download::roll_back(pool_identity, record.id, download),
        Operation::Wipe(wipe) => wipe::roll_back(storage, record, wipe),
        Operation::Materialize(materialize) => materialize::roll_back(storage, materialize),
    }
}

/// The job had done all of its work when its process ended.
pub(crate) fn was_published(
    storage: &dyn Storage,
    record: &Record,
    run: &RunFile,
    pool_identity: (u64, u64),
) -> Result<bool> {
    if let Operation::Resize(resize) = &record.operation {
        return resize::was_done(storage, record, resize);
    }
    let status = match run.status() {
        Some(status) if status.stage == Stage::Publishing => status,
        _ => return Ok(false),
    };
    if let Operation::Download(download) = &record.operation {
        return download::was_published(pool_identity, record.id, download, status.made);
    }
    let work = storage.work_files()?;
    let was_published = work
        .iter()
        .all(|file| job_of(&file.name) != Some(record.id))
        && storage.has_name(record.operation.volume())?;
    if was_published {
        // The process may have ended before it did so.
        storage.sync()?;
    }
    Ok(was_published)
}

/// Opens a volume to undo a change; `None` if it was removed meanwhile.
fn open_to_undo(storage: &dyn Storage, name: &VolumeName) -> Result<Option<Arc<dyn VolumeFile>>> {
    match storage.open(name, Access::ReadWrite) {
        Ok(file) => Ok(Some(Arc::from(file))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Gives the unfinished file `name` the name of the volume.
fn publish(work: &Work<'_>, name: &str, existing: Existing) -> Result<()> {
    work.begin_publication()?;
    let volume = work.record.operation.volume();
    work.storage.publish(name, volume, existing)
}

//! Submission of jobs: a job's needs are computed and reserved in one step, under the pool's lock.
//!
//! A volume has one job at a time, except for jobs that only read it. Submitting the same operation
//! again after its process has died resumes the earlier job.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use extant_hostfs::{Access, HostFile};
use extant_image::{ImageOptions, NewImage, Preallocation, measure as measure_image};
use extant_provision::Survey;
use extant_space::{ByteRange, ByteSize, Error, ErrorKind, Preallocation as Space, Remedy, Result};

use super::{Job, Pool};
use crate::accounting::{self, Need};
use crate::format::qcow2::{self, ResizeNeed, shape_of};
use crate::format::{Facts, Format, format_of_name, known};
use crate::job::{
    CloneMethod, JobId, JobOptions, JobState, Materialize, Operation, Record, Reservation, RunFile,
    Upload, Verification, WipeMethod,
};
use crate::name::VolumeName;
use crate::operation::content_format;
use crate::state::{Locked, PoolState};
use crate::storage::{Feature, Storage, VolumeFile};

impl Pool {
    /// Makes a job of `operation` with its space reserved: of two jobs that do not both fit, one
    /// fails here.
    ///
    /// An interrupted job with the same operation is resumed.
    ///
    /// # Errors
    /// `NoSpace` with the missing amount, `AlreadyExists`, `NotFound`, `InUse` with the job that
    /// holds the volume, `InvalidArgument` for invalid parameters, `Unsupported` for a format.
    pub fn submit(&self, operation: Operation, options: JobOptions) -> Result<Job<'_>> {
        operation.check_paths()?;
        let state = self.make_state()?;
        let storage = self.storage(operation.purpose())?;
        let storage = &*storage;
        let locked = state.lock()?;
        if let Some(record) = self.earlier(&state, &operation)? {
            return self.take_up(storage, state, locked, record.id, Some(options));
        }
        state.jobs.prune()?;
        check_features(storage, &operation)
            .map_err(|error| error.at(self.path_of(operation.volume())))?;
        let reservation = self.assess(storage, &operation)?.on(storage);
        let shape = self.shape_after(storage, &operation)?;
        let need = Need {
            capacity_bytes: reservation
                .capacity_bytes
                .saturating_sub(reservation.capacity_before_bytes),
            space_bytes: reservation.space_bytes,
        };
        let limits = self.definition().limits();
        let checked = accounting::Space::require(limits, storage, &state, &locked, |space| {
            space.check(need, limits)
        });
        checked
            .and_then(|()| {
                if operation.makes_volume() {
                    storage.check_place(reservation.space_bytes)
                } else {
                    Ok(())
                }
            })
            .map_err(|error| error.at(self.path_of(operation.volume())))?;
        let id = state.jobs.next_number()?;
        let mut record = Record::new(id, operation, options, reservation);
        record.shape = shape;
        let run = RunFile::create(state.jobs.dir(), id);
        let made = run.and_then(|run| record.write_new(state.jobs.dir()).map(|()| run));
        match made {
            Ok(run) => {
                record.report(JobState::Waiting);
                Ok(Job::new(self, state, record, run))
            }
            Err(error) => {
                // The first error is the one to report.
                let _ = state.jobs.forget(id);
                Err(error)
            }
        }
    }

    /// Resumes an interrupted job: the caller's process becomes its worker.
    ///
    /// # Errors
    /// `NotFound`; `InUse` while a process works on it; `AlreadyExists` if it has ended; those of
    /// [`submit`](Self::submit), because its remaining needs are reserved again.
    pub fn resume(&self, id: JobId) -> Result<Job<'_>> {
        let state = self.make_state()?;
        let record = self.unfinished(&state, id)?;
        let storage = self.storage(record.operation.purpose())?;
        let locked = state.lock()?;
        self.take_up(&*storage, state, locked, id, None)
    }

    /// Continues a job that another process has submitted and handed over, with the lock from
    /// [`Job::hand_over`].
    ///
    /// # Errors
    /// `InvalidArgument` if the lock is not that of this job.
    pub fn take_over(&self, id: JobId, lock: std::fs::File) -> Result<Job<'_>> {
        let state = self.make_state()?;
        let record = self.unfinished(&state, id)?;
        let run = RunFile::handed_over(lock, state.jobs.dir(), id)?;
        Ok(Job::continued(self, state, record, run))
    }

    /// The record of a job that has not ended.
    pub(crate) fn unfinished(&self, state: &PoolState, id: JobId) -> Result<Record> {
        let Some(record) = Record::read(state.jobs.dir(), id)? else {
            return Err(no_such_job(id));
        };
        match record.outcome {
            None => Ok(record),
            Some(_) => {
                Err(Error::new(ErrorKind::AlreadyExists)
                    .detail(format!("job {id} has ended already")))
            }
        }
    }

    /// Claims an interrupted job under the pool's lock; `None` while a process works on it.
    ///
    /// # Errors
    /// Those of [`unfinished`](Self::unfinished): it may have ended meanwhile.
    pub(crate) fn claim(
        &self,
        state: &PoolState,
        _: &Locked,
        id: JobId,
    ) -> Result<Option<(Record, RunFile)>> {
        self.unfinished(state, id)?;
        let Some(run) = RunFile::take(state.jobs.dir(), id)? else {
            return Ok(None);
        };
        match self.unfinished(state, id) {
            Ok(record) => Ok(Some((record, run))),
            Err(error) => {
                state.jobs.remove_run_file(id)?;
                Err(error)
            }
        }
    }

    /// With `options`, it runs with them from now on.
    fn take_up(
        &self,
        storage: &dyn Storage,
        state: PoolState,
        locked: Locked,
        id: JobId,
        options: Option<JobOptions>,
    ) -> Result<Job<'_>> {
        let Some((mut record, run)) = self.claim(&state, &locked, id)? else {
            return Err(Error::new(ErrorKind::InUse).detail(format!("job {id} is at work")));
        };
        run.clear_request()?;
        let mut renewed = record.clone();
        renewed.options = options.unwrap_or(renewed.options);
        if let Some(reservation) = self.assess_anew(storage, &record)? {
            renewed.reservation = reservation;
        }
        if renewed != record {
            record = renewed;
            record.rewrite(state.jobs.dir())?;
        }
        // While the lock is held the job counts as running, with its remaining reservation.
        if record.reservation.takes_anything() {
            let limits = self.definition().limits();
            accounting::Space::require(limits, storage, &state, &locked, |space| {
                space.check_is_covered(limits)
            })?;
        }
        drop(locked);
        record.report(JobState::Waiting);
        Ok(Job::continued(self, state, record, run))
    }

    /// Refuses a job that another one stands in the way of; the record of the same job, if it was
    /// interrupted.
    fn earlier(&self, state: &PoolState, operation: &Operation) -> Result<Option<Record>> {
        let unfinished = state.jobs.unfinished()?.into_iter();
        for record in unfinished.filter(|record| operation.conflicts_with(&record.operation)) {
            let Some(status) = state.jobs.status(record.id)? else {
                continue;
            };
            let (id, name) = (record.id, record.operation.name());
            let volume = record.operation.volume();
            let error = Error::new(ErrorKind::InUse);
            match status.state {
                JobState::Interrupted if &record.operation == operation => {
                    return Ok(Some(record));
                }
                JobState::Interrupted => {
                    return Err(error
                        .detail(format!("job {id} ({name} {volume}) was interrupted"))
                        .remedy(Remedy::ResumeJob));
                }
                JobState::Waiting | JobState::Running => {
                    return Err(error
                        .detail(format!(
                            "job {id} ({name} {volume}) is at work on the volume"
                        ))
                        .advice("wait for it, or cancel it"));
                }
                JobState::Done | JobState::Failed | JobState::Cancelled => {}
            }
        }
        Ok(None)
    }

    /// The needs of an operation; refuses an impossible one.
    fn assess(&self, storage: &dyn Storage, operation: &Operation) -> Result<Reservation> {
        match operation {
            Operation::Create(create) => {
                self.check_name_is_free(storage, &create.volume)?;
                check_capacity(create.capacity_bytes)?;
                let image = create.image();
                let new = NewImage::new(&image)?;
                if create.verification == Verification::Full
                    && (create.format != Format::Raw || create.preallocation != Preallocation::Full)
                {
                    return Err(Error::new(ErrorKind::InvalidArgument)
                        .detail("the content of a raw volume with preallocation full is verified, and of no other"));
                }
                if image.qcow2.data_file.is_some() {
                    return Err(Error::new(ErrorKind::InvalidArgument)
                        .detail("an image with a data file is two files; a volume is one"));
                }
                Ok(Reservation {
                    space_bytes: new.space_bytes(),
                    capacity_bytes: measure_image(&image, 0)?.fully_allocated_bytes,
                    ..Reservation::default()
                })
            }
            Operation::Clone(clone) => {
                self.check_name_is_free(storage, &clone.volume)?;
                let source = storage.open(&clone.source, Access::Read)?;
                let shares = match clone.method {
                    CloneMethod::Copy => false,
                    CloneMethod::Auto => storage.can_share(&*source)?,
                    CloneMethod::Reflink => true,
                };
                known(&*source, &clone.source)?;
                let found = measure(&*source, &clone.source)?;
                Ok(Reservation {
                    space_bytes: if shares { 0 } else { found.allocated_bytes },
                    capacity_bytes: found.facts.promised_bytes,
                    ..Reservation::default()
                })
            }
            Operation::Resize(resize) => {
                check_capacity(resize.capacity_bytes)?;
                let file = storage.open(&resize.volume, Access::ReadWrite)?;
                let format = known(&*file, &resize.volume)?;
                let found = measure(&*file, &resize.volume)?;
                let before = found.facts.capacity_bytes;
                if resize.capacity_bytes < before && !resize.shrink {
                    return Err(Error::new(ErrorKind::InvalidArgument)
                        .at(file.path())
                        .detail(format!(
                            "{} is less than the capacity of {}: data beyond it would be lost",
                            ByteSize(resize.capacity_bytes),
                            ByteSize(before)
                        ))
                        .remedy(Remedy::Shrink));
                }
                let (after, preallocation) = (resize.capacity_bytes, resize.preallocation);
                let need = match format {
                    Format::Raw => ResizeNeed {
                        space_bytes: match preallocation.of_raw()? {
                            Space::Off => 0,
                            Space::Falloc | Space::Full => after.saturating_sub(before),
                        },
                        promised_bytes: after,
                    },
                    Format::Qcow2 => ResizeNeed::of(&*file, after, preallocation)
                        .map_err(|error| error.at(file.path()))?,
                };
                Ok(found.reservation(need.space_bytes, need.promised_bytes))
            }
            Operation::Wipe(wipe) => {
                let file = storage.open(&wipe.volume, Access::ReadWrite)?;
                known(&*file, &wipe.volume)?;
                let found = measure(&*file, &wipe.volume)?;
                Ok(found.reservation(0, found.facts.promised_bytes))
            }
            Operation::Materialize(materialize) => {
                let file = storage.open(&materialize.volume, Access::ReadWrite)?;
                assess_materialize(Arc::from(file), materialize)
            }
            Operation::Upload(upload) => {
                if !upload.replace {
                    self.check_name_is_free(storage, &upload.volume)?;
                }
                let source = HostFile::open(&upload.source, Access::Read)?;
                let found = measure_outside(&source, upload)?;
                Ok(Reservation {
                    space_bytes: found.allocated_bytes,
                    capacity_bytes: found.facts.promised_bytes,
                    ..Reservation::default()
                })
            }
            Operation::Download(download) => {
                let file = storage.open(&download.volume, Access::Read)?;
                let found = measure(&*file, &download.volume)?;
                Ok(found.reservation(0, found.facts.promised_bytes))
            }
        }
    }

    /// The remaining needs of an interrupted job, if its volume's space does not show them: shared
    /// space was counted before.
    fn assess_anew(&self, storage: &dyn Storage, record: &Record) -> Result<Option<Reservation>> {
        match &record.operation {
            Operation::Materialize(materialize) if materialize.unshare => {
                let file = storage.open(&materialize.volume, Access::Read)?;
                match known(&*file, &materialize.volume)? {
                    Format::Raw => self.assess(storage, &record.operation).map(Some),
                    // It may have to free space before.
                    Format::Qcow2 => Ok(None),
                }
            }
            _ => Ok(None),
        }
    }

    /// The empty image that a wipe leaves. It is determined before the wipe, which destroys the
    /// header of the image halfway.
    fn shape_after(
        &self,
        storage: &dyn Storage,
        operation: &Operation,
    ) -> Result<Option<ImageOptions>> {
        let Operation::Wipe(wipe) = operation else {
            return Ok(None);
        };
        let file: Arc<dyn VolumeFile> = Arc::from(storage.open(&wipe.volume, Access::Read)?);
        match known(&*file, &wipe.volume)? {
            Format::Raw => Ok(None),
            Format::Qcow2 => shape_of(&file, wipe.method == WipeMethod::Zero)
                .map(Some)
                .map_err(|error| error.at(file.path())),
        }
    }

    fn check_name_is_free(&self, storage: &dyn Storage, name: &VolumeName) -> Result<()> {
        if storage.has_name(name)? {
            Err(Error::new(ErrorKind::AlreadyExists).at(self.path_of(name)))
        } else {
            Ok(())
        }
    }
}

pub(crate) fn no_such_job(id: JobId) -> Error {
    Error::new(ErrorKind::NotFound)
        .detail(format!("there is no job {id} in the pool"))
        .remedy(Remedy::ListJobs)
}

/// Refuses an operation that needs what the pool's volumes do not have.
fn check_features(storage: &dyn Storage, operation: &Operation) -> Result<()> {
    if operation.makes_volume() {
        storage.check_name(operation.volume())?;
    }
    let missing = operation.features().into_iter();
    let mut reasons = missing.filter_map(|feature| storage.lacks(feature));
    match reasons.next() {
        Some(reason) => Err(Error::new(ErrorKind::Unsupported).detail(reason)),
        None => Ok(()),
    }
}

/// Permissions that every storage can give.
const OWNER_ONLY: u32 = 0o600;

impl Operation {
    /// The features that it needs of the storage.
    fn features(&self) -> Vec<Feature> {
        let of_space = |preallocation| match preallocation {
            Preallocation::Off | Preallocation::Metadata => Some(Feature::Sparse),
            Preallocation::Falloc => Some(Feature::Unwritten),
            Preallocation::Full => None,
        };
        let of_format = |format| (format == Format::Qcow2).then_some(Feature::Qcow2);
        let of_mode = |mode| (mode != OWNER_ONLY).then_some(Feature::Permissions);
        let needed = match self {
            Self::Create(create) => {
                let is_part = create.allocation_bytes < create.capacity_bytes;
                let foreign = create.foreign.as_ref();
                let of_owner = (!create.owner.is_default()).then_some(Feature::Permissions);
                [
                    of_format(create.format),
                    of_space(create.preallocation).or(is_part.then_some(Feature::Sparse)),
                    of_mode(create.mode).or(of_owner),
                    foreign.map(|_| Feature::Attributes),
                ]
            }
            Self::Clone(clone) => {
                let shares = clone.method == CloneMethod::Reflink;
                let shared = shares.then_some(Feature::SharedSpace);
                [shared, of_mode(clone.mode), None, None]
            }
            Self::Resize(resize) => [of_space(resize.preallocation), None, None, None],
            Self::Upload(upload) => {
                let format = upload.format.unwrap_or(format_of_name(&upload.volume));
                [of_format(format), of_mode(upload.mode), None, None]
            }
            Self::Wipe(_) | Self::Materialize(_) | Self::Download(_) => [None; 4],
        };
        needed.into_iter().flatten().collect()
    }

    /// Whether both cannot run at the same time.
    fn conflicts_with(&self, other: &Self) -> bool {
        let touch = |one: &Self, other: &Self| {
            let changed = one.changed();
            changed.is_some_and(|name| other.changed() == Some(name) || other.read() == Some(name))
        };
        touch(self, other) || touch(other, self)
    }

    fn changed(&self) -> Option<&VolumeName> {
        (!matches!(self, Self::Download(_))).then(|| self.volume())
    }

    fn read(&self) -> Option<&VolumeName> {
        match self {
            Self::Clone(clone) => Some(&clone.source),
            Self::Download(download) => Some(&download.volume),
            _ => None,
        }
    }
}

/// The state of a file before the job.
struct Measured {
    facts: Facts,
    allocated_bytes: u64,
}

impl Measured {
    fn reservation(&self, space_bytes: u64, capacity_bytes: u64) -> Reservation {
        Reservation {
            space_bytes,
            capacity_bytes,
            allocated_before_bytes: self.allocated_bytes,
            capacity_before_bytes: self.facts.promised_bytes,
            disk_before_bytes: self.facts.capacity_bytes,
        }
    }
}

fn measure(file: &dyn VolumeFile, name: &VolumeName) -> Result<Measured> {
    Ok(Measured {
        facts: Facts::of(file, name)?,
        allocated_bytes: file.stat()?.allocated_bytes,
    })
}

/// Bytes to allocate in the file, with the shared extents if those are to be unshared, and the
/// metadata that an image adds to its file.
fn assess_materialize(file: Arc<dyn VolumeFile>, materialize: &Materialize) -> Result<Reservation> {
    let found = measure(&*file, &materialize.volume)?;
    let file_bytes = file.size()?;
    let full_bytes = match known(&*file, &materialize.volume)? {
        Format::Raw => file_bytes,
        Format::Qcow2 => qcow2::full_bytes(&file).map_err(|error| error.at(file.path()))?,
    };
    // An unused end is cut off.
    let kept_bytes = file_bytes.min(full_bytes);
    let missing = Survey::of(&*file, ByteRange::new(0, kept_bytes))?;
    // Without holes in the map, the block count is used.
    let not_allocated = kept_bytes.saturating_sub(found.allocated_bytes);
    // A process that closes the image may shorten its file meanwhile.
    let growth_bytes = full_bytes.saturating_sub(file_bytes);
    let mut space_bytes = missing.hole_bytes.max(not_allocated) + growth_bytes;
    if materialize.unshare {
        space_bytes += missing.shared_bytes;
    }
    // Snapshots and compressed clusters make a file larger than its virtual disk.
    let before = found.facts.promised_bytes.max(found.allocated_bytes);
    Ok(Reservation {
        capacity_before_bytes: before,
        ..found.reservation(space_bytes, before.max(full_bytes))
    })
}

/// The same for a file that may not be a regular file.
fn measure_outside(file: &HostFile, upload: &Upload) -> Result<Measured> {
    let metadata = file.as_file().metadata();
    let metadata = metadata.map_err(|source| Error::from(source).at(file.path()))?;
    if !metadata.is_file() {
        return Err(Error::new(ErrorKind::WrongType).at(file.path()));
    }
    let format = content_format(upload, file).map_err(|error| error.at(file.path()))?;
    Ok(Measured {
        facts: Facts::of_content(file, format)?,
        allocated_bytes: metadata.blocks() * 512,
    })
}

fn check_capacity(bytes: u64) -> Result<()> {
    if bytes == 0 {
        let error = Error::new(ErrorKind::InvalidArgument);
        return Err(error.detail("the capacity must be at least 1 byte"));
    }
    match i64::try_from(bytes) {
        Ok(_) => Ok(()),
        Err(_) => Err(Error::new(ErrorKind::TooLarge)
            .detail(format!("{} is past the largest file", ByteSize(bytes)))),
    }
}

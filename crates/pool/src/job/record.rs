//! The record of a job on disk.
//!
//! It is written when the job is made and again with its outcome. The second write must succeed on
//! a full disk, so a spare file of sufficient size is created with the first one, filled in place
//! and renamed over it.
//!
//! A job that makes a new file does not wait until its record is durable: a thread syncs it while
//! the job is at work. After a crash of the machine the record may be missing or blank. The job is
//! then unknown; an unfinished file of it belongs to no job and is removed by the next refresh. Or
//! the record exists without its outcome, which is then in the heartbeat file. The volume of a job
//! that has ended well is durable in any case.

use std::os::unix::fs::FileExt;
use std::time::{SystemTime, UNIX_EPOCH};

use extant_image::ImageOptions;
use extant_space::{Error, ErrorKind, Progress, Result, event};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::status::{JobFailure, JobState};
use super::{JobId, JobOptions, Operation};
use crate::storage::{Feature, Storage};
use extant_hostfs::{Directory, Existing};

pub(super) const SUFFIX: &str = ".json";
const VERSION: u32 = 1;
/// Paths are the longest part of a record.
const BYTES_MAX: u64 = 64 << 10;
/// Room for an outcome.
const OUTCOME_ROOM: usize = 4096;
/// A longer message is cut.
const MESSAGE_MAX: usize = 1024;

/// Record of a job: request, reservation and outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    version: u32,
    pub(crate) id: JobId,
    #[serde(flatten)]
    pub(crate) operation: Operation,
    pub(crate) options: JobOptions,
    pub(crate) reservation: Reservation,
    /// The empty image that a wipe leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) shape: Option<ImageOptions>,
    /// Seconds since 1970.
    pub(crate) created: u64,
    pub(crate) outcome: Option<Outcome>,
}

/// Reservation of a job, and the space in use before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reservation {
    /// Space that the job will take, bytes.
    pub(crate) space_bytes: u64,
    /// Maximum space of the volume after the job, in bytes: of a raw one its capacity.
    pub(crate) capacity_bytes: u64,
    /// Space of an existing volume when the job was made.
    pub(crate) allocated_before_bytes: u64,
    /// Its maximum space then.
    pub(crate) capacity_before_bytes: u64,
    /// Size of its disk then, bytes.
    #[serde(default)]
    pub(crate) disk_before_bytes: u64,
}

impl Reservation {
    /// The same on `storage`: in its units, and without sparse volumes if it has none.
    pub(crate) fn on(self, storage: &dyn Storage) -> Self {
        let round = |bytes: u64| {
            let rounded = bytes.checked_next_multiple_of(storage.unit_bytes());
            rounded.unwrap_or(bytes)
        };
        let capacity_bytes = round(self.capacity_bytes);
        let grown_bytes = match storage.lacks(Feature::Sparse) {
            Some(_) => capacity_bytes.saturating_sub(self.capacity_before_bytes),
            None => 0,
        };
        Self {
            space_bytes: round(self.space_bytes).max(grown_bytes),
            capacity_bytes,
            ..self
        }
    }

    /// The job allocates space, or promises capacity.
    pub(crate) fn takes_anything(&self) -> bool {
        self.space_bytes > 0 || self.capacity_bytes > self.capacity_before_bytes
    }
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Seconds since 1970.
    pub(crate) ended: u64,
    /// `None`: well.
    pub(crate) failure: Option<JobFailure>,
    /// How far the job was.
    #[serde(default)]
    pub(crate) progress: Option<Progress>,
}

impl Outcome {
    /// The outcome of a job that ends now with `result`, and was at `progress`.
    pub(crate) fn of(result: &Result<()>, progress: Option<Progress>) -> Self {
        Self {
            ended: now(),
            progress,
            failure: result.as_ref().err().map(|error| {
                let mut message = error.to_string();
                message.truncate(message.floor_char_boundary(MESSAGE_MAX));
                JobFailure {
                    kind: error.kind(),
                    message,
                }
            }),
        }
    }

    /// The state of a job that ended so.
    pub(super) fn state(&self) -> JobState {
        match &self.failure {
            None => JobState::Done,
            Some(failure) if failure.kind == ErrorKind::Cancelled => JobState::Cancelled,
            Some(_) => JobState::Failed,
        }
    }
}

impl Record {
    /// Reports that the job is in `state` now.
    pub(crate) fn report(&self, state: JobState) {
        let failure = self.outcome.as_ref().and_then(|it| it.failure.as_ref());
        event!(
            INFO,
            "job",
            job = self.id.0,
            operation = self.operation.name(),
            volume = %self.operation.volume(),
            state = state.name(),
            error = failure.map(|failure| failure.message.as_str())
        );
    }

    pub(crate) fn new(
        id: JobId,
        operation: Operation,
        options: JobOptions,
        reservation: Reservation,
    ) -> Self {
        Self {
            version: VERSION,
            id,
            operation,
            options,
            reservation,
            shape: None,
            created: now(),
            outcome: None,
        }
    }

    /// Reads the record of a job; `None` where there is none.
    pub(crate) fn read(jobs: &Directory, id: JobId) -> Result<Option<Self>> {
        // Blank after a crash before its sync.
        let bytes = jobs.read(name(id), BYTES_MAX)?;
        let Some(bytes) = bytes.filter(|bytes| !bytes.trim_ascii().is_empty()) else {
            return Ok(None);
        };
        let corrupt = |detail: String| {
            Error::new(ErrorKind::Corrupt)
                .at(jobs.path().join(name(id)))
                .detail(detail)
                .advice("remove it and refresh the pool, which removes the files of the job")
        };
        let record: Self =
            serde_json::from_slice(&bytes).map_err(|error| corrupt(error.to_string()))?;
        if record.version != VERSION || record.id != id {
            return Err(corrupt("it is not the record of this job".to_owned()));
        }
        Ok(Some(record))
    }

    /// Writes the record of a new job, and room for its outcome.
    pub(crate) fn write_new(&self, jobs: &Directory) -> Result<()> {
        let bytes = self.to_bytes();
        let spare = spare_name(self.id);
        // Written, so that its space is reserved.
        let made = jobs.new_file(&spare).and_then(|file| {
            file.write_all_at(&vec![b' '; bytes.len() + OUTCOME_ROOM], 0)
                .map_err(|source| Error::from(source).at(jobs.path().join(&spare)))
        });
        let made = made.and_then(|()| {
            if self.operation.makes_volume() {
                jobs.write_unsynced(&name(self.id), &bytes)
            } else {
                sync_file(jobs, &spare).and_then(|()| jobs.write(&name(self.id), &bytes))
            }
        });
        if made.is_err() {
            // The first error is the one to report.
            let _ = jobs.remove(&spare);
        }
        made
    }

    /// Makes the record of a new job durable, and the room for its outcome.
    pub(crate) fn sync_new(&self, jobs: &Directory) -> Result<()> {
        sync_file(jobs, &spare_name(self.id))?;
        sync_file(jobs, &name(self.id))
    }

    /// Rewrites the record of an unfinished job.
    pub(crate) fn rewrite(&self, jobs: &Directory) -> Result<()> {
        jobs.write(&name(self.id), &self.to_bytes())
    }

    /// Writes the record with its outcome.
    pub(crate) fn end(&mut self, jobs: &Directory, outcome: Outcome) -> Result<()> {
        let is_shown_by_the_volume = self.operation.makes_volume() && outcome.failure.is_none();
        let state = outcome.state();
        self.outcome = Some(outcome);
        self.report(state);
        let mut bytes = self.to_bytes();
        let spare = spare_name(self.id);
        let file = jobs.file(&spare, OFlags::RDWR)?;
        let fail = |source| {
            Error::from(source)
                .at(jobs.path().join(&spare))
                .during("write")
        };
        let room = file.metadata().map_err(fail)?.len() as usize;
        bytes.resize(bytes.len().max(room), b' ');
        file.write_all_at(&bytes, 0).map_err(fail)?;
        let rename = || jobs.rename(&spare, jobs, name(self.id), Existing::Replace);
        if is_shown_by_the_volume {
            return rename();
        }
        // In its place: no journal is waited for, which may have much to write.
        file.sync_data().map_err(fail)?;
        rename()?;
        jobs.sync()
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).expect("plain data");
        bytes.push(b'\n');
        bytes
    }
}

fn sync_file(jobs: &Directory, name: &str) -> Result<()> {
    let file = jobs.file(name, OFlags::RDWR)?;
    file.sync_all().map_err(|source| {
        Error::from(source)
            .at(jobs.path().join(name))
            .during("sync")
    })
}

pub(crate) fn name(id: JobId) -> String {
    format!("{id}{SUFFIX}")
}

pub(crate) fn spare_name(id: JobId) -> String {
    format!("{id}.spare")
}

/// Seconds since 1970; 0 with a clock that is before.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Wipe, WipeMethod};

    fn record() -> Record {
        let operation = Operation::Wipe(Wipe {
            volume: "a".parse().unwrap(),
            method: WipeMethod::Zero,
            force: false,
        });
        let id = JobId(7);
        Record::new(id, operation, JobOptions::default(), Reservation::default())
    }

    #[test]
    fn record_comes_back_with_and_without_outcome() {
        let place = tempfile::tempdir().unwrap();
        let jobs = Directory::open(place.path()).unwrap();
        let mut record = record();
        record.write_new(&jobs).unwrap();
        assert_eq!(Record::read(&jobs, JobId(7)).unwrap().unwrap(), record);
        let failure = Err(Error::new(ErrorKind::Io).detail("ü".repeat(5000)));
        record.end(&jobs, Outcome::of(&failure, None)).unwrap();
        assert_eq!(Record::read(&jobs, JobId(7)).unwrap().unwrap(), record);
        assert!(jobs.stat(spare_name(JobId(7))).unwrap().is_none());
        assert!(Record::read(&jobs, JobId(8)).unwrap().is_none());
    }

    #[test]
    fn record_keeps_the_share_of_a_background_job_and_older_ones_have_none() {
        let mut record = record();
        record.options.background = true;
        record.options.background_share = Some("2.5%".parse().unwrap());
        let text = String::from_utf8(record.to_bytes()).unwrap();
        let read = |text: &str| serde_json::from_str::<Record>(text).unwrap();
        assert_eq!(read(&text), record);
        let older = text.replace(",\"background_share\":2.5", "");
        assert_ne!(older, text);
        assert_eq!(read(&older).options.background_share, None);
    }

    #[test]
    fn record_that_a_crash_left_blank_is_none() {
        let place = tempfile::tempdir().unwrap();
        let jobs = Directory::open(place.path()).unwrap();
        for text in ["", "    \n"] {
            jobs.write(&name(JobId(7)), text.as_bytes()).unwrap();
            assert_eq!(Record::read(&jobs, JobId(7)).unwrap(), None);
        }
    }

    #[test]
    fn hostile_record_is_an_error_with_its_place() {
        let place = tempfile::tempdir().unwrap();
        let jobs = Directory::open(place.path()).unwrap();
        let good = String::from_utf8(record().to_bytes()).unwrap();
        for text in [
            "{".to_owned(),
            good.replace("\"a\"", "\"../a\""),
            good.replace("\"id\":7", "\"id\":8"),
            good.replace("\"wipe\"", "\"burn\""),
            "[".repeat(60_000),
        ] {
            jobs.write(&name(JobId(7)), text.as_bytes()).unwrap();
            let error = Record::read(&jobs, JobId(7)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        }
    }
}

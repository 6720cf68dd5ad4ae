//! Names of the unfinished files of jobs.

use extant_space::Result;

use super::JobId;
use crate::storage::Storage;

/// The file of a job that is complete, but for its name.
pub(crate) fn complete_name(job: JobId) -> String {
    format!("{job}.complete")
}

/// The file that a job copies to.
pub(crate) fn copy_name(job: JobId) -> String {
    format!("{job}.copy")
}

/// The job that the unfinished file `name` is of; `None` for a name that no job uses:
/// `12.complete`, and `.12.complete.extant-partial` while it is made.
pub(crate) fn job_of(name: &str) -> Option<JobId> {
    let (number, _) = name.strip_prefix('.').unwrap_or(name).split_once('.')?;
    number.parse().ok()
}

/// Removes the unfinished files of a job.
pub(crate) fn remove_work_of(storage: &dyn Storage, job: JobId) -> Result<()> {
    let files = storage.work_files()?.into_iter();
    for file in files.filter(|file| job_of(&file.name) == Some(job)) {
        storage.remove_work(&file.name)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_files_name_their_job() {
        assert_eq!(job_of(".12.complete.extant-partial"), Some(JobId(12)));
        assert_eq!(job_of(&copy_name(JobId(3))), Some(JobId(3)));
        assert_eq!(job_of("noise"), None);
    }
}

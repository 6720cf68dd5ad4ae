//! A new volume.
//!
//! hostfs makes the file, as for `extant create`; what a killed run left is taken up.

use extant_hostfs::{CopyOnWrite, CreateOptions, HostFile, OnFailure};
use extant_space::{Control, Preallocation, Result, SpaceFile, SyncMode};
use rustix::fs::OFlags;

use super::publish;
use crate::folder::OnExisting;
use crate::job::{CreateVolume, Work};
use crate::state::complete_name;
use crate::volume::keep;

pub(super) fn perform(work: &Work<'_>, create: &CreateVolume, control: Control<'_>) -> Result<()> {
    create.format.check_supports("creation")?;
    let name = complete_name(work.record.id);
    if work.state.work.stat(&name)?.is_none() {
        let mut options = CreateOptions::new(create.capacity_bytes);
        options.preallocation = create.preallocation;
        options.allocation_bytes = match create.preallocation {
            Preallocation::Off => None,
            Preallocation::Falloc | Preallocation::Full => Some(create.allocation_bytes),
        };
        options.pace = work.pace();
        options.mode = Some(create.mode);
        if create.nocow {
            options.copy_on_write = CopyOnWrite::Disable;
        }
        // Removed by the roll-back, or kept for who resumes the job.
        options.on_failure = OnFailure::KeepPartial;
        extant_hostfs::create(&work.state.work.path().join(&name), &options, control)?;
    }
    if let Some(kept) = &create.kept {
        let file = work.state.work.file(&name, OFlags::RDWR)?;
        let file = HostFile::from_file(file, &work.state.work.path().join(&name))?;
        keep(&file, kept)?;
        file.sync(SyncMode::All)?;
    }
    publish(work, &name, OnExisting::Refuse)
}

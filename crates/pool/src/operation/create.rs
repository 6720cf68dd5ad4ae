//! A new volume.
//!
//! hostfs makes the file, as for `extant create`; what a killed run left is taken up.

use extant_hostfs::{CreateOptions, OnFailure};
use extant_space::{Control, Preallocation, Result};

use super::publish;
use crate::folder::OnExisting;
use crate::job::{CreateVolume, Work};
use crate::state::complete_name;

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
        // Removed by the roll-back, or kept for who resumes the job.
        options.on_failure = OnFailure::KeepPartial;
        extant_hostfs::create(&work.state.work.path().join(&name), &options, control)?;
    }
    publish(work, &name, OnExisting::Refuse)
}

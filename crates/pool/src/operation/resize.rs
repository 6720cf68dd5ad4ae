//! Another capacity.
//!
//! A larger one is shown at once, and the new part is made real after that: nobody but who resizes knows of it yet. Until
//! the job is done, the old capacity is in its record.

use extant_hostfs::Access;
use extant_space::{
    ByteRange, Control, ErrorKind, FallocateMode, Phase, Preallocation, Result, SyncMode,
};

use crate::format::Format;
use crate::job::{Record, Resize, Work};
use crate::storage::{MakeWritten, Storage, VolumeFile};
use crate::volume::{check_nobody_has_it_open, lock_alone};

/// Allocated in one call.
const ALLOCATE: u64 = 16 << 30;

pub(super) fn perform(work: &Work<'_>, resize: &Resize, control: Control<'_>) -> Result<()> {
    let file = work.storage.open(&resize.volume, Access::ReadWrite)?;
    let _locked = lock_alone(&*file)?;
    Format::of(&*file).check_supports("resize")?;
    let (before, after) = (
        work.record.reservation.capacity_before_bytes,
        resize.capacity_bytes,
    );
    if after < before {
        check_nobody_has_it_open(&*file)?;
    }
    control.cancel.check()?;
    file.resize(after)?;
    if after > before {
        let part = ByteRange::new(before, after);
        make_real(&*file, part, resize.preallocation, work, control)?;
    }
    file.sync(SyncMode::All)
}

fn make_real(
    file: &dyn VolumeFile,
    part: ByteRange,
    preallocation: Preallocation,
    work: &Work<'_>,
    control: Control<'_>,
) -> Result<()> {
    match preallocation {
        Preallocation::Off => Ok(()),
        Preallocation::Falloc => part.chunks(ALLOCATE).try_for_each(|piece| {
            control.cancel.check()?;
            file.fallocate(FallocateMode::Allocate, piece)?;
            control.report(Phase::Allocate, piece.end() - part.start(), part.len());
            Ok(())
        }),
        Preallocation::Full => {
            let wanted = MakeWritten {
                range: Some(part),
                unshare: false,
                // Who has the volume open does not know of the new part yet.
                is_unknown_to_others: true,
                pace: work.pace(),
            };
            file.make_written(&wanted, control)
        }
    }
}

/// Cuts the new part off. What a smaller capacity has cut off does not come back: that is one call, and the end of its
/// job.
pub(super) fn roll_back(storage: &dyn Storage, record: &Record, resize: &Resize) -> Result<()> {
    let before = record.reservation.capacity_before_bytes;
    if resize.capacity_bytes <= before {
        return Ok(());
    }
    let file = match storage.open(&resize.volume, Access::ReadWrite) {
        Ok(file) => file,
        // Removed by somebody else.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if file.size()? == resize.capacity_bytes {
        file.resize(before)?;
        file.sync(SyncMode::All)?;
    }
    Ok(())
}

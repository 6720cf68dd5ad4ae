//! A new volume.
//!
//! The storage makes the file as `extant create` does; the file of a killed process is adopted.

use std::thread;
use std::time::{Duration, Instant};

use extant_image::NewImage;
use extant_provision::Provisioner;
use extant_space::{ByteRange, Control, Error, ErrorKind, Phase, Result, SyncMode};

use super::publish;
use crate::foreign::store_foreign;
use crate::format::{format_of_name, store_format};
use crate::job::{CreateVolume, Verification, complete_name};
use crate::storage::{Done, NewFile, OWNER_WRITES};
use crate::work::Work;
use extant_hostfs::Existing;

/// How long the last sync of a killed process is awaited.
const LAST_SYNC_TIMEOUT: Duration = Duration::from_secs(300);
const LAST_SYNC_POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(super) fn perform(
    work: &Work<'_>,
    create: &CreateVolume,
    control: Control<'_>,
) -> Result<Done> {
    let name = complete_name(work.record.id);
    let image = NewImage::new(&create.image())?;
    let new = NewFile {
        image,
        mode: create.mode,
        nocow: create.nocow,
    };
    let create_work = || {
        let pace = work.pace();
        work.storage.create_work(&name, &new, pace, work, control)
    };
    let start = Instant::now();
    let done = loop {
        match create_work() {
            // By the last sync of a process that was killed.
            Err(error)
                if error.kind() == ErrorKind::InUse
                    && work.is_resumed
                    && start.elapsed() < LAST_SYNC_TIMEOUT =>
            {
                control.cancel.check()?;
                control.report(Phase::Wait, 0, 0);
                thread::sleep(LAST_SYNC_POLL_INTERVAL);
            }
            done => break done?,
        }
    };
    let file = work.storage.open_work(&name)?;
    let file = file.ok_or_else(|| Error::new(ErrorKind::NotFound))?;
    if create.verification == Verification::Full {
        let whole = ByteRange::new(0, file.size()?);
        Provisioner::new(&*file, whole, control).verify_all_zeros()?;
    }
    store_format(&*file, &create.volume, create.format)?;
    if let Some(foreign) = &create.foreign {
        store_foreign(&*file, foreign)?;
    }
    if !create.owner.is_default() {
        file.set_owner(create.owner)?;
    }
    let has_mode = create.mode & OWNER_WRITES == OWNER_WRITES;
    if !has_mode {
        // Durable on return.
        file.set_mode(create.mode)?;
    } else if create.foreign.is_some() || create.format != format_of_name(&create.volume) {
        // Without the word, after a crash, the name decides.
        file.sync(SyncMode::All)?;
    }
    publish(work, &name, Existing::Refuse)?;
    Ok(done)
}

//! Recovery of the journal before the file system is opened.
//!
//! Order: transactions are replayed in place; fast commits are replayed and written in place; the
//! journal is emptied. A crash at any moment of that repeats it.

use std::sync::Arc;

use extant_blockdev::Device;
use extant_jbd2::{JournalLocation, Recovery};
use extant_ondisk::ext4::{Access, Superblock};
use extant_space::{Error, ErrorKind, Result};

use super::Filesystem;
use super::open::journal_place;
use crate::fast_commit::{self, Commits, ShadowDevice};
use crate::options::{Options, check_features};
use crate::recovered::RecoveredDevice;
use crate::state::{FsState, note_on_device, read_superblock};

impl Filesystem {
    /// `device` as it will be once its journal is replayed, for a check of the file system. Writes
    /// nothing to it.
    ///
    /// # Errors
    /// `Corrupt` for a damaged superblock or journal; `Unsupported` for a journal on another device
    /// or with unknown features; errors of the device.
    pub fn recovered_device(device: Arc<dyn Device>) -> Result<Arc<dyn Device>> {
        let superblock = read_superblock(&*device)?;
        let options = Options {
            access: Access::ReadOnly,
            ..Options::default()
        };
        Ok(recovered(device, superblock, &options)?.0)
    }
}

/// Checkpoints the whole journal and leaves it empty.
pub(super) fn recover(
    device: &Arc<dyn Device>,
    place: JournalLocation,
    options: &Options,
) -> Result<()> {
    let recovery = Recovery::read(Arc::clone(device), place)?;
    refuse_failed_commit(&recovery)?;
    let stopped_by = recovery.report().error_number;
    if !recovery.is_needed() && stopped_by == 0 {
        return Ok(());
    }
    recovery.replay()?;
    if stopped_by != 0 {
        // The journal forgets it when it is emptied.
        let detail = format!("the journal was stopped by error {stopped_by}");
        note_on_device(&**device, &Error::new(ErrorKind::Io).detail(detail))?;
    }
    let superblock = read_superblock(&**device)?;
    check_features(superblock.features(), Access::ReadWrite)?;
    let Some(commits) = fast_commits(&recovery, &superblock)? else {
        return recovery.finish();
    };
    let journal = Arc::new(recovery.resume()?);
    let fs = FsState::new(
        Arc::clone(device),
        Some(Arc::clone(&journal)),
        superblock,
        options.clone(),
    )?;
    fast_commit::replay(&Arc::new(fs), journal, &commits)
}

/// The device as it will be once its journal is recovered, and its superblock. Writes nothing to
/// it.
pub(super) fn recovered(
    device: Arc<dyn Device>,
    superblock: Superblock,
    options: &Options,
) -> Result<(Arc<dyn Device>, Superblock)> {
    let Some(place) = journal_place(&device, &superblock)? else {
        return Ok((device, superblock));
    };
    let recovery = Recovery::read(Arc::clone(&device), place.clone())?;
    if !recovery.is_needed() {
        return Ok((device, superblock));
    }
    refuse_failed_commit(&recovery)?;
    let recovered: Arc<dyn Device> = match fast_commits(&recovery, &superblock)? {
        None => {
            let block_bytes = superblock.layout().block_bytes();
            let overlay = recovery.into_overlay();
            Arc::new(RecoveredDevice::new(device, overlay, block_bytes))
        }
        Some(_) => {
            let shadow: Arc<dyn Device> = Arc::new(ShadowDevice::new(device));
            recover(&shadow, place, options)?;
            shadow
        }
    };
    let superblock = read_superblock(&*recovered)?;
    Ok((recovered, superblock))
}

/// Refuses a log that ends with a transaction that was committed and is damaged: the replay of
/// those before it is not the state of the file system.
fn refuse_failed_commit(recovery: &Recovery) -> Result<()> {
    match recovery.report().failed_commit {
        None => Ok(()),
        Some(sequence) => Err(Error::new(ErrorKind::Corrupt).detail(format!(
            "journal: checksum of the commit of transaction {sequence} is wrong"
        ))),
    }
}

fn fast_commits(recovery: &Recovery, superblock: &Superblock) -> Result<Option<Commits>> {
    let next = recovery.report().next;
    Commits::find(recovery.fast_commits(), next, superblock.layout())
}

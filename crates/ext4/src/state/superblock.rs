//! The superblock while the file system is open.
//!
//! It is written outside the journal, which cannot be found without it, so a power cut may leave
//! one of its two sectors. All states that are written are compatible with the one found on opening
//! ([`Superblock::fit_sectors`]): any two sectors match, and fields that must change atomically are
//! in the first.

use std::sync::atomic::Ordering;

use extant_blockdev::{Device, Persistence};
use extant_ondisk::ext4::superblock::{ErrorPolicy, RawSuperblock, RecordedError, State};
use extant_ondisk::ext4::{Compat, Incompat, PhysicalBlock, RoCompat, Superblock};
use extant_space::{Error, ErrorKind, Result};

use super::FsState;
use crate::cache::Changing;
use crate::options::OnError;
use crate::sync::{lock, lock_poisoned};
use crate::time;
use crate::transaction::Transaction;

impl FsState {
    /// The block that the superblock is in.
    pub(crate) fn superblock_place(&self) -> PhysicalBlock {
        self.superblock_block.number()
    }

    /// Puts the superblock into its block, where it has changed. The counts are brought up to date
    /// when it is closed, as in the kernel: until then the descriptors know better.
    ///
    /// e2fsck 1.47.0, when it replays fast commits, writes back the changed fields with a checksum
    /// over the superblock before the replay: the fewer superblocks are in the log, the better.
    pub(crate) fn freeze_superblock(&self, by: &impl Changing) {
        let Some(mut superblock) = self.changed_superblock() else {
            return;
        };
        if !self.has_log {
            // It comes before the inodes: until the file system is closed, e2fsck finds the orphans
            // by itself.
            superblock.set_last_orphan(None);
            superblock.fit_sectors(self.groups.superblock());
        }
        let byte = (Superblock::OFFSET % u64::from(self.layout.block_bytes())) as usize;
        self.cache.change_held(by, &self.superblock_block, |bytes| {
            bytes[byte..byte + Superblock::BYTES].copy_from_slice(superblock.as_bytes());
        });
    }

    /// Marks, before the first transaction, that the journal must be replayed, or that the file
    /// system must be checked if it has none.
    pub(crate) fn mark_open(&self) -> Result<()> {
        let now = time::last_tick();
        lock(&self.superblock).edit(|raw| {
            if self.has_log {
                raw.s_feature_incompat
                    .set(raw.s_feature_incompat.get() | Incompat::RECOVER.bits())
            } else {
                raw.s_state.set(raw.s_state.get() & !State::VALID.bits())
            }
            if raw.s_orphan_file_inum.get() != 0 {
                raw.s_feature_ro_compat
                    .set(raw.s_feature_ro_compat.get() | RoCompat::ORPHAN_PRESENT.bits());
            }
            raw.s_mnt_count.set(raw.s_mnt_count.get().saturating_add(1));
            raw.s_mtime.set(now.seconds as u32);
        })?;
        self.write_superblock()
    }

    /// Marks the file system clean, after the last commit and the last checkpoint.
    pub(crate) fn mark_clean(&self) -> Result<()> {
        let free = self.groups.frozen_free();
        let now = time::last_tick();
        let mut superblock = lock(&self.superblock);
        superblock.set_free(free.blocks, free.inodes as u32)?;
        superblock.edit(|raw| {
            if self.has_log {
                raw.s_feature_incompat
                    .set(raw.s_feature_incompat.get() & !Incompat::RECOVER.bits())
            } else {
                raw.s_state.set(raw.s_state.get() | State::VALID.bits())
            }
            if self.orphans.is_empty() {
                raw.s_feature_ro_compat
                    .set(raw.s_feature_ro_compat.get() & !RoCompat::ORPHAN_PRESENT.bits());
            }
            raw.s_wtime.set(now.seconds as u32);
        })?;
        drop(superblock);
        self.write_superblock()
    }

    /// Says that there are files of 2 GiB and more, in the transaction that makes the first one.
    #[cold]
    pub(crate) fn set_large_file(&self, transaction: &Transaction<'_>) {
        let mut superblock = lock(&self.superblock);
        let features = superblock.features();
        if !features.ro_compat.contains(RoCompat::LARGE_FILE) {
            let large_file = RoCompat::LARGE_FILE.bits();
            set_feature(&mut superblock, transaction, |raw| {
                let features = raw.s_feature_ro_compat.get() | large_file;
                raw.s_feature_ro_compat.set(features);
            });
        }
    }

    /// Says that there are extended attributes, in the transaction that makes the first one:
    /// e2fsck removes their blocks where the feature is not set.
    pub(crate) fn set_ext_attr(&self, transaction: &Transaction<'_>) {
        if self.layout.features().compat.contains(Compat::EXT_ATTR) {
            return;
        }
        let mut superblock = lock(&self.superblock);
        let features = superblock.features();
        if !features.compat.contains(Compat::EXT_ATTR) {
            let ext_attr = Compat::EXT_ATTR.bits();
            set_feature(&mut superblock, transaction, |raw| {
                let features = raw.s_feature_compat.get() | ext_attr;
                raw.s_feature_compat.set(features);
            });
        }
    }

    /// Reaction to corrupt metadata.
    pub(crate) fn on_error(&self) -> OnError {
        let stored = self.groups.superblock().error_policy();
        self.options.on_error.unwrap_or(match stored {
            ErrorPolicy::Continue => OnError::Continue,
            ErrorPolicy::ReadOnly | ErrorPolicy::Panic => OnError::ReadOnly,
        })
    }

    /// Notes that metadata was wrong or could not be written: `e2fsck` will look.
    pub(crate) fn note_error(&self, error: &Error) {
        if !self.shut_down.load(Ordering::Relaxed) {
            self.record_error(error);
        }
    }

    /// The same, also of a file system that is being shut down.
    pub(crate) fn record_error(&self, error: &Error) {
        // Also after a panic of a thread that held the lock, which is recorded as an error.
        let mut superblock = lock_poisoned(&self.superblock);
        superblock.record_error(&recorded(error));
        // The device itself may have failed.
        let _ = note_on_device(&*self.device, error);
    }

    /// Writes the superblock past the journal.
    fn write_superblock(&self) -> Result<()> {
        match self.changed_superblock() {
            Some(superblock) => write_superblock(&*self.device, &superblock),
            None => Ok(()),
        }
    }

    /// The superblock, if it has changed since the last call.
    fn changed_superblock(&self) -> Option<Superblock> {
        let mut superblock = lock(&self.superblock);
        superblock.fit_sectors(self.groups.superblock());
        let mut given = lock(&self.superblock_given);
        let is_changed = *given != *superblock;
        is_changed.then(|| {
            given.clone_from(&superblock);
            superblock.clone()
        })
    }
}

/// Sets a feature with which all structures remain valid. The first revision has no features; the
/// second makes variable what was fixed before.
fn set_feature(
    superblock: &mut Superblock,
    transaction: &Transaction<'_>,
    set: impl FnOnce(&mut RawSuperblock),
) {
    const FIRST_INODE: u32 = 11;
    const INODE_BYTES: u16 = 128;
    transaction.mark_ineligible();
    let done = superblock.edit(|raw| {
        if raw.s_rev_level.get() == 0 {
            raw.s_rev_level.set(1);
            raw.s_first_ino.set(FIRST_INODE);
            raw.s_inode_size.set(INODE_BYTES);
        }
        set(raw);
    });
    done.expect("a superblock is as good with this feature");
}

/// Notes an error in the superblock as it is on the device: changes of the running transaction must
/// not reach the device before the rest of that transaction.
pub(crate) fn note_on_device(device: &dyn Device, error: &Error) -> Result<()> {
    let before = read_superblock(device)?;
    let mut superblock = before.clone();
    superblock.record_error(&recorded(error));
    superblock.fit_sectors(&before);
    write_superblock(device, &superblock)
}

fn recorded(error: &Error) -> RecordedError {
    let (code, function) = match error.kind() {
        ErrorKind::Corrupt => (5, "corrupt"),
        ErrorKind::Io => (2, "io"),
        _ => (1, "other"),
    };
    RecordedError {
        time_seconds: time::last_tick().seconds as u64,
        inode: None,
        block: PhysicalBlock(0),
        function: function.into(),
        line: 0,
        code,
    }
}

fn write_superblock(device: &dyn Device, superblock: &Superblock) -> Result<()> {
    let unit = u64::from(device.geometry().logical_block).max(Superblock::BYTES as u64);
    // The rest of the device's smallest unit is read and written with it.
    let start = Superblock::OFFSET / unit * unit;
    let byte = (Superblock::OFFSET - start) as usize;
    let mut bytes = vec![0; (byte + Superblock::BYTES).next_multiple_of(unit as usize)];
    device.read_at(&mut bytes, start)?;
    bytes[byte..byte + Superblock::BYTES].copy_from_slice(superblock.as_bytes());
    device.write_at(&bytes, start, Persistence::Cached)?;
    device.flush()
}

/// Reads and checks the superblock.
///
/// # Errors
/// `Corrupt`, also for a device that is smaller than the file system; those of the device.
pub(crate) fn read_superblock(device: &dyn Device) -> Result<Superblock> {
    let unit = device.geometry().logical_block as usize;
    let end = Superblock::OFFSET as usize + Superblock::BYTES;
    let mut bytes = vec![0; end.next_multiple_of(unit)];
    if device.geometry().size < bytes.len() as u64 {
        return Err(Error::new(ErrorKind::Corrupt).detail(format!(
            "{} bytes have no room for a superblock",
            device.geometry().size
        )));
    }
    device.read_at(&mut bytes, 0)?;
    let superblock = Superblock::parse(&bytes[Superblock::OFFSET as usize..])?;
    let layout = superblock.layout();
    let needed = layout.blocks() << layout.block_bits();
    if needed > device.geometry().size {
        return Err(Error::new(ErrorKind::Corrupt).detail(format!(
            "superblock: the file system has {needed} bytes, the device {}",
            device.geometry().size
        )));
    }
    Ok(superblock)
}

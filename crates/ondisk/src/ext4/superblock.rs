//! The superblock: the properties of a file system, and the small part of its state that is
//! central.
//!
//! Model: 1024 bytes at byte 1024 of the device, with copies in some groups
//! ([`Layout::has_superblock`]). [`Superblock`] keeps them unchanged, so that unknown fields
//! survive, and beside them the derived values: features, layout, seed.
//!
//! Invariants:
//! - a [`Superblock`] has passed every check of `superblock/check.rs`, also after
//!   [`Superblock::edit`];
//! - its checksum is right whenever it is visible: every change ends with a new checksum.
//!
//! Features are checked for consistency, not for support: that is [`Features::check`], with the
//! list of the implementation.
//!
//! Format: docs/formats/ext4.md, "Superblock".

mod check;
mod raw;
mod sectors;
mod values;

use extant_space::Result;
use zerocopy::{FromBytes, IntoBytes};

pub use raw::RawSuperblock;
pub use values::{ErrorPolicy, JournalPlace, RecordedError, State, SuperblockFlags};

use super::directory::{HashKind, HashSeed, HashVersion, unknown_hash};
use super::{Compat, Features, InodeNumber, Layout, RoCompat, Seed};
use crate::checksum::{self, START};
use crate::fault::corrupt;
use crate::narrow::low32;

/// A checked superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    raw: RawSuperblock,
    layout: Layout,
    /// Kept, as every operation asks for it.
    seed: Option<Seed>,
}

impl Superblock {
    /// Its offset on the device.
    pub const OFFSET: u64 = 1024;
    /// Its size.
    pub const BYTES: usize = size_of::<RawSuperblock>();
    /// `s_magic`.
    pub const MAGIC: u16 = 0xEF53;

    /// Checks the superblock at the start of `bytes`.
    ///
    /// # Errors
    /// `Corrupt` with field and value for invalid values and a wrong checksum; `Unsupported` for a
    /// revision or checksum type that is not known.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let (raw, _) = RawSuperblock::read_from_prefix(bytes)
            .map_err(|_| corrupt("superblock", format_args!("only {} bytes", bytes.len())))?;
        Self::from_raw(raw)
    }

    fn from_raw(raw: RawSuperblock) -> Result<Self> {
        let layout = check::check(&raw)?;
        let seed = seed_of(&raw, layout.features());
        Ok(Self { raw, layout, seed })
    }

    /// The fields as they are.
    pub fn raw(&self) -> &RawSuperblock {
        &self.raw
    }

    /// The bytes to write.
    pub fn as_bytes(&self) -> &[u8] {
        self.raw.as_bytes()
    }

    /// Changes fields, then checks and seals the result. On an error nothing has changed.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn edit(&mut self, change: impl FnOnce(&mut RawSuperblock)) -> Result<()> {
        let mut raw = self.raw;
        change(&mut raw);
        let features = features_of(&raw);
        seal(&mut raw, &features);
        *self = Self::from_raw(raw)?;
        Ok(())
    }

    /// Makes each of the two sectors consistent with the other one of `older`, an earlier state of
    /// this superblock: if a disk writes only one of them in a power cut, the checksum of the
    /// superblock is still valid. That holds between all states that were fitted to the same one.
    ///
    /// Nothing changes where there is no checksum, or no room for that.
    pub fn fit_sectors(&mut self, older: &Self) {
        if self.features().has_metadata_checksums() {
            sectors::fit(&mut self.raw, &older.raw);
        }
    }

    /// Locations of the structures.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The enabled features.
    pub fn features(&self) -> &Features {
        self.layout.features()
    }

    /// Seed of the checksums of metadata; `None` without `metadata_csum`.
    pub fn seed(&self) -> Option<Seed> {
        self.seed
    }

    /// The file system's UUID.
    pub fn uuid(&self) -> &[u8; 16] {
        &self.raw.s_uuid
    }

    /// The label, without the zeros after it.
    pub fn volume_name(&self) -> &[u8] {
        values::until_zero(&self.raw.s_volume_name)
    }

    /// Last mount point, without trailing zeros.
    pub fn last_mounted(&self) -> &[u8] {
        values::until_zero(&self.raw.s_last_mounted)
    }

    /// Blocks that only the superuser may take.
    pub fn reserved_blocks(&self) -> u64 {
        self.wide(self.raw.s_r_blocks_count_lo, self.raw.s_r_blocks_count_hi)
    }

    /// Free blocks, as counted when the superblock was last written; of a file system
    /// that was not unmounted cleanly, the descriptors know better.
    pub fn free_blocks(&self) -> u64 {
        self.wide(
            self.raw.s_free_blocks_count_lo,
            self.raw.s_free_blocks_count_hi,
        )
    }

    /// Free inodes, with the same reserve.
    pub fn free_inodes(&self) -> u32 {
        self.raw.s_free_inodes_count.get()
    }

    /// Stores both counts.
    ///
    /// # Errors
    /// `Corrupt` when there are not that many blocks or inodes.
    pub fn set_free(&mut self, blocks: u64, inodes: u32) -> Result<()> {
        self.edit(|raw| {
            raw.s_free_blocks_count_lo.set(low32(blocks));
            raw.s_free_blocks_count_hi.set((blocks >> 32) as u32);
            raw.s_free_inodes_count.set(inodes);
        })
    }

    /// Clean, with errors, being cleared of orphans.
    pub fn state(&self) -> State {
        State::from_bits_retain(self.raw.s_state.get())
    }

    /// Behaviour after an error.
    pub fn error_policy(&self) -> ErrorPolicy {
        ErrorPolicy::from_raw(self.raw.s_errors.get())
    }

    /// The first and the last error that were noted since the last repair.
    pub fn recorded_errors(&self) -> (Option<RecordedError>, Option<RecordedError>) {
        (
            RecordedError::first(&self.raw),
            RecordedError::last(&self.raw),
        )
    }

    /// Notes an error: as the last, and as the first if there was none.
    pub fn record_error(&mut self, error: &RecordedError) {
        self.edit(|raw| error.store(raw))
            .expect("fields of errors are not checked");
    }

    /// Location of the journal; `None` without one.
    pub fn journal(&self) -> Option<JournalPlace> {
        self.features()
            .compat
            .contains(Compat::HAS_JOURNAL)
            .then(|| JournalPlace::of(&self.raw))
    }

    /// The journal inode's `i_block`, and its size in bytes, as kept here for the case that
    /// the inode is lost.
    pub fn journal_backup(&self) -> Option<([u8; 60], u64)> {
        values::journal_backup(&self.raw)
    }

    /// The file that lists orphans; `None` without `orphan_file`.
    pub fn orphan_file(&self) -> Option<InodeNumber> {
        self.features()
            .compat
            .contains(Compat::ORPHAN_FILE)
            .then(|| InodeNumber::new(self.raw.s_orphan_file_inum.get()))?
    }

    /// Whether the orphan file may hold entries (`orphan_present`).
    pub fn has_orphans_in_file(&self) -> bool {
        self.features().ro_compat.contains(RoCompat::ORPHAN_PRESENT)
    }

    /// Head of the list of orphans that is linked through `i_dtime`.
    pub fn last_orphan(&self) -> Option<InodeNumber> {
        InodeNumber::new(self.raw.s_last_orphan.get())
    }

    /// Stores it.
    pub fn set_last_orphan(&mut self, number: Option<InodeNumber>) {
        // Nothing is calculated from it, so nothing can become wrong.
        self.raw
            .s_last_orphan
            .set(number.map_or(0, |number| number.0));
        seal(&mut self.raw, self.layout.features());
    }

    /// How names are hashed in new directories, and with which sign.
    ///
    /// # Errors
    /// `Unsupported` for a hash that is not known.
    pub fn hash_version(&self) -> Result<HashVersion> {
        let number = self.raw.s_def_hash_version;
        let kind = HashKind::from_raw(number)
            .ok_or_else(|| unknown_hash("superblock", "s_def_hash_version", number))?;
        Ok(kind.with_sign_of(self.flags()))
    }

    /// Seed of the hashes of names.
    pub fn hash_seed(&self) -> HashSeed {
        HashSeed::new(self.raw.s_hash_seed.map(|word| word.get()))
    }

    /// `s_flags`.
    pub fn flags(&self) -> SuperblockFlags {
        SuperblockFlags::from_bits_retain(self.raw.s_flags.get())
    }

    /// `i_extra_isize` of new inodes: the superblock's value, limited to the size of an inode; 0
    /// for inodes of 128 bytes.
    pub fn extra_isize_for_new_inodes(&self) -> u16 {
        let room = self.layout.inode_bytes() - super::Inode::BASE_BYTES;
        let wanted = self
            .raw
            .s_want_extra_isize
            .get()
            .max(self.raw.s_min_extra_isize.get());
        let usual = super::Inode::EXTRA_BYTES.min(room);
        match wanted {
            0 => usual,
            wanted if wanted > room || wanted % 4 != 0 => usual,
            wanted => wanted,
        }
    }

    fn wide(&self, low: zerocopy::little_endian::U32, high: zerocopy::little_endian::U32) -> u64 {
        let is_64bit = self.features().incompat.contains(super::Incompat::BIT64);
        let high = if is_64bit { high.get() } else { 0 };
        u64::from(high) << 32 | u64::from(low.get())
    }
}

fn features_of(raw: &RawSuperblock) -> Features {
    Features {
        compat: super::Compat::from_bits_retain(raw.s_feature_compat.get()),
        incompat: super::Incompat::from_bits_retain(raw.s_feature_incompat.get()),
        ro_compat: RoCompat::from_bits_retain(raw.s_feature_ro_compat.get()),
    }
}

fn seed_of(raw: &RawSuperblock, features: &Features) -> Option<Seed> {
    features.has_metadata_checksums().then(|| {
        if features.incompat.contains(super::Incompat::CSUM_SEED) {
            Seed::from_stored(raw.s_checksum_seed.get())
        } else {
            Seed::from_uuid(&raw.s_uuid)
        }
    })
}

fn seal(raw: &mut RawSuperblock, features: &Features) {
    if features.has_metadata_checksums() {
        raw.s_checksum.set(computed_checksum(raw));
    }
}

fn computed_checksum(raw: &RawSuperblock) -> u32 {
    let before_the_sum = core::mem::offset_of!(RawSuperblock, s_checksum);
    checksum::crc32c(START, &raw.as_bytes()[..before_the_sum])
}

/// A superblock that mke2fs 1.47 wrote, for tests: 512 MiB, all defaults and orphan_file.
#[cfg(test)]
pub(crate) fn fixture() -> Superblock {
    Superblock::parse(include_bytes!("../../tests/data/superblock.bin")).unwrap()
}

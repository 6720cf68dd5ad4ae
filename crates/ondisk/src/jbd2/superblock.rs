//! The journal's superblock: the parameters of the journal, and the start of its log.
//!
//! Model: 1024 bytes in the journal's first block. `s_start` is the first block of the log, 0 when
//! there is none, and `s_sequence` the first transaction in it. As in the file system's superblock,
//! the bytes are kept unchanged.
//!
//! Invariants:
//! - a [`JournalSuperblock`] has passed every check, also after [`JournalSuperblock::edit`];
//! - its checksum is right whenever it can be seen;
//! - it asks for no feature that is not known.
//!
//! Format: docs/formats/jbd2.md, "Superblock".

use core::mem::offset_of;
use std::ops::Range;

use extant_space::Result;
use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

use super::features::{JournalCompat, JournalFeatures, JournalIncompat, JournalRoCompat};
use super::format::{BlockNumbers, Checksums, Format};
use super::header::{MAGIC, RawHeader};
use super::{BlockType, Header, JournalBlock, Sequence};
use crate::checksum::{self, START};
use crate::fault::{check_range, check_sum, corrupt, unsupported};
use crate::structure::on_disk;

on_disk! {
    /// `struct journal_superblock_s`.
    pub struct RawJournalSuperblock: 1024 {
        0x000 s_header: RawHeader,
        0x00C s_blocksize: U32,
        0x010 s_maxlen: U32,
        0x014 s_first: U32,
        0x018 s_sequence: U32,
        0x01C s_start: U32,
        0x020 s_errno: U32,
        0x024 s_feature_compat: U32,
        0x028 s_feature_incompat: U32,
        0x02C s_feature_ro_compat: U32,
        0x030 s_uuid: [u8; 16],
        0x040 s_nr_users: U32,
        0x044 s_dynsuper: U32,
        0x048 s_max_transaction: U32,
        0x04C s_max_trans_data: U32,
        0x050 s_checksum_type: u8,
        0x051 s_padding2: [u8; 3],
        0x054 s_num_fc_blks: U32,
        0x058 s_head: U32,
        0x05C s_padding: [U32; 40],
        0x0FC s_checksum: U32,
        0x100 s_users: [u8; 768],
    }
}

const NAME: &str = "journal superblock";
/// `s_checksum_type` of crc32c.
const CRC32C: u8 = 4;
/// Meaning of `s_num_fc_blks` 0.
const FAST_COMMIT_BLOCKS: u32 = 256;
/// Linux refuses fast commits that leave fewer blocks for the log.
const LOG_BLOCKS_MIN: u32 = 1024;

/// A checked superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalSuperblock {
    raw: RawJournalSuperblock,
    format: Format,
}

impl JournalSuperblock {
    /// Its size.
    pub const BYTES: usize = size_of::<RawJournalSuperblock>();

    /// Checks the superblock at the start of `bytes`, which are the journal's first block.
    ///
    /// # Errors
    /// `Corrupt` with field and value for invalid values and a wrong checksum; `Unsupported` for
    /// features and checksum types that are not known.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let (raw, _) = RawJournalSuperblock::read_from_prefix(bytes)
            .map_err(|_| corrupt(NAME, format_args!("only {} bytes", bytes.len())))?;
        Self::from_raw(raw)
    }

    fn from_raw(raw: RawJournalSuperblock) -> Result<Self> {
        let magic = raw.s_header.h_magic.get();
        if magic != MAGIC {
            return Err(corrupt(
                NAME,
                format_args!("h_magic is {magic:#x}, not {MAGIC:#x}"),
            ));
        }
        let kind = Header::read(raw.as_bytes()).map(|header| header.kind);
        if !matches!(
            kind,
            Some(BlockType::SuperblockV1 | BlockType::SuperblockV2)
        ) {
            let number = raw.s_header.h_blocktype.get();
            return Err(corrupt(NAME, format_args!("h_blocktype is {number}")));
        }
        let features = features_of(&raw);
        features.check()?;
        let format = Format {
            block_bytes: raw.s_blocksize.get(),
            checksums: checksums_of(&raw, &features)?,
            block_numbers: if features.incompat.contains(JournalIncompat::BIT64) {
                BlockNumbers::Bits64
            } else {
                BlockNumbers::Bits32
            },
            uuid: raw.s_uuid,
        };
        if format.seed().is_some() {
            check_sum(NAME, raw.s_checksum.get(), computed_checksum(&raw))?;
        }
        check_sizes(&raw)?;
        let superblock = Self { raw, format };
        if superblock.has_fast_commits() {
            let most = superblock.blocks().saturating_sub(LOG_BLOCKS_MIN);
            let kept = kept_blocks(&raw);
            check_range(NAME, "s_num_fc_blks", kept.into(), 1..=most.into())?;
        }
        let (start, log) = (raw.s_start.get(), superblock.log());
        let last = u64::from(log.end) - 1;
        check_range(NAME, "s_first", log.start.into(), 1..=last)?;
        if start != 0 {
            check_range(NAME, "s_start", start.into(), log.start.into()..=last)?;
        }
        Ok(superblock)
    }

    /// The fields as they are.
    pub fn raw(&self) -> &RawJournalSuperblock {
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
    pub fn edit(&mut self, change: impl FnOnce(&mut RawJournalSuperblock)) -> Result<()> {
        let mut raw = self.raw;
        change(&mut raw);
        let summed = JournalIncompat::CSUM_V2.union(JournalIncompat::CSUM_V3);
        if features_of(&raw).incompat.intersects(summed) {
            raw.s_checksum.set(computed_checksum(&raw));
        }
        *self = Self::from_raw(raw)?;
        Ok(())
    }

    /// How the other blocks are laid out.
    pub fn format(&self) -> &Format {
        &self.format
    }

    /// The enabled features; none in a superblock of the first version.
    pub fn features(&self) -> JournalFeatures {
        features_of(&self.raw)
    }

    /// Blocks of the journal, the superblock among them.
    pub fn blocks(&self) -> u32 {
        self.raw.s_maxlen.get()
    }

    /// The ring of transactions. Its first block follows its last.
    pub fn log(&self) -> Range<u32> {
        let kept = if self.has_fast_commits() {
            kept_blocks(&self.raw)
        } else {
            0
        };
        self.raw.s_first.get()..self.blocks() - kept
    }

    /// The blocks for fast commits, in order; empty without the feature.
    ///
    /// The first of the blocks kept for them is left out: Linux does not use it.
    pub fn fast_commits(&self) -> Range<u32> {
        let log = self.log();
        (log.end + 1).min(self.blocks())..self.blocks()
    }

    /// Whether the end of the journal is kept for fast commits. The feature is set while there
    /// may be some, and not in a journal that was left empty.
    pub fn has_fast_commits(&self) -> bool {
        self.features()
            .incompat
            .contains(JournalIncompat::FAST_COMMIT)
    }

    /// Whether the journal is large enough to keep blocks for fast commits.
    pub fn has_room_for_fast_commits(&self) -> bool {
        let most = self.blocks().saturating_sub(LOG_BLOCKS_MIN);
        (1..=most).contains(&kept_blocks(&self.raw))
    }

    /// The log's first block and the transaction there; `None` when there is nothing to
    /// replay but fast commits.
    pub fn start(&self) -> Option<JournalBlock> {
        match self.raw.s_start.get() {
            0 => None,
            block => Some(JournalBlock(block)),
        }
    }

    /// The first transaction in the log, or the next one if there is none.
    pub fn sequence(&self) -> Sequence {
        Sequence(self.raw.s_sequence.get())
    }

    /// Says where the log begins and with which transaction.
    ///
    /// # Panics
    /// When the block is not one of the [`log`](Self::log).
    pub fn set_start(&mut self, start: Option<JournalBlock>, sequence: Sequence) {
        self.edit(|raw| {
            raw.s_start.set(start.map_or(0, |block| block.0));
            raw.s_sequence.set(sequence.0);
        })
        .expect("a block of the log");
    }

    /// The error that stopped the journal, as a negative number of Linux; 0 for none.
    pub fn error_number(&self) -> i32 {
        self.raw.s_errno.get().cast_signed()
    }
}

/// Blocks at the end that are kept for fast commits where the feature is set.
fn kept_blocks(raw: &RawJournalSuperblock) -> u32 {
    match raw.s_num_fc_blks.get() {
        0 => FAST_COMMIT_BLOCKS,
        blocks => blocks,
    }
}

fn features_of(raw: &RawJournalSuperblock) -> JournalFeatures {
    let kind = Header::read(raw.as_bytes()).map(|header| header.kind);
    if kind != Some(BlockType::SuperblockV2) {
        return JournalFeatures::default();
    }
    JournalFeatures {
        compat: JournalCompat::from_bits_retain(raw.s_feature_compat.get()),
        incompat: JournalIncompat::from_bits_retain(raw.s_feature_incompat.get()),
        ro_compat: JournalRoCompat::from_bits_retain(raw.s_feature_ro_compat.get()),
    }
}

fn checksums_of(raw: &RawJournalSuperblock, features: &JournalFeatures) -> Result<Checksums> {
    let v1 = features.compat.contains(JournalCompat::CHECKSUM);
    let v2 = features.incompat.contains(JournalIncompat::CSUM_V2);
    let v3 = features.incompat.contains(JournalIncompat::CSUM_V3);
    let checksums = match (v1, v2, v3) {
        (false, false, false) => Checksums::None,
        (true, false, false) => Checksums::Transaction,
        (false, true, false) => Checksums::V2,
        (false, false, true) => Checksums::V3,
        _ => return Err(corrupt(NAME, "more than one kind of checksums")),
    };
    if (v2 || v3) && raw.s_checksum_type != CRC32C {
        let kind = raw.s_checksum_type;
        return Err(unsupported(NAME, format_args!("s_checksum_type is {kind}")));
    }
    Ok(checksums)
}

fn check_sizes(raw: &RawJournalSuperblock) -> Result<()> {
    let block = raw.s_blocksize.get();
    if !block.is_power_of_two() {
        return Err(corrupt(
            NAME,
            format_args!("s_blocksize is {block}, not a power of two"),
        ));
    }
    check_range(NAME, "s_blocksize", block.into(), 1024..=65536)?;
    check_range(
        NAME,
        "s_maxlen",
        raw.s_maxlen.get().into(),
        2..=u32::MAX.into(),
    )
}

fn computed_checksum(raw: &RawJournalSuperblock) -> u32 {
    let (before, rest) = raw
        .as_bytes()
        .split_at(offset_of!(RawJournalSuperblock, s_checksum));
    let sum = checksum::crc32c(checksum::crc32c(START, before), &[0; 4]);
    checksum::crc32c(sum, &rest[4..])
}

#[cfg(test)]
mod tests;

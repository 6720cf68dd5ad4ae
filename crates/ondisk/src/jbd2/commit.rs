//! The commit block, which ends a transaction and makes it count.

use core::mem::offset_of;

use extant_space::Result;
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::format::Checksums;
use super::header::RawHeader;
use super::{BlockType, Format, Header, Sequence};
use crate::checksum::{self, START};
use crate::fault::{check_sum, corrupt};
use crate::structure::on_disk;

on_disk! {
    /// `struct commit_header`.
    pub struct RawCommit: 60 {
        0x00 h_header: RawHeader,
        0x0C h_chksum_type: u8,
        0x0D h_chksum_size: u8,
        0x0E h_padding: [u8; 2],
        0x10 h_chksum: [U32; 8],
        0x30 h_commit_sec: U64,
        0x38 h_commit_nsec: U32,
    }
}

const NAME: &str = "commit block";
/// `h_chksum_type` of a crc32 over the transaction.
const CRC32: u8 = 1;
const CRC32_BYTES: u8 = 4;

/// Fields of a commit block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The transaction.
    pub sequence: Sequence,
    /// When it was committed: seconds since 1970.
    pub seconds: u64,
    /// Nanoseconds after that.
    pub nanoseconds: u32,
    /// The crc32 over its blocks, where there is one (checksums v1).
    pub transaction_sum: Option<TransactionSum>,
}

impl Commit {
    /// Reads `block` and compares its own sum. That of the transaction is the reader's to compare.
    ///
    /// # Errors
    /// `Corrupt` when it is no commit block, or its sum is wrong. At the end of a log this is the
    /// result of a power cut.
    ///
    /// # Panics
    /// When `block` is not a whole block.
    pub fn parse(block: &[u8], format: &Format) -> Result<Self> {
        format.assert_block(block);
        let header = Header::read(block).filter(|header| header.kind == BlockType::Commit);
        let header = header.ok_or_else(|| corrupt(NAME, "no header of one"))?;
        let (raw, _) = RawCommit::ref_from_prefix(block).expect("a block");
        if let Some(seed) = format.seed() {
            check_sum(NAME, raw.h_chksum[0].get(), sum(block, seed))?;
        }
        let has_sum = format.checksums == Checksums::Transaction
            && (raw.h_chksum_type, raw.h_chksum_size) == (CRC32, CRC32_BYTES);
        Ok(Self {
            sequence: header.sequence,
            seconds: raw.h_commit_sec.get(),
            nanoseconds: raw.h_commit_nsec.get(),
            transaction_sum: has_sum.then(|| TransactionSum(raw.h_chksum[0].get())),
        })
    }

    /// Makes `block` this commit block, sealed.
    ///
    /// # Panics
    /// When `block` is not a whole block, and when there is a sum over the transaction although
    /// the format has none, or the reverse.
    pub fn write(&self, block: &mut [u8], format: &Format) {
        format.assert_block(block);
        assert_eq!(
            self.transaction_sum.is_some(),
            format.checksums == Checksums::Transaction,
            "a sum over the transaction where the format has another"
        );
        let mut raw = RawCommit::new_zeroed();
        raw.h_header = Header {
            kind: BlockType::Commit,
            sequence: self.sequence,
        }
        .encode();
        raw.h_commit_sec.set(self.seconds);
        raw.h_commit_nsec.set(self.nanoseconds);
        if let Some(TransactionSum(sum)) = self.transaction_sum {
            raw.h_chksum_type = CRC32;
            raw.h_chksum_size = CRC32_BYTES;
            raw.h_chksum[0].set(sum);
        }
        block.fill(0);
        block[..size_of_val(&raw)].copy_from_slice(raw.as_bytes());
        if let Some(seed) = format.seed() {
            let at = offset_of!(RawCommit, h_chksum);
            let sum = sum(block, seed);
            block[at..at + 4].copy_from_slice(&sum.to_be_bytes());
        }
    }
}

fn sum(block: &[u8], seed: u32) -> u32 {
    let (before, rest) = block.split_at(offset_of!(RawCommit, h_chksum));
    let sum = checksum::crc32c(checksum::crc32c(seed, before), &[0; 4]);
    checksum::crc32c(sum, &rest[4..])
}

/// The crc32 over the descriptor blocks of a transaction and the copies after each, in their
/// order in the journal (checksums v1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionSum(u32);

impl TransactionSum {
    /// That of no blocks.
    pub fn new() -> Self {
        Self(START)
    }

    /// Adds the next block, as stored in the journal.
    pub fn add(&mut self, block: &[u8]) {
        self.0 = checksum::crc32_high_first(self.0, block);
    }
}

impl Default for TransactionSum {
    fn default() -> Self {
        Self::new()
    }
}

//! Revoke blocks: blocks whose copies in earlier transactions must not be replayed.
//!
//! A block that held metadata, was freed and now holds data of a file would otherwise get
//! its old contents back. A revocation counts for transactions up to and with its own.

use extant_space::Result;
use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

use super::format::BlockNumbers;
use super::header::RawHeader;
use super::{BlockType, Format, Header, Sequence, tail};
use crate::address::PhysicalBlock;
use crate::fault::{check_range, corrupt};
use crate::narrow::fit32;
use crate::structure::on_disk;

on_disk! {
    /// `struct jbd2_journal_revoke_header_s`, before the numbers.
    pub struct RawRevoke: 16 {
        0x0 r_header: RawHeader,
        0xC r_count: U32,
    }
}

const NAME: &str = "revoke block";
const HEADER_BYTES: usize = size_of::<RawRevoke>();

/// The blocks that `block` revokes.
///
/// # Errors
/// `Corrupt` if it is no revoke block, its checksum is wrong, or `r_count` exceeds the block.
///
/// # Panics
/// When `block` is not a whole block.
pub fn revoked<'a>(
    block: &'a [u8],
    format: &Format,
) -> Result<impl ExactSizeIterator<Item = PhysicalBlock> + use<'a>> {
    format.assert_block(block);
    if Header::read(block).is_none_or(|header| header.kind != BlockType::Revoke) {
        return Err(corrupt(NAME, "no header of one"));
    }
    tail::verify(NAME, block, format)?;
    let (raw, _) = RawRevoke::ref_from_prefix(block).expect("a block");
    // Bytes in use, the header among them.
    let used = raw.r_count.get() as usize;
    let end = format.contents_end();
    check_range(
        NAME,
        "r_count",
        used as u64,
        HEADER_BYTES as u64..=end as u64,
    )?;
    let numbers = block[HEADER_BYTES..used].chunks_exact(format.number_bytes());
    Ok(numbers.map(|number| {
        let number = number
            .iter()
            .fold(0, |number, &byte| number << 8 | u64::from(byte));
        PhysicalBlock(number)
    }))
}

/// A revoke block in the making.
#[derive(Debug)]
pub struct RevokeWriter<'a> {
    block: &'a mut [u8],
    format: Format,
    used: usize,
}

impl<'a> RevokeWriter<'a> {
    /// Makes `block` a revoke block of nothing yet.
    ///
    /// # Panics
    /// When `block` is not a whole block.
    pub fn new(block: &'a mut [u8], sequence: Sequence, format: &Format) -> Self {
        format.assert_block(block);
        block.fill(0);
        let kind = BlockType::Revoke;
        let header = Header { kind, sequence }.encode();
        block[..size_of_val(&header)].copy_from_slice(header.as_bytes());
        Self {
            block,
            format: *format,
            used: HEADER_BYTES,
        }
    }

    /// How many blocks one revoke block names at most.
    pub fn capacity(format: &Format) -> usize {
        (format.contents_end() - HEADER_BYTES) / format.number_bytes()
    }

    /// Whether no number fits any more.
    pub fn is_full(&self) -> bool {
        self.used + self.format.number_bytes() > self.format.contents_end()
    }

    /// Revokes `revoked`.
    ///
    /// # Panics
    /// When the block is full, and when the number has more bits than the format.
    pub fn push(&mut self, revoked: PhysicalBlock) {
        assert!(!self.is_full(), "a full revoke block");
        let number = revoked.0.to_be_bytes();
        let number = match self.format.block_numbers {
            BlockNumbers::Bits64 => &number[..],
            BlockNumbers::Bits32 => {
                assert!(revoked.0 <= u32::MAX.into(), "block {revoked} in 32 bits");
                &number[4..]
            }
        };
        self.block[self.used..self.used + number.len()].copy_from_slice(number);
        self.used += number.len();
    }

    /// Ends the block and seals it.
    pub fn finish(self) {
        let (raw, _) = RawRevoke::mut_from_prefix(self.block).expect("a block");
        raw.r_count.set(fit32(self.used));
        tail::seal(self.block, &self.format);
    }
}

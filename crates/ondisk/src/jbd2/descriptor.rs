//! Descriptor blocks: which blocks of the file system the following copies are.
//!
//! Model: after the header there are tags, one for each copy that follows in the journal. A tag has
//! 8 to 16 bytes, by the features ([`Format::tag_bytes`]); one without `SAME_UUID` is followed by a
//! UUID. By convention that is the first one; Linux and e2fsprogs write zeros there, and no
//! implementation reads them. A flag marks the last tag.

use extant_space::{Error, Result};
use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use super::format::{BlockNumbers, Checksums};
use super::{BlockType, Escaped, Format, Header, Sequence, tail};
use crate::address::PhysicalBlock;
use crate::checksum;
use crate::fault::{check_sum, corrupt};
use crate::jbd2::header::RawHeader;
use crate::narrow::{low16, low32};
use crate::structure::on_disk;

on_disk! {
    /// `struct journal_block_tag_s`; without `64bit` the last field is not there, and with
    /// checksums v2 two bytes follow.
    pub struct RawTag: 12 {
        0x0 t_blocknr: U32,
        0x4 t_checksum: U16,
        0x6 t_flags: U16,
        0x8 t_blocknr_high: U32,
    }

    /// `struct journal_block_tag3_s`, with checksums v3.
    pub struct RawTag3: 16 {
        0x0 t_blocknr: U32,
        0x4 t_flags: U32,
        0x8 t_blocknr_high: U32,
        0xC t_checksum: U32,
    }
}

const NAME: &str = "descriptor block";
const HEADER_BYTES: usize = size_of::<RawHeader>();
const UUID_BYTES: usize = 16;

const FLAG_ESCAPE: u16 = 1;
const FLAG_SAME_UUID: u16 = 2;
const FLAG_LAST: u16 = 8;

/// Tag of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// The block that it is a copy of.
    pub block: PhysicalBlock,
    /// Whether it has zeros in the place of the magic number.
    pub escaped: Escaped,
    /// Its sum, as wide as the format keeps it; 0 where there is none.
    sum: u32,
}

impl Tag {
    /// Compares the checksum of `copy`, as stored in the journal. Passes if tags have none.
    ///
    /// # Errors
    /// `Corrupt` if it differs.
    pub fn verify(&self, copy: &[u8], sequence: Sequence, format: &Format) -> Result<()> {
        let name = format_args!("copy of block {} in transaction {sequence}", self.block);
        check_sum(name, self.sum, copy_sum(copy, sequence, format))
    }
}

/// The tags of a descriptor block.
///
/// # Errors
/// `Corrupt` when it is no descriptor block, or its sum is wrong.
///
/// # Panics
/// When `block` is not a whole block.
pub fn tags<'a>(block: &'a [u8], format: &Format) -> Result<Tags<'a>> {
    let tags = tags_unverified(block, format)?;
    tail::verify(NAME, block, format)?;
    Ok(tags)
}

/// The same without verifying the checksum, for a walk along the log that must know the position of
/// the block after a damaged descriptor block and its copies.
///
/// # Errors
/// `Corrupt` if it is no descriptor block.
///
/// # Panics
/// If `block` is not a whole block.
pub fn tags_unverified<'a>(block: &'a [u8], format: &Format) -> Result<Tags<'a>> {
    format.assert_block(block);
    if Header::read(block).is_none_or(|header| header.kind != BlockType::Descriptor) {
        return Err(corrupt(NAME, "no header of one"));
    }
    Ok(Tags {
        contents: &block[..format.contents_end()],
        format: *format,
        at: HEADER_BYTES,
    })
}

/// Iterator of [`tags`]. It ends after the last tag, after the first error, and where no
/// tag fits any more.
#[derive(Clone, Debug)]
pub struct Tags<'a> {
    contents: &'a [u8],
    format: Format,
    at: usize,
}

impl Iterator for Tags<'_> {
    type Item = Result<Tag>;

    fn next(&mut self) -> Option<Self::Item> {
        let start = self.at;
        let bytes = self.contents.get(start..start + self.format.tag_bytes())?;
        let (tag, flags) = decode(bytes, &self.format);
        self.at += bytes.len();
        if flags & FLAG_SAME_UUID == 0 {
            self.at += UUID_BYTES;
        }
        if self.at > self.contents.len() {
            return Some(Err(no_room(start)));
        }
        if flags & FLAG_LAST != 0 {
            self.at = self.contents.len();
        }
        Some(Ok(tag))
    }
}

fn no_room(at: usize) -> Error {
    corrupt(NAME, format_args!("tag at byte {at}: no room for its UUID"))
}

/// A tag and its flags.
fn decode(bytes: &[u8], format: &Format) -> (Tag, u16) {
    let (low, high, flags, sum) = if format.checksums == Checksums::V3 {
        let raw = RawTag3::ref_from_bytes(bytes).expect("16 bytes");
        // Only 16 flags exist.
        let flags = low16(raw.t_flags.get());
        (
            raw.t_blocknr,
            raw.t_blocknr_high,
            flags,
            raw.t_checksum.get(),
        )
    } else {
        let mut whole = [0; size_of::<RawTag>()];
        let kept = bytes.len().min(8 + high_bytes(format));
        whole[..kept].copy_from_slice(&bytes[..kept]);
        let raw = RawTag::ref_from_bytes(&whole).expect("12 bytes");
        let sum = match format.checksums {
            Checksums::V2 => raw.t_checksum.get().into(),
            _ => 0,
        };
        (raw.t_blocknr, raw.t_blocknr_high, raw.t_flags.get(), sum)
    };
    let high = match format.block_numbers {
        BlockNumbers::Bits64 => high.get(),
        BlockNumbers::Bits32 => 0,
    };
    let tag = Tag {
        block: PhysicalBlock(u64::from(high) << 32 | u64::from(low.get())),
        escaped: match flags & FLAG_ESCAPE {
            0 => Escaped::No,
            _ => Escaped::Yes,
        },
        sum,
    };
    (tag, flags)
}

/// Puts a tag where `bytes` are, which are zero.
fn encode(tag: &Tag, flags: u16, bytes: &mut [u8], format: &Format) {
    let (low, high) = (low32(tag.block.0), (tag.block.0 >> 32) as u32);
    if format.checksums == Checksums::V3 {
        let raw = RawTag3 {
            t_blocknr: low.into(),
            t_flags: u32::from(flags).into(),
            t_blocknr_high: high.into(),
            t_checksum: tag.sum.into(),
        };
        bytes.copy_from_slice(raw.as_bytes());
    } else {
        let raw = RawTag {
            t_blocknr: low.into(),
            t_checksum: low16(tag.sum).into(),
            t_flags: flags.into(),
            t_blocknr_high: high.into(),
        };
        let kept = 8 + high_bytes(format);
        bytes[..kept].copy_from_slice(&raw.as_bytes()[..kept]);
    }
}

fn high_bytes(format: &Format) -> usize {
    match format.block_numbers {
        BlockNumbers::Bits32 => 0,
        BlockNumbers::Bits64 => 4,
    }
}

/// The checksum of a copy, as stored in the journal and truncated to the width of the format.
fn copy_sum(copy: &[u8], sequence: Sequence, format: &Format) -> u32 {
    let Some(seed) = format.seed() else { return 0 };
    let sum = checksum::crc32c(seed, &sequence.0.to_be_bytes());
    let sum = checksum::crc32c(sum, copy);
    match format.checksums {
        Checksums::V2 => sum & 0xFFFF,
        _ => sum,
    }
}

/// A descriptor block in the making.
#[derive(Debug)]
pub struct DescriptorWriter<'a> {
    block: &'a mut [u8],
    format: Format,
    sequence: Sequence,
    at: usize,
    /// Offset of the last tag.
    last: Option<(usize, Tag, u16)>,
}

impl<'a> DescriptorWriter<'a> {
    /// Makes `block` a descriptor block of nothing yet.
    ///
    /// # Panics
    /// When `block` is not a whole block.
    pub fn new(block: &'a mut [u8], sequence: Sequence, format: &Format) -> Self {
        format.assert_block(block);
        block.fill(0);
        let kind = BlockType::Descriptor;
        let header = Header { kind, sequence }.encode();
        block[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        Self {
            block,
            format: *format,
            sequence,
            at: HEADER_BYTES,
            last: None,
        }
    }

    /// How many copies one descriptor block names at most.
    pub fn capacity(format: &Format) -> usize {
        (format.contents_end() - HEADER_BYTES - UUID_BYTES) / format.tag_bytes()
    }

    /// Whether no tag fits any more.
    pub fn is_full(&self) -> bool {
        let uuid = if self.last.is_none() { UUID_BYTES } else { 0 };
        self.at + self.format.tag_bytes() + uuid > self.format.contents_end()
    }

    /// Adds the tag of `copy`, a block processed by [`escape`](mod@super::escape).
    ///
    /// # Panics
    /// When the block is full, and when the number of `original` has more bits than the format.
    pub fn push(&mut self, original: PhysicalBlock, copy: &[u8], escaped: Escaped) {
        assert!(!self.is_full(), "a full descriptor block");
        let is_wide = self.format.block_numbers == BlockNumbers::Bits64;
        assert!(
            is_wide || original.0 <= u32::MAX.into(),
            "block {original} in 32 bits"
        );
        let tag = Tag {
            block: original,
            escaped,
            sum: copy_sum(copy, self.sequence, &self.format),
        };
        let mut flags = match escaped {
            Escaped::Yes => FLAG_ESCAPE,
            Escaped::No => 0,
        };
        if self.last.is_some() {
            flags |= FLAG_SAME_UUID;
        }
        let (start, bytes) = (self.at, self.format.tag_bytes());
        encode(
            &tag,
            flags,
            &mut self.block[start..start + bytes],
            &self.format,
        );
        self.at += bytes;
        if self.last.is_none() {
            self.at += UUID_BYTES;
        }
        self.last = Some((start, tag, flags));
    }

    /// Marks the last tag and seals the block.
    ///
    /// # Panics
    /// When there is no tag.
    pub fn finish(self) {
        let (start, tag, flags) = self.last.expect("a descriptor block with a tag");
        let bytes = self.format.tag_bytes();
        let place = &mut self.block[start..start + bytes];
        encode(&tag, flags | FLAG_LAST, place, &self.format);
        tail::seal(self.block, &self.format);
    }
}

#[cfg(test)]
mod tests;

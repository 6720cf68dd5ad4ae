//! The sum at the end of a block with records.

use extant_space::Result;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use super::{DirectoryFormat, Tail};
use crate::ext4::InodeSeed;
use crate::fault::{check_sum, corrupt};
use crate::narrow::fit16;
use crate::structure::on_disk;

on_disk! {
    /// `struct ext4_dir_entry_tail`: to others a free record.
    pub struct RawDirEntryTail: 12 {
        0x0 det_reserved_zero1: U32,
        0x4 det_rec_len: U16,
        0x6 det_reserved_zero2: u8,
        0x7 det_reserved_ft: u8,
        0x8 det_checksum: U32,
    }
}

const RESERVED_FT: u8 = 0xDE;

/// Compares the sum of a block with records. Passes where blocks have none.
///
/// # Errors
/// `Corrupt` when it differs, or its record is missing.
///
/// # Panics
/// When `block` is not a whole block.
pub fn verify(block: &[u8], format: &DirectoryFormat, seed: Option<InodeSeed>) -> Result<()> {
    let (Some(seed), Tail::Checksum) = (seed, format.tail) else {
        return Ok(());
    };
    let (records, tail) = block.split_at(format.records_end());
    let tail = RawDirEntryTail::ref_from_bytes(tail).expect("12 bytes");
    if *tail != empty(tail.det_checksum) {
        return Err(corrupt(
            "directory block",
            "no record for the checksum at the end",
        ));
    }
    check_sum(
        "directory block",
        tail.det_checksum.get(),
        seed.sum(records).value(),
    )
}

/// Writes the sum of a block with records, and the record that holds it. Does nothing where
/// blocks have none.
///
/// # Panics
/// When `block` is not a whole block.
pub fn seal(block: &mut [u8], format: &DirectoryFormat, seed: Option<InodeSeed>) {
    let (Some(seed), Tail::Checksum) = (seed, format.tail) else {
        return;
    };
    let (records, tail) = block.split_at_mut(format.records_end());
    let sum = seed.sum(records).value();
    tail.copy_from_slice(empty(sum.into()).as_bytes());
}

fn empty(sum: U32) -> RawDirEntryTail {
    RawDirEntryTail {
        det_reserved_zero1: 0.into(),
        det_rec_len: fit16(size_of::<RawDirEntryTail>()).into(),
        det_reserved_zero2: 0,
        det_reserved_ft: RESERVED_FT,
        det_checksum: sum,
    }
}

//! The three checksums of the formats, without the final inversion that other protocols add.
//!
//! | checksum | over |
//! |---|---|
//! | crc32c | all metadata with `metadata_csum`, the journal with checksums v2 and v3, fast commits |
//! | crc16 | group descriptors with `uninit_bg` (gdt_csum) |
//! | crc32, high bit first | the blocks of a transaction with the journal's compat checksum (v1) |
//!
//! Each takes the previous value, so that a checksum can cover several parts.

use crc::{Crc, Table};

/// Seed of a checksum.
pub(crate) const START: u32 = !0;

/// Continues a crc32c over `bytes`.
pub(crate) fn crc32c(before: u32, bytes: &[u8]) -> u32 {
    // The crate inverts before and after.
    !::crc32c::crc32c_append(!before, bytes)
}

/// The polynomial of crc32c, low bit first.
const CRC32C: u32 = 0x82F6_3B78;

/// The word, little-endian on the disk, for which a crc32c of `before`, the word and `behind`
/// equals `wanted`. There is exactly one.
pub(crate) fn crc32c_fitting_word(before: u32, behind: &[u8], wanted: u32) -> u32 {
    let at_word_end = behind
        .iter()
        .rev()
        .fold(wanted, |sum, &byte| crc32c_undone(sum, 8) ^ u32::from(byte));
    // A word changes a sum as it would change the sum's own 32 bits, followed by 32 zeros.
    crc32c_undone(at_word_end, 32) ^ before
}

/// Inverse of crc32c over `bits` zeros.
fn crc32c_undone(sum: u32, bits: u32) -> u32 {
    // A step shifts a bit out, and sets the highest one just when that was set.
    (0..bits).fold(sum, |sum, _| match sum >> 31 {
        0 => sum << 1,
        _ => (sum ^ CRC32C) << 1 | 1,
    })
}

const CRC16: Crc<u16, Table<16>> = Crc::<u16, Table<16>>::new(&crc::CRC_16_ARC);

/// Continues a crc16 (polynomial 0x8005, low bit first) over `bytes`; begin with `!0`.
pub(crate) fn crc16(before: u16, bytes: &[u8]) -> u16 {
    // The crate takes the value to begin with high bit first.
    let mut digest = CRC16.digest_with_initial(before.reverse_bits());
    digest.update(bytes);
    digest.finalize()
}

const CRC32_HIGH_FIRST: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&crc::CRC_32_MPEG_2);

/// Continues a crc32 (polynomial 0x04C11DB7, high bit first) over `bytes`.
pub(crate) fn crc32_high_first(before: u32, bytes: &[u8]) -> u32 {
    let mut digest = CRC32_HIGH_FIRST.digest_with_initial(before);
    digest.update(bytes);
    digest.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHECK: &[u8] = b"123456789";

    #[test]
    fn sums_of_the_check_string_are_those_of_the_catalogue() {
        // reveng.sourceforge.io/crc-catalogue: ISCSI (inverted), MODBUS, MPEG-2.
        assert_eq!(!crc32c(START, CHECK), 0xE306_9283);
        assert_eq!(crc16(!0, CHECK), 0x4B37);
        assert_eq!(crc32_high_first(START, CHECK), 0x0376_E6E7);
    }

    #[test]
    fn fitting_word_gives_any_sum() {
        for (number, behind) in [&[][..], CHECK, &[0; 500]].into_iter().enumerate() {
            let (before, wanted) = (0x1234_5678 + number as u32, 0x9ABC_DEF0 ^ number as u32);
            let word = crc32c_fitting_word(before, behind, wanted);
            let sum = crc32c(crc32c(before, &word.to_le_bytes()), behind);
            assert_eq!(sum, wanted);
        }
    }

    #[test]
    fn sums_in_pieces_equal_sums_at_once() {
        for cut in 0..=CHECK.len() {
            let (one, two) = CHECK.split_at(cut);
            assert_eq!(crc32c(crc32c(7, one), two), crc32c(7, CHECK));
            assert_eq!(crc16(crc16(7, one), two), crc16(7, CHECK));
            assert_eq!(
                crc32_high_first(crc32_high_first(7, one), two),
                crc32_high_first(7, CHECK)
            );
        }
    }
}

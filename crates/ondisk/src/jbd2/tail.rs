//! The sum at the end of descriptor and revoke blocks.

use extant_space::Result;

use super::Format;
use crate::checksum;
use crate::fault::check_sum;

/// Compares the sum. Passes where blocks have none.
pub(super) fn verify(name: &str, block: &[u8], format: &Format) -> Result<()> {
    format.assert_block(block);
    let Some(seed) = format.seed() else {
        return Ok(());
    };
    let (contents, tail) = block.split_at(format.contents_end());
    let stored = u32::from_be_bytes(tail.try_into().expect("4 bytes"));
    check_sum(name, stored, sum(seed, contents))
}

/// Writes the sum. Does nothing where blocks have none.
pub(super) fn seal(block: &mut [u8], format: &Format) {
    let Some(seed) = format.seed() else { return };
    let (contents, tail) = block.split_at_mut(format.contents_end());
    tail.copy_from_slice(&sum(seed, contents).to_be_bytes());
}

fn sum(seed: u32, contents: &[u8]) -> u32 {
    checksum::crc32c(checksum::crc32c(seed, contents), &[0; 4])
}

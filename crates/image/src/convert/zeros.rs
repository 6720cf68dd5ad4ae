//! Detection of zero blocks in copied data.

use extant_sys::buffer::is_zero;

/// The unit that is compared with zeros and skipped.
const BLOCK_BYTES: usize = 64 << 10;

/// Bytes of whole blocks of zeros at the start.
pub(super) fn zero_blocks(bytes: &[u8]) -> usize {
    let blocks = bytes.chunks(BLOCK_BYTES).take_while(|block| is_zero(block));
    blocks.map(<[u8]>::len).sum()
}

/// Bytes up to the next block of zeros.
pub(super) fn data_blocks(bytes: &[u8]) -> usize {
    let blocks = bytes
        .chunks(BLOCK_BYTES)
        .take_while(|block| !is_zero(block));
    blocks.map(<[u8]>::len).sum()
}

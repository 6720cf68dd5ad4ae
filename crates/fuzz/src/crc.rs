//! CRC-32C as on-disk formats use it.

/// Continues a checksum, without the inversions at start and end.
pub(crate) fn crc32c(before: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!before, bytes)
}

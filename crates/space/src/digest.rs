//! A digest that distinguishes names, without protection against collisions on purpose.

/// FNV-1a with 64 bits. Names on disks and numbers of locks contain it, so that it never changes.
///
/// Definition: "The FNV Non-Cryptographic Hash Algorithm" (IETF draft-eastlake-fnv).
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_of_the_definition_are_reproduced() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }
}

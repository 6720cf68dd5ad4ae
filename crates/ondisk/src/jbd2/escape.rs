//! Copies of blocks that begin with the journal's magic number.
//!
//! Such a copy would look like a block of the journal itself, so it is written with zeros there,
//! and its tag has the escape flag.

use super::header::MAGIC;

/// Whether a copy has zeros in the place of the magic number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Escaped {
    /// It has.
    Yes,
    /// It is not escaped.
    No,
}

/// Escapes a block for its copy in the log, and returns the state for its tag.
pub fn escape(copy: &mut [u8]) -> Escaped {
    match copy.first_chunk_mut::<4>() {
        Some(start) if *start == MAGIC.to_be_bytes() => {
            *start = [0; 4];
            Escaped::Yes
        }
        _ => Escaped::No,
    }
}

/// Makes a copy the block that it was made of.
pub fn unescape(copy: &mut [u8], escaped: Escaped) {
    if let (Escaped::Yes, Some(start)) = (escaped, copy.first_chunk_mut::<4>()) {
        *start = MAGIC.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_magic_number_at_the_start_is_escaped() {
        let mut magic = [0xC0, 0x3B, 0x39, 0x98, 7, 0xC0, 0x3B, 0x39, 0x98];
        let before = magic;
        let escaped = escape(&mut magic);
        assert_eq!(escaped, Escaped::Yes);
        assert_eq!(magic, [0, 0, 0, 0, 7, 0xC0, 0x3B, 0x39, 0x98]);
        unescape(&mut magic, escaped);
        assert_eq!(magic, before);

        // Zeros at the start are nothing special.
        let mut zeros = [0; 8];
        let escaped = escape(&mut zeros);
        unescape(&mut zeros, escaped);
        assert_eq!((escaped, zeros), (Escaped::No, [0; 8]));
    }
}

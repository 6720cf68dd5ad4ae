//! Hashes of attributes. They find blocks that could be shared, and e2fsck compares them.
//!
//! Old kernels took bytes of a name as `char`, which is signed on some machines; both forms
//! are valid.

use super::XattrValue;

/// How bytes of a name become numbers.
#[derive(Clone, Copy)]
pub(super) enum NameBytes {
    Unsigned,
    Signed,
}

/// The hash of a name and the bytes of its value.
pub(super) fn of_entry(name: &[u8], value: &[u8], bytes: NameBytes) -> u32 {
    let of_name = name.iter().fold(0_u32, |hash, &byte| {
        let number = match bytes {
            NameBytes::Unsigned => byte.into(),
            NameBytes::Signed => i32::from(byte.cast_signed()).cast_unsigned(),
        };
        hash.rotate_left(5) ^ number
    });
    value.chunks(4).fold(of_name, |hash, bytes| {
        let mut word = [0; 4];
        word[..bytes.len()].copy_from_slice(bytes);
        hash.rotate_left(16) ^ u32::from_le_bytes(word)
    })
}

/// Whether `stored` can be the hash of an entry. That of a value in an inode depends on the inode,
/// and cannot be validated here.
pub(super) fn is_right(stored: u32, name: &[u8], value: &XattrValue<'_>) -> bool {
    let XattrValue::Bytes(value) = value else {
        return true;
    };
    [NameBytes::Unsigned, NameBytes::Signed]
        .into_iter()
        .any(|bytes| of_entry(name, value, bytes) == stored)
}

/// The hash of a block, from those of its entries: 0 if one of them has none.
pub(super) fn of_block(entries: impl Iterator<Item = u32>) -> u32 {
    let mut hash = 0_u32;
    for entry in entries {
        if entry == 0 {
            return 0;
        }
        hash = hash.rotate_left(16) ^ entry;
    }
    hash
}

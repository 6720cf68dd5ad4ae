//! Changes of a valid structure.

use arbitrary::Arbitrary;

/// A change of a few bytes at an offset, which is taken modulo the length.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(crate) struct Damage {
    offset: u16,
    change: Change,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Change {
    Flip(u8),
    Byte(u8),
    Little16(u16),
    Little32(u32),
    Big32(u32),
    /// A small number, such as a count or a block.
    Small(u16),
    /// Four bytes of another place.
    Copy(u16),
}

impl Damage {
    /// Carries it out.
    pub(crate) fn apply(self, bytes: &mut [u8]) {
        let Some(last) = bytes.len().checked_sub(4) else {
            return;
        };
        let at = usize::from(self.offset) % (last + 1);
        let word = &mut bytes[at..at + 4];
        match self.change {
            Change::Flip(bit) => word[0] ^= 1 << (bit % 8),
            Change::Byte(byte) => word[0] = byte,
            Change::Little16(value) => word[..2].copy_from_slice(&value.to_le_bytes()),
            Change::Little32(value) => word.copy_from_slice(&value.to_le_bytes()),
            Change::Big32(value) => word.copy_from_slice(&value.to_be_bytes()),
            Change::Small(value) => word.copy_from_slice(&u32::from(value).to_le_bytes()),
            Change::Copy(from) => {
                let from = usize::from(from) % (last + 1);
                bytes.copy_within(from..from + 4, at);
            }
        }
    }
}

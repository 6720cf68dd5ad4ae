//! The header of every block of the journal that is not a copy.

use zerocopy::FromBytes;
use zerocopy::big_endian::U32;

use super::Sequence;
use crate::structure::on_disk;

on_disk! {
    /// `struct journal_header_s`.
    pub struct RawHeader: 12 {
        0x0 h_magic: U32,
        0x4 h_blocktype: U32,
        0x8 h_sequence: U32,
    }
}

/// `h_magic`.
pub const MAGIC: u32 = 0xC03B_3998;

/// `h_blocktype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockType {
    /// Names the blocks whose copies follow.
    Descriptor,
    /// Ends a transaction.
    Commit,
    /// The superblock, without features.
    SuperblockV1,
    /// The superblock.
    SuperblockV2,
    /// Names blocks whose older copies are revoked.
    Revoke,
}

impl BlockType {
    fn from_raw(value: u32) -> Option<Self> {
        Some(match value {
            1 => Self::Descriptor,
            2 => Self::Commit,
            3 => Self::SuperblockV1,
            4 => Self::SuperblockV2,
            5 => Self::Revoke,
            _ => return None,
        })
    }

    fn raw(self) -> u32 {
        match self {
            Self::Descriptor => 1,
            Self::Commit => 2,
            Self::SuperblockV1 => 3,
            Self::SuperblockV2 => 4,
            Self::Revoke => 5,
        }
    }
}

/// Header of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Type of the block.
    pub kind: BlockType,
    /// The transaction that it belongs to.
    pub sequence: Sequence,
}

impl Header {
    /// The header of a block; `None` where there is none, or an unknown type. In a walk along the
    /// ring that is not an error: the log ends there, as it does at an unexpected sequence.
    pub fn read(block: &[u8]) -> Option<Self> {
        let (raw, _) = RawHeader::ref_from_prefix(block).ok()?;
        let kind = BlockType::from_raw(raw.h_blocktype.get())?;
        (raw.h_magic.get() == MAGIC).then_some(Self {
            kind,
            sequence: Sequence(raw.h_sequence.get()),
        })
    }

    pub(super) fn encode(self) -> RawHeader {
        RawHeader {
            h_magic: MAGIC.into(),
            h_blocktype: self.kind.raw().into(),
            h_sequence: self.sequence.0.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    #[test]
    fn headers_of_all_types_come_back_and_others_are_none() {
        for number in 0..8 {
            let raw = RawHeader {
                h_magic: MAGIC.into(),
                h_blocktype: number.into(),
                h_sequence: 9.into(),
            };
            let header = Header::read(raw.as_bytes());
            assert_eq!(header.is_some(), (1..=5).contains(&number), "{number}");
            if let Some(header) = header {
                assert_eq!(header.encode(), raw);
            }
        }
        assert_eq!(Header::read(&[0; 4096]), None);
        assert_eq!(Header::read(&MAGIC.to_be_bytes()), None);
    }
}

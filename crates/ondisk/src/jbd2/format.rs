//! The layout of a journal's blocks, as determined by its features.

use crate::checksum::{self, START};

/// The checksums of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksums {
    /// None.
    None,
    /// One crc32 over the blocks of a transaction, in its commit block (v1, a compat feature).
    Transaction,
    /// A crc32c in every block and, cut to 16 bits, in every tag.
    V2,
    /// A crc32c in every block and every tag.
    V3,
}

/// How wide numbers of blocks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockNumbers {
    /// 32 bits.
    Bits32,
    /// 64 bits (`64bit`).
    Bits64,
}

/// Properties of a journal that the format of its blocks depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Bytes of a block, those of a block of the file system.
    pub block_bytes: u32,
    /// The kind of checksums.
    pub checksums: Checksums,
    /// How wide numbers of blocks are.
    pub block_numbers: BlockNumbers,
    /// The journal's UUID, the seed of checksums.
    pub uuid: [u8; 16],
}

impl Format {
    /// Bytes of a tag in a descriptor block, without a UUID behind it.
    pub fn tag_bytes(&self) -> usize {
        match (self.checksums, self.block_numbers) {
            (Checksums::V3, _) => 16,
            // The checksum is inside the tag; the 2 additional bytes are an old mistake that is the
            // format now.
            (Checksums::V2, BlockNumbers::Bits64) => 14,
            (Checksums::V2, BlockNumbers::Bits32) => 10,
            (_, BlockNumbers::Bits64) => 12,
            (_, BlockNumbers::Bits32) => 8,
        }
    }

    /// Bytes of a number in a revoke block.
    pub fn number_bytes(&self) -> usize {
        match self.block_numbers {
            BlockNumbers::Bits32 => 4,
            BlockNumbers::Bits64 => 8,
        }
    }

    /// Offset of the checksum at the end of descriptor and revoke blocks, or the end of the block.
    pub(super) fn contents_end(&self) -> usize {
        let tail = if self.seed().is_some() { 4 } else { 0 };
        self.block_bytes as usize - tail
    }

    /// The seed of block checksums; `None` if blocks have none.
    pub(super) fn seed(&self) -> Option<u32> {
        match self.checksums {
            Checksums::None | Checksums::Transaction => None,
            Checksums::V2 | Checksums::V3 => Some(checksum::crc32c(START, &self.uuid)),
        }
    }

    pub(super) fn assert_block(&self, block: &[u8]) {
        assert_eq!(
            block.len(),
            self.block_bytes as usize,
            "not a block of the journal"
        );
    }
}

//! The source of block bitmaps.

use extant_space::Result;

use crate::GroupNumber;

/// The bitmaps of a file system, read when a group is first needed.
///
/// Called with the group locked; other groups remain usable.
pub trait BitmapSource: Send + Sync {
    /// Number of free blocks of a group, from its descriptor.
    fn free_blocks(&self, group: GroupNumber) -> u32;

    /// Fills in the bitmap of a group: bit n of word n / 64 is set when block n of the group is in
    /// use, as in the on-disk bitmap block read as little-endian words. Bits past the end of the
    /// group must be set. After an error the group counts as corrupt.
    fn load(&self, group: GroupNumber, used: &mut [u64]) -> Result<()>;
}

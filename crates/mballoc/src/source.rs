//! Where the allocator learns what is free.

use extant_space::Result;

use crate::GroupNumber;

/// The bitmaps of a file system, read when a group is first needed.
///
/// Called with the group locked; other groups stay usable meanwhile.
pub trait BitmapSource: Send + Sync {
    /// Number of free blocks of a group, as its descriptor says.
    fn free_blocks(&self, group: GroupNumber) -> u32;

    /// Fills in the bitmap of a group: bit n of word n / 64 is set when block n of the group is in
    /// use, as in the file system's own bitmap block read as little-endian words. Bits past the end
    /// of the group have to be set. An error takes the group out of use.
    fn load(&self, group: GroupNumber, used: &mut [u64]) -> Result<()>;
}

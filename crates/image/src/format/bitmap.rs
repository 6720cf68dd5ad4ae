//! Persistent bitmaps: which parts of the guest's disk were written since some time.
//!
//! A directory of entries, each with a table of the clusters that hold its bits. QEMU opens an
//! image only when the table of each bitmap that is not in use is as long as the disk needs.

use extant_ondisk::on_disk;
use zerocopy::big_endian::{U16, U32, U64};

use super::Geometry;

on_disk! {
    /// The header extension.
    pub struct RawBitmaps: 24 {
        0x00 nb_bitmaps: U32,
        0x04 reserved: U32,
        0x08 bitmap_directory_size: U64,
        0x10 bitmap_directory_offset: U64,
    }

    /// Begins an entry of the directory; extra data and the name follow, filled up to a multiple of
    /// 8 bytes.
    pub struct RawBitmap: 24 {
        0x00 bitmap_table_offset: U64,
        0x08 bitmap_table_size: U32,
        0x0C flags: U32,
        0x10 kind: u8,
        0x11 granularity_bits: u8,
        0x12 name_size: U16,
        0x14 extra_data_size: U32,
    }
}

impl RawBitmaps {
    /// Largest directory, as in QEMU.
    pub(crate) const DIRECTORY_BYTES_MAX: u64 = 64 << 20;
}

impl RawBitmap {
    /// Limit of a table, as in QEMU.
    pub(crate) const TABLE_ENTRIES_MAX: u32 = 32 << 20;
    /// It was not saved by its last user and is invalid.
    pub(crate) const IN_USE: u32 = 1;
    /// It is kept up to date from when the image is opened.
    pub(crate) const AUTO: u32 = 1 << 1;
    /// Extra data may be ignored by readers that do not know it.
    pub(crate) const EXTRA_DATA_COMPATIBLE: u32 = 1 << 2;
    /// Each bit says whether a part was written.
    pub(crate) const DIRTY_TRACKING: u8 = 1;

    /// Bytes of the entry in the directory.
    pub(crate) fn entry_bytes(&self) -> u64 {
        let rest = u64::from(self.name_size.get()) + u64::from(self.extra_data_size.get());
        (size_of::<Self>() as u64 + rest).next_multiple_of(8)
    }

    /// Entries of the table that a disk of `virtual_bytes` needs; `None` for a granularity that
    /// cannot be.
    pub(crate) fn table_entries(&self, geometry: Geometry, virtual_bytes: u64) -> Option<u64> {
        let granularity = 1_u64.checked_shl(self.granularity_bits.into())?;
        let bits = virtual_bytes.div_ceil(granularity);
        Some(geometry.clusters(bits.div_ceil(8)))
    }
}

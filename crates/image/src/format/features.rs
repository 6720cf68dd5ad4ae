//! The three sets of features. A program that does not know a feature must refuse the image
//! (incompatible), may ignore it (compatible), or has to clear it before writing (autoclear).

use bitflags::bitflags;

bitflags! {
    /// A program that does not know one of them cannot read the image.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Incompatible: u64 {
        /// Refcounts may be wrong: they are rebuilt before the image is written.
        const DIRTY = 1;
        /// Structures are damaged: the image is not written until it is repaired.
        const CORRUPT = 1 << 1;
        /// The guest's data is in another file.
        const DATA_FILE = 1 << 2;
        /// The header says how clusters are compressed.
        const COMPRESSION_TYPE = 1 << 3;
        /// L2 entries of 16 bytes, with subclusters.
        const EXTENDED_L2 = 1 << 4;
        // Unknown bits are kept.
        const _ = !0;
    }

    /// Any implementation may ignore them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Compatible: u64 {
        /// Refcounts are written later; the dirty bit marks them as outdated.
        const LAZY_REFCOUNTS = 1;
        // Unknown bits are kept.
        const _ = !0;
    }

    /// A program that writes and does not know one clears it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Autoclear: u64 {
        /// The bitmaps of the extension are consistent.
        const BITMAPS = 1;
        /// The data file reads as the guest does.
        const RAW_DATA_FILE = 1 << 1;
        // Unknown bits are kept.
        const _ = !0;
    }
}

impl Incompatible {
    /// Known features; extended L2 entries are known and refused.
    pub(crate) const KNOWN: Self = Self::from_bits_retain(0x1f);
}

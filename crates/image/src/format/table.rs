//! Entries of L1 and L2 tables: the mapping of guest clusters.
//!
//! An entry is kept unchanged ([`L1Entry::raw`]); decoding validates its offset. Reserved bits are
//! ignored by readers, as in QEMU, and reported by a check.

use extant_space::Result;

use super::fault::corrupt;
use super::{Geometry, Version};

/// Bits 9 to 55: an offset in the file.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
/// Bit 63: the refcount is exactly one, so the cluster may be overwritten in place.
const COPIED: u64 = 1 << 63;
/// Bit 62: compressed.
const COMPRESSED: u64 = 1 << 62;
/// Bit 0: reads as zeros, whatever the cluster holds (v3).
const ZERO: u64 = 1;
/// A compressed cluster occupies whole units of this size.
const COMPRESSED_UNIT: u64 = 512;

/// An entry of the L1 table: the place of an L2 table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct L1Entry(pub u64);

impl L1Entry {
    /// No table: its whole range is unallocated.
    pub const NONE: Self = Self(0);

    /// The table at `offset`, which nothing else uses.
    ///
    /// # Panics
    /// When the format cannot hold the offset.
    pub fn exclusive(offset: u64) -> Self {
        assert_eq!(offset & !OFFSET, 0, "no offset of a cluster: {offset:#x}");
        Self(offset | COPIED)
    }

    /// The bits in file format.
    pub fn raw(self) -> u64 {
        self.0
    }

    /// The same, with the flag that says whether the refcount of the table is one.
    pub(crate) fn with_copied(self, is_copied: bool) -> Self {
        Self(self.0 & !COPIED | if is_copied { COPIED } else { 0 })
    }

    /// The refcount of the table is one.
    pub fn is_copied(self) -> bool {
        self.0 & COPIED != 0
    }

    /// Bits that have no meaning.
    pub fn reserved(self) -> u64 {
        self.0 & !(OFFSET | COPIED)
    }

    /// Offset of the table, unvalidated; 0: none.
    pub fn offset(self) -> u64 {
        self.0 & OFFSET
    }

    /// Offset of the table of L1 entry `index`; `None`: none.
    ///
    /// # Errors
    /// `Corrupt` for an offset inside a cluster, or beyond the end of the file.
    pub fn table(self, geometry: Geometry, index: u64, file_bytes: u64) -> Result<Option<u64>> {
        match self.offset() {
            0 => Ok(None),
            offset => {
                let is_inside = offset
                    .checked_add(geometry.cluster_bytes())
                    .is_some_and(|end| end <= file_bytes);
                if geometry.is_aligned(offset) && is_inside {
                    Ok(Some(offset))
                } else {
                    Err(corrupt(
                        format_args!("L1 entry {index}"),
                        format_args!(
                            "points at {offset:#x}, which is no L2 table in a file of {file_bytes:#x} bytes"
                        ),
                    ))
                }
            }
        }
    }
}

/// Location of a compressed cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressedPlace {
    /// First byte in the file, at no special alignment.
    pub offset: u64,
    /// Bytes up to the end of the last unit; the compressed data may end before.
    pub length_bytes: u64,
}

/// The mapping of a guest cluster by its L2 entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// It is not in this image: it reads as the backing file, or as zeros.
    Unallocated,
    /// It reads as zeros; the space that it has nevertheless.
    Zero(Option<u64>),
    /// At this offset (of the data file, if there is one).
    Data(u64),
    /// It is compressed.
    Compressed(CompressedPlace),
}

/// Facts of the header of an image that decide the meaning of its L2 entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryRules {
    /// Version 2 has no zero clusters.
    pub version: Version,
    /// Offsets are those of a data file, where 0 is valid as well.
    pub has_data_file: bool,
}

impl EntryRules {
    /// Whether `entry` is a zero cluster in an image that cannot have any.
    pub(crate) fn forbids(self, entry: L2Entry) -> bool {
        self.version == Version::V2 && entry.0 & (COMPRESSED | ZERO) == ZERO
    }
}

/// An entry of an L2 table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct L2Entry(pub u64);

impl L2Entry {
    /// Nothing: the backing file's, or zeros.
    pub const UNALLOCATED: Self = Self(0);
    /// Zeros without space (v3).
    pub const ZERO: Self = Self(ZERO);

    /// The cluster at `offset`, which nothing else uses.
    ///
    /// # Panics
    /// When the format cannot hold the offset.
    pub fn exclusive(offset: u64) -> Self {
        assert_eq!(offset & !OFFSET, 0, "no offset of a cluster: {offset:#x}");
        Self(offset | COPIED)
    }

    /// The bits in file format.
    pub fn raw(self) -> u64 {
        self.0
    }

    /// The same, with the flag that says whether the refcount of the cluster is one.
    pub(crate) fn with_copied(self, is_copied: bool) -> Self {
        Self(self.0 & !COPIED | if is_copied { COPIED } else { 0 })
    }

    /// The refcount of the cluster is one: it may be overwritten in place.
    pub fn is_copied(self) -> bool {
        self.0 & COPIED != 0
    }

    /// Bits that have no meaning.
    pub fn reserved(self) -> u64 {
        match self.0 & COMPRESSED {
            0 => self.0 & !(OFFSET | COPIED | COMPRESSED | ZERO),
            _ => 0,
        }
    }

    /// The offset of a cluster that is not compressed, whatever it is worth.
    pub fn offset(self) -> u64 {
        self.0 & OFFSET
    }

    /// Decodes the entry; `guest_offset` names the cluster in an error.
    ///
    /// The location is validated against the format, not against a file.
    ///
    /// # Errors
    /// `Corrupt` for an offset inside a cluster, and for a zero cluster in version 2.
    pub fn mapping(
        self,
        geometry: Geometry,
        rules: EntryRules,
        guest_offset: u64,
    ) -> Result<Mapping> {
        if self.0 & COMPRESSED != 0 {
            return Ok(Mapping::Compressed(self.compressed(geometry)));
        }
        let offset = self.0 & OFFSET;
        if !geometry.is_aligned(offset) {
            return Err(corrupt(
                format_args!("L2 entry of guest offset {guest_offset:#x}"),
                format_args!("points at {offset:#x}, which is not the start of a cluster"),
            ));
        }
        if rules.forbids(self) {
            return Err(corrupt(
                format_args!("L2 entry of guest offset {guest_offset:#x}"),
                "is a zero cluster, which version 2 does not have",
            ));
        }
        let has_place = offset != 0 || (rules.has_data_file && self.is_copied());
        Ok(match (self.0 & ZERO != 0, has_place) {
            (true, true) => Mapping::Zero(Some(offset)),
            (true, false) => Mapping::Zero(None),
            (false, true) => Mapping::Data(offset),
            (false, false) => Mapping::Unallocated,
        })
    }

    fn compressed(self, geometry: Geometry) -> CompressedPlace {
        let offset_bits = 62 - (geometry.cluster_bits() - 8);
        let offset = self.0 & ((1 << offset_bits) - 1);
        let units = ((self.0 & !(COMPRESSED | COPIED)) >> offset_bits) + 1;
        CompressedPlace {
            offset,
            length_bytes: units * COMPRESSED_UNIT - offset % COMPRESSED_UNIT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: EntryRules = EntryRules {
        version: Version::V3,
        has_data_file: false,
    };

    fn geometry() -> Geometry {
        Geometry::new(16, 4).unwrap()
    }

    #[test]
    fn entry_kinds_are_distinguished() {
        let mapping = |raw| L2Entry(raw).mapping(geometry(), PLAIN, 0).unwrap();
        assert_eq!(mapping(0), Mapping::Unallocated);
        assert_eq!(mapping(1), Mapping::Zero(None));
        assert_eq!(mapping(0x8000_0000_0005_0001), Mapping::Zero(Some(0x50000)));
        assert_eq!(mapping(0x8000_0000_0005_0000), Mapping::Data(0x50000));
        assert_eq!(mapping(0x5_0000), Mapping::Data(0x50000));
        assert_eq!(mapping(COPIED), Mapping::Unallocated);
    }

    #[test]
    fn offset_zero_is_a_place_in_a_data_file() {
        let rules = EntryRules {
            has_data_file: true,
            ..PLAIN
        };
        let entry = L2Entry::exclusive(0);
        assert_eq!(
            entry.mapping(geometry(), rules, 0).unwrap(),
            Mapping::Data(0)
        );
        let unallocated = L2Entry::UNALLOCATED.mapping(geometry(), rules, 0).unwrap();
        assert_eq!(unallocated, Mapping::Unallocated);
    }

    #[test]
    fn compressed_length_ends_at_a_sector() {
        // 64 KiB clusters: 54 bits of offset, then 8 bits of sectors.
        let entry = L2Entry(COMPRESSED | (2 << 54) | 0x5_0064);
        let place = CompressedPlace {
            offset: 0x5_0064,
            length_bytes: 3 * 512 - 0x64,
        };
        let mapping = entry.mapping(geometry(), PLAIN, 0).unwrap();
        assert_eq!(mapping, Mapping::Compressed(place));
    }

    #[test]
    fn zero_cluster_in_version_2_is_corrupt() {
        let rules = EntryRules {
            version: Version::V2,
            ..PLAIN
        };
        for raw in [1, 0x8000_0000_0005_0001] {
            let error = L2Entry(raw).mapping(geometry(), rules, 0).unwrap_err();
            assert!(error.to_string().contains("zero cluster"), "{error}");
        }
        // The same bit of a compressed cluster is part of its offset.
        let compressed = L2Entry(COMPRESSED | 0x5_0001);
        compressed.mapping(geometry(), rules, 0).unwrap();
    }

    #[test]
    fn offset_inside_a_cluster_is_corrupt() {
        let error = L2Entry(0x5_0200)
            .mapping(geometry(), PLAIN, 0x30000)
            .unwrap_err();
        assert!(
            error.to_string().contains("guest offset 0x30000"),
            "{error}"
        );
        let error = L1Entry(0x200).table(geometry(), 7, 1 << 30).unwrap_err();
        assert!(error.to_string().contains("L1 entry 7"), "{error}");
        assert!(L1Entry(0x10000).table(geometry(), 0, 0x1_ffff).is_err());
        assert_eq!(
            L1Entry(0x10000).table(geometry(), 0, 0x2_0000).unwrap(),
            Some(0x10000)
        );
    }
}

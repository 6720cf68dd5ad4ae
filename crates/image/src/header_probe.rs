//! Header probe: the contents of the first bytes of a qcow2 file, for lists of many files.
//!
//! Nothing else is read: the result is sufficient for sizes, not for using the image.

use zerocopy::FromBytes;

use crate::format::{Geometry, RawHeader, RawHeaderV3};
use crate::layout::{Layout, Mapped};

/// Width of the refcounts of version 2, as an order.
const REFCOUNT_ORDER_V2: u32 = 4;

/// Sizes of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderProbe {
    /// Size of the guest's disk.
    pub virtual_bytes: u64,
    /// Size of the file with every guest cluster written.
    pub fully_allocated_bytes: u64,
}

impl HeaderProbe {
    /// First bytes that are needed.
    pub const BYTES: usize = size_of::<RawHeader>() + size_of::<RawHeaderV3>();

    /// Takes the sizes from the `first` bytes of a file; `None` when they are not those of a qcow2
    /// image that can be.
    pub fn of(first: &[u8]) -> Option<Self> {
        if !crate::format::Header::is_qcow2(first) {
            return None;
        }
        let (raw, rest) = RawHeader::ref_from_prefix(first).ok()?;
        let order = match raw.version.get() {
            2 => REFCOUNT_ORDER_V2,
            3 => RawHeaderV3::ref_from_prefix(rest)
                .ok()?
                .0
                .refcount_order
                .get(),
            _ => return None,
        };
        let geometry = Geometry::new(raw.cluster_bits.get(), order).ok()?;
        let virtual_bytes = raw.size.get();
        i64::try_from(virtual_bytes).ok()?;
        let layout = Layout::new(geometry, virtual_bytes, Mapped::Here).ok()?;
        Some(Self {
            virtual_bytes,
            fully_allocated_bytes: layout.file_bytes(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Header;
    use crate::{Format, ImageOptions, measure};

    #[test]
    fn sizes_are_those_of_the_header_and_of_the_measurement() {
        for (cluster_bytes, virtual_bytes) in [(512, 5 << 20), (65_536, 1 << 40), (2 << 20, 512)] {
            let mut options = ImageOptions::new(Format::Qcow2, virtual_bytes);
            options.qcow2.cluster_bytes = cluster_bytes;
            let header = Header::new(options.qcow2.geometry().unwrap(), virtual_bytes);
            let glance = HeaderProbe::of(&header.encode().unwrap()).unwrap();
            assert_eq!(glance.virtual_bytes, virtual_bytes);
            let measured = measure(&options, 0).unwrap();
            assert_eq!(glance.fully_allocated_bytes, measured.fully_allocated_bytes);
        }
    }

    #[test]
    fn invalid_header_has_no_sizes() {
        let geometry = Geometry::new(16, 4).unwrap();
        let good = Header::new(geometry, 1 << 30).encode().unwrap();
        assert!(HeaderProbe::of(&good).is_some());
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        for bytes in [
            with(0, 0),
            with(7, 9),
            // Clusters of 2^40 bytes, a disk past the largest one, refcounts of 2^200 bits.
            with(23, 40),
            with(24, 0xff),
            with(99, 200),
            good[..HeaderProbe::BYTES - 1].to_vec(),
            Vec::new(),
        ] {
            assert_eq!(HeaderProbe::of(&bytes), None);
        }
    }
}

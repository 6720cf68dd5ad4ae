//! Refcounts: how often each cluster of the file is used.
//!
//! A table of offsets of blocks; a block is a cluster of counts of 1 to 64 bits. Counts of less
//! than a byte fill it from its lowest bits, wider ones are big-endian.

use extant_space::Result;

use super::Geometry;
use super::fault::corrupt;

/// An entry of the refcount table: the place of a refcount block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RefcountTableEntry(pub u64);

impl RefcountTableEntry {
    const RESERVED: u64 = 0x1ff;

    /// The bits in file format.
    pub fn raw(self) -> u64 {
        self.0
    }

    /// Bits that have no meaning.
    pub fn reserved(self) -> u64 {
        self.0 & Self::RESERVED
    }

    /// Offset of the block, unvalidated; 0: none.
    pub fn offset(self) -> u64 {
        self.0 & !Self::RESERVED
    }

    /// Offset of the block of table entry `index`; `None`: all its counts are 0.
    ///
    /// # Errors
    /// `Corrupt` for an offset inside a cluster, or beyond the end of the file.
    pub fn block(self, geometry: Geometry, index: u64, file_bytes: u64) -> Result<Option<u64>> {
        let offset = self.offset();
        if offset == 0 {
            return Ok(None);
        }
        let end = offset.checked_add(geometry.cluster_bytes());
        if geometry.is_aligned(offset) && end.is_some_and(|end| end <= file_bytes) {
            return Ok(Some(offset));
        }
        Err(corrupt(
            format_args!("refcount table entry {index}"),
            format_args!(
                "points at {offset:#x}, which is no refcount block in a file of {file_bytes:#x} bytes"
            ),
        ))
    }
}

/// The counts of one block, over its bytes.
#[derive(Clone, Copy, Debug)]
pub struct RefcountBlock<B> {
    bytes: B,
    order: u32,
}

impl<B: AsRef<[u8]>> RefcountBlock<B> {
    /// The block in `bytes`.
    ///
    /// # Panics
    /// When `bytes` is not a whole cluster.
    pub fn new(bytes: B, geometry: Geometry) -> Self {
        assert_eq!(bytes.as_ref().len() as u64, geometry.cluster_bytes());
        Self {
            bytes,
            order: geometry.refcount_order(),
        }
    }

    /// The count at `index`.
    ///
    /// # Panics
    /// When the block has no such count.
    pub fn get(&self, index: usize) -> u64 {
        let bytes = self.bytes.as_ref();
        match self.order {
            order @ 0..3 => {
                let per_byte_order = 3 - order;
                let byte = bytes[index >> per_byte_order];
                let shift = (index & ((1 << per_byte_order) - 1)) << order;
                u64::from(byte >> shift) & low_bits(1 << order)
            }
            order => {
                let width = 1 << (order - 3);
                let bytes = &bytes[index * width..][..width];
                bytes
                    .iter()
                    .fold(0, |count, &byte| count << 8 | u64::from(byte))
            }
        }
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> RefcountBlock<B> {
    /// Sets the count at `index`.
    ///
    /// # Panics
    /// When the block has no such count, or `count` is wider than its bits.
    pub fn set(&mut self, index: usize, count: u64) {
        assert!(
            count <= low_bits(1 << self.order),
            "a refcount of {count} in {} bits",
            1 << self.order
        );
        let bytes = self.bytes.as_mut();
        match self.order {
            order @ 0..3 => {
                let per_byte_order = 3 - order;
                let byte = &mut bytes[index >> per_byte_order];
                let shift = (index & ((1 << per_byte_order) - 1)) << order;
                *byte &= !(((low_bits(1 << order) & 0xFF) as u8) << shift);
                *byte |= ((count & 0xFF) as u8) << shift;
            }
            order => {
                let width = 1 << (order - 3);
                bytes[index * width..][..width].copy_from_slice(&count.to_be_bytes()[8 - width..]);
            }
        }
    }
}

fn low_bits(bits: u32) -> u64 {
    u64::MAX >> (64 - bits)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn counts_below_a_byte_begin_at_its_low_bits() {
        let mut bytes = vec![0; 512];
        RefcountBlock::new(&mut bytes, Geometry::new(9, 0).unwrap()).set(1, 1);
        assert_eq!(bytes[0], 2);
        RefcountBlock::new(&mut bytes, Geometry::new(9, 2).unwrap()).set(3, 0xf);
        assert_eq!(bytes[..2], [2, 0xf0]);
        RefcountBlock::new(&mut bytes, Geometry::new(9, 4).unwrap()).set(2, 0x102);
        assert_eq!(bytes[4..6], [1, 2]);
    }

    proptest! {
        #[test]
        fn counts_of_every_width_keep_their_neighbours(
            order in 0u32..=6,
            writes in prop::collection::vec((0usize..64, any::<u64>()), 1..40),
        ) {
            let geometry = Geometry::new(9, order).unwrap();
            let mut block = RefcountBlock::new(vec![0; 512], geometry);
            let mut model = [0; 64];
            for (index, count) in writes {
                let count = count & geometry.refcount_max();
                block.set(index, count);
                model[index] = count;
            }
            for (index, count) in model.into_iter().enumerate() {
                prop_assert_eq!(block.get(index), count);
            }
        }
    }
}

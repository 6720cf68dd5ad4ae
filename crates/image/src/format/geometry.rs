//! Sizes that follow from the cluster size and the width of refcounts.

use extant_space::Result;

use super::fault::corrupt;

/// Cluster size and refcount width of an image, both checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    cluster_bits: u32,
    refcount_order: u32,
}

impl Geometry {
    /// Clusters of 512 bytes.
    pub const CLUSTER_BITS_MIN: u32 = 9;
    /// Clusters of 2 MiB.
    pub const CLUSTER_BITS_MAX: u32 = 21;
    /// Refcounts of 64 bits.
    pub const REFCOUNT_ORDER_MAX: u32 = 6;

    /// Clusters of `1 << cluster_bits` bytes, refcounts of `1 << refcount_order` bits.
    ///
    /// # Errors
    /// `Corrupt` for values that the format does not allow.
    pub fn new(cluster_bits: u32, refcount_order: u32) -> Result<Self> {
        if !(Self::CLUSTER_BITS_MIN..=Self::CLUSTER_BITS_MAX).contains(&cluster_bits) {
            return Err(corrupt(
                "header.cluster_bits",
                format_args!(
                    "{cluster_bits} is outside {} to {}",
                    Self::CLUSTER_BITS_MIN,
                    Self::CLUSTER_BITS_MAX
                ),
            ));
        }
        if refcount_order > Self::REFCOUNT_ORDER_MAX {
            return Err(corrupt(
                "header.refcount_order",
                format_args!("{refcount_order} is above {}", Self::REFCOUNT_ORDER_MAX),
            ));
        }
        Ok(Self {
            cluster_bits,
            refcount_order,
        })
    }

    /// Base-2 logarithm of the cluster size.
    pub fn cluster_bits(self) -> u32 {
        self.cluster_bits
    }

    /// Base-2 logarithm of the bits of a refcount.
    pub fn refcount_order(self) -> u32 {
        self.refcount_order
    }

    /// Bytes of a cluster.
    pub fn cluster_bytes(self) -> u64 {
        1 << self.cluster_bits
    }

    /// Bits of a refcount.
    pub fn refcount_bits(self) -> u32 {
        1 << self.refcount_order
    }

    /// The largest refcount.
    pub fn refcount_max(self) -> u64 {
        u64::MAX >> (64 - self.refcount_bits())
    }

    /// Entries of an L2 table, which is one cluster.
    pub fn l2_entries(self) -> u64 {
        self.cluster_bytes() / 8
    }

    /// Guest bytes that an L2 table maps.
    pub fn l2_coverage_bytes(self) -> u64 {
        self.l2_entries() << self.cluster_bits
    }

    /// Refcounts in a block, which is one cluster.
    pub fn refcount_block_entries(self) -> u64 {
        (self.cluster_bytes() * 8) >> self.refcount_order
    }

    /// Clusters that `bytes` take, the last one perhaps in part.
    pub fn clusters(self, bytes: u64) -> u64 {
        bytes.div_ceil(self.cluster_bytes())
    }

    /// L2 tables that map `virtual_bytes`: the entries that the L1 table needs.
    pub fn l1_entries(self, virtual_bytes: u64) -> u64 {
        virtual_bytes.div_ceil(self.l2_coverage_bytes())
    }

    /// True at the start of a cluster.
    pub fn is_aligned(self, offset: u64) -> bool {
        offset.is_multiple_of(self.cluster_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn geometry_of_qemus_default() {
        let geometry = Geometry::new(16, 4).unwrap();
        assert_eq!(geometry.cluster_bytes(), 65_536);
        assert_eq!(geometry.l2_entries(), 8192);
        assert_eq!(geometry.l2_coverage_bytes(), 512 << 20);
        assert_eq!(geometry.refcount_block_entries(), 32_768);
        assert_eq!(geometry.refcount_max(), 65_535);
        assert_eq!(geometry.l1_entries((512 << 20) + 1), 2);
    }

    #[test]
    fn sizes_outside_the_format_are_refused() {
        for (cluster_bits, refcount_order) in [(8, 4), (22, 4), (u32::MAX, 4), (16, 7)] {
            assert!(Geometry::new(cluster_bits, refcount_order).is_err());
        }
        assert_eq!(Geometry::new(9, 6).unwrap().refcount_max(), u64::MAX);
        assert_eq!(Geometry::new(9, 0).unwrap().refcount_max(), 1);
    }
}

//! Layout of a new qcow2 file.
//!
//! All metadata is first, contiguously: header, refcount table, refcount blocks, L1 table, L2
//! tables. The guest's data follows contiguously in guest order, aligned to a block of the host: an
//! image of many clusters is one extent if the file is one. The gap between the two is free.
//!
//! The numbers of refcount blocks and of counted clusters depend on each other; they grow until
//! they fit.

use extant_space::{ByteSize, Error, ErrorKind, Result};

use crate::format::Geometry;

/// Bytes at which the guest's data begins, where clusters are smaller.
pub(crate) const DATA_ALIGNMENT: u64 = 4096;
const L1_BYTES_MAX: u64 = 32 << 20;
const REFCOUNT_TABLE_BYTES_MAX: u64 = 8 << 20;

/// The guest's clusters that are allocated in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mapped {
    /// None: there are no L2 tables.
    Nothing,
    /// All, in an external data file: L2 tables, and no data.
    Elsewhere,
    /// All, here.
    Here,
    /// This number of clusters, mapped by this number of L2 tables.
    Some { clusters: u64, tables: u64 },
}

/// The places, in clusters but for those named otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) geometry: Geometry,
    pub(crate) virtual_bytes: u64,
    pub(crate) refcount_table_clusters: u64,
    pub(crate) refcount_blocks: u64,
    pub(crate) l1_entries: u64,
    pub(crate) l1_clusters: u64,
    pub(crate) l2_tables: u64,
    pub(crate) data_start: u64,
    pub(crate) data_clusters: u64,
}

/// The refcount table follows the header.
pub(crate) const REFCOUNT_TABLE_START: u64 = 1;

impl Layout {
    /// # Errors
    /// `TooLarge` where the tables of the format have no room.
    pub(crate) fn new(geometry: Geometry, virtual_bytes: u64, mapped: Mapped) -> Result<Self> {
        let l1_entries = geometry.l1_entries(virtual_bytes);
        let too_large = |table: &str| {
            Error::new(ErrorKind::TooLarge)
                .detail(format!(
                    "{} is more than the {table} of clusters of {} can hold",
                    ByteSize(virtual_bytes),
                    ByteSize(geometry.cluster_bytes())
                ))
                .advice("choose larger clusters (cluster_size)")
        };
        if l1_entries > L1_BYTES_MAX / 8 {
            return Err(too_large("L1 table"));
        }
        let mut layout = Self {
            geometry,
            virtual_bytes,
            refcount_table_clusters: 1,
            refcount_blocks: 1,
            l1_entries,
            l1_clusters: geometry.clusters(l1_entries * 8),
            l2_tables: match mapped {
                Mapped::Nothing => 0,
                Mapped::Elsewhere | Mapped::Here => l1_entries,
                Mapped::Some { tables, .. } => tables,
            },
            data_start: 0,
            data_clusters: match mapped {
                Mapped::Here => geometry.clusters(virtual_bytes),
                Mapped::Nothing | Mapped::Elsewhere => 0,
                Mapped::Some { clusters, .. } => clusters,
            },
        };
        loop {
            let alignment = geometry.clusters(DATA_ALIGNMENT);
            layout.data_start = match layout.data_clusters {
                0 => layout.metadata_clusters(),
                _ => layout.metadata_clusters().next_multiple_of(alignment),
            };
            let blocks = layout.end().div_ceil(geometry.refcount_block_entries());
            let table_clusters = geometry.clusters(blocks * 8);
            let fits = blocks <= layout.refcount_blocks
                && table_clusters <= layout.refcount_table_clusters;
            if fits {
                break;
            }
            layout.refcount_blocks = layout.refcount_blocks.max(blocks);
            layout.refcount_table_clusters = layout.refcount_table_clusters.max(table_clusters);
        }
        if layout.refcount_table_clusters * geometry.cluster_bytes() > REFCOUNT_TABLE_BYTES_MAX {
            return Err(too_large("refcount table"));
        }
        Ok(layout)
    }

    pub(crate) fn refcount_blocks_start(&self) -> u64 {
        REFCOUNT_TABLE_START + self.refcount_table_clusters
    }

    pub(crate) fn l1_start(&self) -> u64 {
        self.refcount_blocks_start() + self.refcount_blocks
    }

    pub(crate) fn l2_start(&self) -> u64 {
        self.l1_start() + self.l1_clusters
    }

    /// The metadata, from the start of the file.
    pub(crate) fn metadata_clusters(&self) -> u64 {
        self.l2_start() + self.l2_tables
    }

    /// One past the last cluster.
    pub(crate) fn end(&self) -> u64 {
        self.data_start + self.data_clusters
    }

    pub(crate) fn file_bytes(&self) -> u64 {
        self.end() << self.geometry.cluster_bits()
    }

    /// Offset of a cluster, bytes.
    pub(crate) fn offset(&self, cluster: u64) -> u64 {
        cluster << self.geometry.cluster_bits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_of_qemus_default_is_one_run_after_the_other() {
        let geometry = Geometry::new(16, 4).unwrap();
        let layout = Layout::new(geometry, 1 << 30, Mapped::Here).unwrap();
        assert_eq!(
            (layout.refcount_table_clusters, layout.refcount_blocks),
            (1, 1)
        );
        assert_eq!((layout.l1_clusters, layout.l2_tables), (1, 2));
        assert_eq!((layout.data_start, layout.end()), (6, 6 + 16_384));
        // As qemu-img measure counts.
        assert_eq!(layout.file_bytes(), 1_074_135_040);
    }

    #[test]
    fn every_cluster_is_counted_and_none_twice_at_every_geometry() {
        for cluster_bits in 9..=21 {
            for order in [0, 3, 4, 6] {
                for size in [0, 1, 512, 65_537, 100 << 20, 3 << 30] {
                    let geometry = Geometry::new(cluster_bits, order).unwrap();
                    for mapped in [Mapped::Nothing, Mapped::Elsewhere, Mapped::Here] {
                        let layout = Layout::new(geometry, size, mapped).unwrap();
                        let counted = layout.refcount_blocks * geometry.refcount_block_entries();
                        assert!(counted >= layout.end(), "{layout:?}");
                        assert!(layout.data_start >= layout.metadata_clusters());
                        assert!(
                            layout.refcount_table_clusters * geometry.cluster_bytes() / 8
                                >= layout.refcount_blocks
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn disks_past_the_tables_are_refused() {
        let geometry = Geometry::new(9, 4).unwrap();
        let fits = Layout::new(geometry, 128 << 30, Mapped::Nothing);
        assert!(fits.is_ok());
        for (size, mapped) in [
            ((128 << 30) + 1, Mapped::Nothing),
            (128 << 30, Mapped::Here),
        ] {
            let error = Layout::new(geometry, size, mapped).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TooLarge);
        }
    }
}

//! The disk under a file system, as sysfs shows its queue.

use extant_sys::disk;
use serde::Serialize;

/// Limits of the disk under a file system, from its queue in sysfs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DiskLimits {
    /// Name of the disk, `nvme0n1`.
    pub name: String,
    /// Most bytes of one write-zeroes request; 0: the disk has none.
    pub write_zeroes_max_bytes: u64,
    /// Most bytes of one write-zeroes request that unmaps (required by `FALLOC_FL_WRITE_ZEROES`);
    /// `None` before Linux 6.17.
    pub write_zeroes_unmap_max_bytes: Option<u64>,
    /// Most bytes of one that the driver reports; the administrator may lower the limit above.
    pub write_zeroes_unmap_max_hw_bytes: Option<u64>,
    /// Most bytes of one discard; 0: the disk has none.
    pub discard_max_bytes: u64,
    /// Most bytes of one that the driver reports.
    pub discard_max_hw_bytes: u64,
    /// Unit of discards, bytes.
    pub discard_granularity_bytes: u64,
    /// Discarded blocks read as zeros; no kernel since 4.12 says so.
    pub discard_zeroes_data: bool,
    /// Logical block size, bytes.
    pub logical_block_bytes: u64,
    /// The disk moves a head.
    pub is_rotational: bool,
    /// The disk is memory that can be mapped (DAX).
    pub has_dax: bool,
}

impl DiskLimits {
    /// The disk with device number `device`, or the disk of that partition. `None` for file
    /// systems without one (tmpfs, overlayfs, btrfs, FUSE, NFS).
    pub(crate) fn of_device(device: u64) -> Option<Self> {
        let directory = disk::directory(device)?;
        let read = |name| disk::queue_number(&directory, name);
        Some(Self {
            name: directory.file_name()?.to_string_lossy().into_owned(),
            write_zeroes_max_bytes: read("write_zeroes_max_bytes")?,
            write_zeroes_unmap_max_bytes: read("write_zeroes_unmap_max_bytes"),
            write_zeroes_unmap_max_hw_bytes: read("write_zeroes_unmap_max_hw_bytes"),
            discard_max_bytes: read("discard_max_bytes")?,
            discard_max_hw_bytes: read("discard_max_hw_bytes").unwrap_or(0),
            discard_granularity_bytes: read("discard_granularity").unwrap_or(0),
            discard_zeroes_data: read("discard_zeroes_data") == Some(1),
            logical_block_bytes: read("logical_block_size")?,
            is_rotational: read("rotational")? == 1,
            has_dax: read("dax") == Some(1),
        })
    }
}

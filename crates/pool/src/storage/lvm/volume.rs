//! A logical volume as a volume of the pool.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use extant_space::{ByteRange, Error, ErrorKind, Result, fnv1a};

use super::group::{Group, node_of};
use super::report::LogicalVolume;
use crate::storage::FileStat;
use crate::storage::block_file::{BlockPlace, BlockVolume};

/// Permissions of a volume without a device.
const MODE: u32 = 0o600;
const BLOCK_BYTES: u64 = 4096;
/// Numbers of bytes in the file of locks that are for volumes.
const LOCK_NUMBER_MASK: u64 = (1 << 39) - 1;

/// A logical volume, or its first part.
pub(super) struct ThickVolume {
    pub(super) group: Arc<Group>,
    pub(super) logical: LogicalVolume,
    /// That it has for the pool.
    pub(super) size_bytes: u64,
    /// The part behind is prepared: how far is kept apart from how far all of it is.
    pub(super) prepared_from: u64,
}

impl BlockVolume for ThickVolume {
    fn place(&self) -> Result<BlockPlace> {
        Ok(BlockPlace {
            target: self.group.device(&self.logical.uuid)?,
            range: ByteRange::new(0, self.size_bytes),
            is_own: true,
        })
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn identity(&self) -> u64 {
        growth_identity(&self.logical, self.prepared_from)
    }

    fn lock_number(&self) -> u64 {
        fnv1a(self.logical.uuid.as_bytes()) & LOCK_NUMBER_MASK
    }

    fn users(&self) -> Option<String> {
        self.group.user_of(&self.logical)
    }

    fn stat(&self) -> FileStat {
        stat(&self.logical, self.size_bytes)
    }

    fn resize(&self, size_bytes: u64) -> Result<()> {
        let report = self.group.report()?;
        let size_bytes = size_bytes.next_multiple_of(report.extent_bytes);
        if size_bytes > self.size_bytes {
            return Err(Error::new(ErrorKind::Unsupported)
                .detail("the space behind a logical volume is prepared before it gets it"));
        }
        if size_bytes == self.size_bytes {
            return Ok(());
        }
        self.logical.check_no_snapshots()?;
        self.group.reduce(&self.logical, size_bytes)
    }
}

/// Of the part behind `prepared_from`.
pub(super) fn growth_identity(logical: &LogicalVolume, prepared_from: u64) -> u64 {
    fnv1a(logical.uuid.as_bytes()) ^ prepared_from
}

pub(super) fn stat(logical: &LogicalVolume, size_bytes: u64) -> FileStat {
    let node = node_of(logical).and_then(|node| fs::metadata(node).ok());
    FileStat {
        size_bytes,
        allocated_bytes: size_bytes,
        block_bytes: BLOCK_BYTES,
        mode: node.as_ref().map_or(MODE, |node| node.mode() & 0o7777),
        uid: node.as_ref().map_or(0, MetadataExt::uid),
        gid: node.as_ref().map_or(0, MetadataExt::gid),
    }
}

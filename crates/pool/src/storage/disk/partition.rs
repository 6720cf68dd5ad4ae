//! A partition as a volume.

use std::sync::Arc;

use extant_space::{ByteRange, Result};

use super::device::{Disk, ResizedEntry};
use super::table::Entry;
use crate::storage::FileStat;
use crate::storage::block_file::{BlockPlace, BlockVolume};

pub(super) struct PartitionVolume {
    pub(super) disk: Arc<Disk>,
    pub(super) entry: Entry,
}

impl BlockVolume for PartitionVolume {
    fn place(&self) -> Result<BlockPlace> {
        Ok(match self.disk.node_of(&self.entry) {
            Some(target) => BlockPlace {
                target,
                range: ByteRange::new(0, self.entry.range.len()),
                is_own: true,
            },
            None => BlockPlace {
                target: self.disk.path().to_path_buf(),
                range: self.entry.range,
                is_own: false,
            },
        })
    }

    fn size_bytes(&self) -> u64 {
        self.entry.range.len()
    }

    fn identity(&self) -> u64 {
        self.entry.identity
    }

    fn lock_number(&self) -> u64 {
        self.entry.number.into()
    }

    fn users(&self) -> Option<String> {
        self.disk.user_of(&self.entry)
    }

    fn stat(&self) -> FileStat {
        self.disk.stat(&self.entry)
    }

    fn resize(&self, size_bytes: u64) -> Result<()> {
        self.disk.resize(&ResizedEntry {
            identity: self.entry.identity,
            size_bytes,
            work: None,
        })
    }
}

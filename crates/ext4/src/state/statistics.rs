//! How full the file system is.

use extant_ondisk::ext4::superblock::JournalPlace;
use extant_ondisk::ext4::{GroupNumber, RoCompat};

use super::FsState;
use crate::sync::{lock, read};

/// Present usage of a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Blocks, without those of the file system's own metadata.
    pub blocks: u64,
    /// Blocks that no file has.
    pub free_blocks: u64,
    /// Those of them that are not reserved for root.
    pub available_blocks: u64,
    /// Free blocks that are reserved for growing files, until these are closed or the space is
    /// needed.
    pub kept_blocks: u64,
    /// Inodes.
    pub inodes: u32,
    /// Inodes that are not in use, when the last transaction was committed.
    pub free_inodes: u32,
    /// The file system's UUID.
    pub uuid: [u8; 16],
    /// Its label, without zeros.
    pub label: [u8; 16],
}

impl FsState {
    pub(crate) fn statistics(&self) -> Statistics {
        let superblock = self.groups.superblock();
        // Blocks kept for files to grow are free; those freed by the running transaction are too.
        let free = self.allocator.free_blocks() + self.allocator.pending_blocks();
        // The allocator counts bits of the bitmaps, which are clusters.
        let free = free * u64::from(self.layout.blocks_per_cluster());
        let reserved = lock(&self.superblock).reserved_blocks();
        let mut label = [0; 16];
        let name = superblock.volume_name();
        label[..name.len()].copy_from_slice(name);
        Statistics {
            block_bytes: self.layout.block_bytes(),
            blocks: self.layout.blocks().saturating_sub(self.overhead()),
            free_blocks: free,
            available_blocks: free.saturating_sub(reserved),
            kept_blocks: self.allocator.window_blocks(),
            inodes: self.layout.inodes(),
            free_inodes: self.groups.frozen_free().inodes as u32,
            uuid: *superblock.uuid(),
            label,
        }
    }

    /// Blocks of fixed metadata and of the journal.
    fn overhead(&self) -> u64 {
        *self.overhead.get_or_init(|| {
            let layout = &self.layout;
            if let Some(blocks) = self.stored_overhead() {
                return blocks;
            }
            let fixed: u64 = (0..layout.groups())
                .map(|group| u64::from(layout.fixed_blocks(GroupNumber(group))))
                .sum();
            let each = 2 + u64::from(layout.inode_table_blocks());
            layout.first_data_block().0
                + fixed
                + each * u64::from(layout.groups())
                + self.journal_blocks()
        })
    }

    /// The count of mke2fs with `bigalloc`, of clusters with metadata in them. Like the kernel, it
    /// is not used where every block is a cluster, nor where it is impossible.
    fn stored_overhead(&self) -> Option<u64> {
        let superblock = self.groups.superblock();
        let clusters = u64::from(superblock.raw().s_overhead_clusters.get());
        let is_bigalloc = self
            .layout
            .features()
            .ro_compat
            .contains(RoCompat::BIGALLOC);
        (is_bigalloc && clusters > 0 && clusters <= self.layout.blocks())
            .then(|| clusters * u64::from(self.layout.blocks_per_cluster()))
    }

    fn journal_blocks(&self) -> u64 {
        let Some(JournalPlace::Inode(number)) = self.groups.superblock().journal() else {
            return 0;
        };
        let Ok(cell) = self.inodes.get(number) else {
            return 0;
        };
        let bytes = read(&cell.state).inode.size_bytes(&self.layout);
        bytes >> self.layout.block_bits()
    }
}

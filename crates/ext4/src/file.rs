//! The data of one file: read, write, truncate, allocate.
//!
//! Data bypasses the cache. It is on the device before the transaction that refers to it, because a
//! commit flushes earlier writes. New blocks are written before the inode refers to them, so
//! earlier contents of a block are never exposed.
//!
//! Lock order: `inode.rs`. Reads and overwrites of written blocks take the operation lock shared;
//! everything else takes it exclusively.

mod allocate;
mod append;

mod delete;
mod extents;
mod overwrite;
mod read;
mod stamp;
mod through;
mod truncate;
mod write;

use extant_mballoc::Owner;
use extant_ondisk::ext4::LogicalBlock;
use extant_ondisk::ext4::inode::InodeFlags;
use extant_ondisk::ext4::layout::Mapping as MappingKind;
use extant_space::{Error, ErrorKind, Result};

use crate::inode_cell::{InodeCell, InodeState};
use crate::state::FsState;
use crate::sync::read;
use crate::tree::TreeFormat;

pub(crate) use stamp::Stamp;
pub use stamp::{WriteTimes, Written};

impl FsState {
    /// The allocator's handle for the blocks of an inode.
    pub(crate) fn owner<'c>(&self, cell: &'c InodeCell, state: &InodeState) -> &'c Owner {
        cell.owner(|| {
            let sectors = state.inode.sectors(&self.layout);
            let blocks = sectors >> (self.layout.block_bits() - 9);
            self.allocator.owner(cell.number.0.into(), blocks)
        })
    }

    /// The same, for an inode whose state is not locked.
    pub(crate) fn owner_of<'c>(&self, cell: &'c InodeCell) -> &'c Owner {
        match cell.made_owner() {
            Some(owner) => owner,
            None => self.owner(cell, &read(&cell.state)),
        }
    }

    /// The constraints on the nodes of an inode's tree.
    pub(crate) fn tree_format(&self, state: &InodeState) -> TreeFormat<'_> {
        TreeFormat {
            layout: &self.layout,
            seed: state.seed,
            off_limits: self.groups.zone().for_inode(state.number),
        }
    }

    /// Refuses a size that the file cannot have.
    fn check_size(&self, state: &InodeState, size: u64) -> Result<()> {
        let kind = if state.inode.flags().contains(InodeFlags::EXTENTS) {
            MappingKind::Extents
        } else {
            MappingKind::Blocks
        };
        self.check_size_of(kind, size)
    }

    /// Refuses a size that no file with this mapping can have.
    fn check_size_of(&self, kind: MappingKind, size: u64) -> Result<()> {
        let most = self.layout.file_bytes_max(kind);
        if size > most {
            return Err(Error::new(ErrorKind::TooLarge)
                .detail(format!("{size} bytes, where a file has at most {most}")));
        }
        Ok(())
    }

    /// The first block at or after byte `offset`.
    pub(crate) fn block_after(&self, offset: u64) -> u64 {
        offset.div_ceil(u64::from(self.layout.block_bytes()))
    }

    /// The block that byte `offset` is in.
    fn block_of(&self, offset: u64) -> LogicalBlock {
        LogicalBlock((offset >> self.layout.block_bits()) as u32)
    }
}

/// Refuses operations that need extents: a block map has no unwritten blocks, and nothing in it is
/// moved.
fn check_extents(state: &InodeState) -> Result<()> {
    if state.inode.flags().contains(InodeFlags::EXTENTS) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Unsupported)
        .detail("the file has a block map, as in ext2 and ext3, instead of extents"))
}

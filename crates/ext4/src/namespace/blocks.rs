//! The blocks of a directory, as cache and transaction have them.

use std::cell::RefCell;
use std::sync::Arc;

use extant_ondisk::ext4::extent::{ExtentKind, LeafEntry};
use extant_ondisk::ext4::inode::InodeFlags;
use extant_ondisk::ext4::{LogicalBlock, PhysicalBlock};
use extant_space::{Error, ErrorKind, Result};
use smallvec::SmallVec;

use crate::cache::Block;
use crate::directory::{DirectoryBlocks, DirectoryBlocksMut, Shape};
use crate::file::Stamp;
use crate::inode_cell::InodeCell;
use crate::state::FsState;
use crate::transaction::Transaction;
use crate::tree::Mapping;

/// The blocks of one directory, whose operation lock is held.
pub(crate) struct Blocks<'a> {
    fs: &'a FsState,
    cell: &'a Arc<InodeCell>,
    count: u32,
    /// `None` where nothing is changed.
    transaction: Option<&'a Transaction<'a>>,
    /// Blocks read for a change, which cannot fail then.
    held: RefCell<SmallVec<[Held; 4]>>,
}

#[derive(Clone)]
struct Held {
    index: LogicalBlock,
    place: PhysicalBlock,
    block: Arc<Block>,
}

impl<'a> Blocks<'a> {
    pub(super) fn new(
        fs: &'a FsState,
        cell: &'a Arc<InodeCell>,
        count: u32,
        transaction: Option<&'a Transaction<'a>>,
    ) -> Self {
        Self {
            fs,
            cell,
            count,
            transaction,
            held: RefCell::default(),
        }
    }

    fn transaction(&self) -> &'a Transaction<'a> {
        self.transaction
            .expect("a directory that is changed has a transaction")
    }

    /// The place of a block, and the block, which is pinned in the cache from then on.
    fn held(&self, index: LogicalBlock) -> Option<Held> {
        let held = self.held.borrow();
        held.iter().find(|held| held.index == index).cloned()
    }

    fn hold(&self, index: LogicalBlock, place: PhysicalBlock) {
        let block = self.fs.cache.hold(place);
        self.held.borrow_mut().push(Held {
            index,
            place,
            block,
        });
    }

    fn find(&self, index: LogicalBlock) -> Result<Option<PhysicalBlock>> {
        match self.fs.find(self.cell, index)? {
            Mapping::Extent(extent) if extent.kind == ExtentKind::Written => {
                let within = u64::from(index.0 - extent.logical.0);
                Ok(Some(PhysicalBlock(extent.physical.0 + within)))
            }
            _ => Ok(None),
        }
    }
}

impl DirectoryBlocks for Blocks<'_> {
    fn blocks(&self) -> u32 {
        self.count
    }

    fn read(
        &self,
        index: LogicalBlock,
        validate: &dyn Fn(&[u8]) -> Result<()>,
    ) -> Result<Arc<[u8]>> {
        if let Some(held) = self.held(index) {
            return self.fs.cache.read(held.place, validate);
        }
        match self.find(index)? {
            Some(place) => {
                let bytes = self.fs.cache.read(place, validate)?;
                if self.transaction.is_some() {
                    self.hold(index, place);
                }
                Ok(bytes)
            }
            None => {
                let zeros: Arc<[u8]> = vec![0; self.fs.layout.block_bytes() as usize].into();
                validate(&zeros)?;
                Ok(zeros)
            }
        }
    }
}

impl DirectoryBlocksMut for Blocks<'_> {
    fn change(&mut self, index: LogicalBlock, change: &mut dyn FnMut(&mut [u8])) -> Result<()> {
        let held = self.held(index).ok_or_else(|| {
            Error::new(ErrorKind::Corrupt).detail(format!("directory: block {index} is a hole"))
        })?;
        self.fs
            .cache
            .change_held(self.transaction(), &held.block, |bytes| change(bytes));
        Ok(())
    }

    fn append(&mut self) -> Result<LogicalBlock> {
        let (fs, transaction) = (self.fs, self.transaction());
        // e2fsck, replaying names, has no block for them.
        transaction.mark_ineligible();
        let logical = LogicalBlock(self.count);
        let kind = ExtentKind::Written;
        let position = fs.position(self.cell, logical)?;
        let allocation = fs.take(self.cell, &position, 1, Some(transaction))?;
        let physical = PhysicalBlock(allocation.range().start().0);
        fs.assign_metadata(physical)?;
        let extent = LeafEntry {
            logical,
            physical,
            blocks: 1,
            kind,
        };
        let stamp = Stamp::size_at_least(u64::from(self.count + 1) << fs.layout.block_bits());
        fs.insert_extent(transaction, self.cell, extent, allocation, stamp)?;
        fs.cache.create(transaction, physical, |_| ());
        transaction.cancel_revoke(physical);
        self.hold(logical, physical);
        self.count += 1;
        Ok(logical)
    }

    fn set_shape(&mut self, shape: Shape) {
        self.cell.change(self.transaction(), |state| {
            let mut flags = state.inode.flags();
            flags.set(InodeFlags::INDEX, shape == Shape::Tree);
            state.inode.set_flags(flags);
        });
    }
}

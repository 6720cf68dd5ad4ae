//! The inode tables: finding an inode's slot, and the cell of every inode in use.

use std::sync::Arc;

use extant_ondisk::ext4::inode::{InodeFlags, Mode};
use extant_ondisk::ext4::layout::Mapping as MappingKind;
use extant_ondisk::ext4::{Inode, InodeNumber, Layout, PhysicalBlock, Seed};
use extant_space::{Error, ErrorKind, Result};

use crate::cache::BlockCache;
use crate::groups::Groups;
use crate::inode_cell::{InodeCell, SlotPlace};
use crate::pinned_cache::{PinnedCache, held_cache};

pub(crate) struct InodeTable {
    cache: Arc<BlockCache>,
    groups: Arc<Groups>,
    seed: Option<Seed>,
    cells: PinnedCache<InodeNumber, InodeCell>,
}

impl InodeTable {
    /// A table that tries to keep `capacity` inodes in memory.
    pub(crate) fn new(
        cache: Arc<BlockCache>,
        groups: Arc<Groups>,
        seed: Option<Seed>,
        capacity: usize,
    ) -> Self {
        Self {
            cache,
            groups,
            seed,
            cells: held_cache(capacity),
        }
    }

    fn layout(&self) -> &Layout {
        self.groups.layout()
    }

    /// An inode that is in use.
    ///
    /// # Errors
    /// `NotFound` when it is not; `Corrupt` if the stored inode is invalid.
    pub(crate) fn get(&self, number: InodeNumber) -> Result<Arc<InodeCell>> {
        self.cells.get_or_insert_with(&number, || self.read(number))
    }

    /// The cell of a number that was just allocated, for a new inode.
    ///
    /// # Errors
    /// Those of reading the block of its table.
    pub(crate) fn create(&self, number: InodeNumber, inode: Inode) -> Result<Arc<InodeCell>> {
        let slot = vec![0; self.layout().inode_bytes().into()];
        let place = self.place(number)?;
        let cell = Arc::new(InodeCell::new(number, inode, &slot, place, self.seed));
        self.cells.insert(number, Arc::clone(&cell));
        Ok(cell)
    }

    /// Whether `cell` is that of its number: another has taken the place of one that was freed.
    pub(crate) fn is_current(&self, cell: &Arc<InodeCell>) -> bool {
        let current = self.cells.peek(&cell.number);
        current.is_none_or(|current| Arc::ptr_eq(&current, cell))
    }

    fn read(&self, number: InodeNumber) -> Result<Arc<InodeCell>> {
        let place = self.place(number)?;
        let (_, block) = place.block.freeze().expect("blocks of tables stay");
        let slot = &block[place.byte..][..self.layout().inode_bytes().into()];
        let inode = Inode::parse(slot, number, self.layout(), self.seed)?;
        if inode.is_unused() && inode.mode() == Mode(0) {
            return Err(
                Error::new(ErrorKind::NotFound).detail(format!("inode {number} is not in use"))
            );
        }
        check_size(number, &inode, self.layout())?;
        self.groups
            .zone()
            .check_inode(number, &inode, self.layout())?;
        Ok(Arc::new(InodeCell::new(
            number, inode, slot, place, self.seed,
        )))
    }

    /// Location of an inode's slot; its block is read.
    fn place(&self, number: InodeNumber) -> Result<SlotPlace> {
        let place = self.layout().locate_inode(number)?;
        let table = self.groups.descriptor(place.group)?.inode_table();
        let block = PhysicalBlock(table.0 + u64::from(place.table_block));
        let held = self.cache.hold(block);
        self.cache.read(block, &|_| Ok(()))?;
        Ok(SlotPlace {
            block: held,
            byte: place.byte as usize,
        })
    }
}

/// Refuses a size with bytes that no block can have a number for: calculations rely on it.
fn check_size(number: InodeNumber, inode: &Inode, layout: &Layout) -> Result<()> {
    if !inode.is_mapped() {
        return Ok(());
    }
    let mapping = if inode.flags().contains(InodeFlags::EXTENTS) {
        MappingKind::Extents
    } else {
        MappingKind::Blocks
    };
    let (size, most) = (inode.size_bytes(layout), layout.mapped_bytes_max(mapping));
    if size > most {
        return Err(Error::new(ErrorKind::Corrupt)
            .detail(format!(
                "inode {number}: i_size is {size}, more than {most}"
            ))
            .advice("check the file system"));
    }
    Ok(())
}

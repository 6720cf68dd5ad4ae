//! The effect of records on names.
//!
//! Names determine the link count of an inode. A state that already matches the record is not
//! changed; a record that removes a missing name, or one of another inode, has no effect: the
//! kernel leaves such records of short-lived files.

use std::sync::Arc;

use extant_ondisk::ext4::extent::{ExtentKind, LeafEntry};
use extant_ondisk::ext4::fast_commit::NameChange;
use extant_ondisk::ext4::inode::{FileType, InodeFlags};
use extant_ondisk::ext4::{GroupNumber, InodeNumber, LogicalBlock, PhysicalBlock};
use extant_space::{Error, ErrorKind, Result};

use super::apply::{Apply, block_mapped, corrupt, with_tree};
use super::space::Space;
use crate::directory::{Directory, DirectoryBlocks, DirectoryBlocksMut, DirectoryContext, Shape};
use crate::inode_cell::InodeCell;
use crate::inode_cell::LINKS_MAX;
use crate::orphan;
use crate::sync::read;
use crate::tree::Mapping;

/// Blocks that a change of one name touches at most, with room: nodes and leaves of a tree that is
/// split from the root, blocks for them and for the map of the directory.
const NAME_CREDITS: u32 = 160;

/// A name whose inode does not exist yet.
pub(super) struct EarlyName {
    parent: InodeNumber,
    pub(super) inode: InodeNumber,
    name: Box<[u8]>,
}

impl<'a> Apply<'a> {
    pub(super) fn name(
        &mut self,
        change: NameChange,
        parent: InodeNumber,
        inode: InodeNumber,
        name: &[u8],
    ) -> Result<()> {
        self.space.reserve(NAME_CREDITS)?;
        let cell = self.find(inode)?;
        match (change, cell) {
            (NameChange::Unlink, Some(cell)) => self.unlink(parent, &cell, name),
            (NameChange::Unlink, None) => {
                let is_it = |early: &EarlyName| {
                    early.parent == parent && early.inode == inode && *early.name == *name
                };
                self.early.retain(|early| !is_it(early));
                Ok(())
            }
            (_, Some(cell)) => self.link(parent, &cell, name),
            (_, None) => {
                self.early.push(EarlyName {
                    parent,
                    inode,
                    name: name.into(),
                });
                Ok(())
            }
        }
    }

    /// Adds the names recorded before their inode, which was created just now.
    pub(super) fn early_names(&mut self, number: InodeNumber) -> Result<()> {
        let (own, others) = std::mem::take(&mut self.early)
            .into_iter()
            .partition(|early| early.inode == number);
        self.early = others;
        for EarlyName { parent, name, .. } in own {
            self.name(NameChange::Link, parent, number, &name)?;
        }
        Ok(())
    }

    fn link(&mut self, parent: InodeNumber, cell: &Arc<InodeCell>, name: &[u8]) -> Result<()> {
        let (fs, transaction) = (self.fs(), self.transaction());
        let parent = self.parent(parent)?;
        let mut directory = self.directory(&parent)?;
        match directory.lookup(name)? {
            Some(entry) if entry.inode == cell.number => {
                self.has_name(cell.number);
                return Ok(());
            }
            Some(entry) => {
                return Err(corrupt(format!(
                    "inode {} gets the name of inode {}",
                    cell.number, entry.inode
                )));
            }
            None => {}
        }
        let (file_type, links) = {
            let state = read(&cell.state);
            let file_type = state.inode.mode().file_type();
            (file_type.ok_or_else(|| no_type(cell))?, state.inode.links())
        };
        if file_type == FileType::Directory {
            if links > 0 {
                return Err(corrupt(format!(
                    "directory inode {} gets another name",
                    cell.number
                )));
            }
            self.directory_blocks(cell)?;
            let mut own = self.directory(cell)?;
            own.init(cell.number, parent.number)?;
            fs.add_subdirectory(transaction, &parent);
        } else if links >= LINKS_MAX {
            return Err(corrupt(format!(
                "inode {} gets too many names",
                cell.number
            )));
        }
        directory.insert(name, cell.number, file_type)?;
        let own_links = match file_type {
            FileType::Directory => 2,
            _ => links + 1,
        };
        cell.change(transaction, |state| state.inode.set_links(own_links));
        if links == 0 {
            self.space.reserve(orphan::CREDITS)?;
            fs.remove_orphan(transaction, cell, 0)?;
        }
        fs.names_changed(transaction, &parent);
        self.has_name(cell.number);
        Ok(())
    }

    fn unlink(&mut self, parent: InodeNumber, cell: &Arc<InodeCell>, name: &[u8]) -> Result<()> {
        let (fs, transaction) = (self.fs(), self.transaction());
        let parent = self.parent(parent)?;
        let mut directory = self.directory(&parent)?;
        let found = directory.lookup(name)?;
        if found.is_none_or(|entry| entry.inode != cell.number) {
            return Ok(());
        }
        let is_directory = {
            let state = read(&cell.state);
            state.inode.mode().file_type() == Some(FileType::Directory)
        };
        if is_directory && !self.directory(cell)?.is_empty()? {
            return Err(corrupt(format!(
                "directory inode {} loses its name and has names in it",
                cell.number
            )));
        }
        directory.remove(name)?;
        if is_directory {
            fs.remove_subdirectory(transaction, &parent);
        }
        cell.change(transaction, |state| {
            let left = if is_directory {
                0
            } else {
                state.inode.links().saturating_sub(1)
            };
            state.inode.set_links(left);
        });
        fs.names_changed(transaction, &parent);
        self.has_name(cell.number);
        Ok(())
    }

    fn parent(&mut self, number: InodeNumber) -> Result<Arc<InodeCell>> {
        let cell = self
            .find(number)?
            .ok_or_else(|| corrupt(format!("directory inode {number} is not in use")))?;
        let file_type = read(&cell.state).inode.mode().file_type();
        match file_type {
            Some(FileType::Directory) => Ok(cell),
            _ => Err(corrupt(format!("inode {number} is no directory"))),
        }
    }

    fn directory<'s>(&'s self, cell: &'s Arc<InodeCell>) -> Result<Directory<Blocks<'s, 'a>>> {
        let fs = self.fs();
        let state = read(&cell.state);
        let context = DirectoryContext::of(fs.groups.superblock(), cell.number, &state.inode)?;
        let count = state.inode.size_bytes(&fs.layout) >> fs.layout.block_bits();
        let count = u32::try_from(count)
            .map_err(|_| corrupt(format!("directory inode {} is too large", cell.number)))?;
        drop(state);
        Directory::new(
            context,
            Blocks {
                space: &self.space,
                cell,
                count,
            },
        )
    }

    /// Refuses a directory that is made and has blocks already.
    fn directory_blocks(&self, cell: &Arc<InodeCell>) -> Result<()> {
        let size = read(&cell.state).inode.size_bytes(&self.fs().layout);
        match size {
            0 => Ok(()),
            _ => Err(corrupt(format!(
                "directory inode {} is made with blocks",
                cell.number
            ))),
        }
    }
}

fn no_type(cell: &InodeCell) -> Error {
    corrupt(format!("inode {} has no type", cell.number))
}

/// The blocks of a directory; new ones are exclusively its own.
struct Blocks<'s, 'a> {
    space: &'s Space<'a>,
    cell: &'s Arc<InodeCell>,
    count: u32,
}

impl Blocks<'_, '_> {
    fn place(&self, index: LogicalBlock) -> Result<Option<PhysicalBlock>> {
        match self.space.fs.find(self.cell, index)? {
            Mapping::Extent(extent) if extent.kind == ExtentKind::Written => {
                let within = u64::from(index.0 - extent.logical.0);
                Ok(Some(PhysicalBlock(extent.physical.0 + within)))
            }
            _ => Ok(None),
        }
    }

    /// Behind the last block, or with the inode.
    fn goal(&self) -> Result<PhysicalBlock> {
        let last = match self.count.checked_sub(1) {
            Some(last) => self.place(LogicalBlock(last))?,
            None => None,
        };
        let layout = &self.space.fs.layout;
        Ok(match last {
            Some(place) => PhysicalBlock(place.0 + 1),
            None => {
                let group: GroupNumber = layout.locate_inode(self.cell.number)?.group;
                layout.first_block(group)
            }
        })
    }
}

impl DirectoryBlocks for Blocks<'_, '_> {
    fn blocks(&self) -> u32 {
        self.count
    }

    fn read(
        &self,
        index: LogicalBlock,
        validate: &dyn Fn(&[u8]) -> Result<()>,
    ) -> Result<Arc<[u8]>> {
        let fs = self.space.fs;
        match self.place(index)? {
            Some(place) => fs.cache.read(place, validate),
            None => {
                let zeros: Arc<[u8]> = vec![0; fs.layout.block_bytes() as usize].into();
                validate(&zeros)?;
                Ok(zeros)
            }
        }
    }
}

impl DirectoryBlocksMut for Blocks<'_, '_> {
    fn change(&mut self, index: LogicalBlock, change: &mut dyn FnMut(&mut [u8])) -> Result<()> {
        let place = self.place(index)?.ok_or_else(|| {
            Error::new(ErrorKind::Corrupt).detail(format!("directory: block {index} is a hole"))
        })?;
        let (cache, transaction) = (&self.space.fs.cache, self.space.transaction);
        cache.change(transaction, place, &|_| Ok(()), |bytes| change(bytes))
    }

    fn append(&mut self) -> Result<LogicalBlock> {
        let Space {
            fs, transaction, ..
        } = *self.space;
        let has_extents = {
            let state = read(&self.cell.state);
            state.inode.flags().contains(InodeFlags::EXTENTS)
        };
        if !has_extents {
            return Err(block_mapped(self.cell.number));
        }
        let logical = LogicalBlock(self.count);
        let physical = self.space.take(self.goal()?)?;
        let extent = LeafEntry {
            logical,
            physical,
            blocks: 1,
            kind: ExtentKind::Written,
        };
        with_tree(
            self.space,
            self.cell,
            |tree| tree.insert(extent),
            // The space has counted it already.
            |(), store| store.count(1),
        )?;
        fs.cache.create(transaction, physical, |_| ());
        self.count += 1;
        let size = u64::from(self.count) << fs.layout.block_bits();
        self.cell.change(transaction, |state| {
            state.inode.set_size_bytes(size, &fs.layout);
        });
        Ok(logical)
    }

    fn set_shape(&mut self, shape: Shape) {
        self.cell.change(self.space.transaction, |state| {
            let mut flags = state.inode.flags();
            flags.set(InodeFlags::INDEX, shape == Shape::Tree);
            state.inode.set_flags(flags);
        });
    }
}

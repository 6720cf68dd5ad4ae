//! Inserting a name: into the first block with room, or into the leaf that its hash leads to.

use extant_ondisk::ext4::directory::{self as disk, BlockKind, NewEntry, check_name, record_bytes};
use extant_ondisk::ext4::inode::FileType;
use extant_ondisk::ext4::{InodeNumber, LogicalBlock};
use extant_space::{Error, ErrorKind, Result};

use super::blocks::changed_meanwhile;
use super::{Directory, DirectoryBlocksMut, Shape};

impl<B: DirectoryBlocksMut> Directory<B> {
    /// Inserts `name`. Changes at most [`insert_bound`](super::DirectoryContext::insert_bound)
    /// blocks.
    ///
    /// # Errors
    /// `AlreadyExists`; `NoSpace` from the store, or because the tree is full, as in the kernel;
    /// `InvalidArgument` for `.`, `..` and invalid names; `Corrupt` with the block; errors of the
    /// store. The name is not inserted then; the tree may have been split for it.
    pub(crate) fn insert(
        &mut self,
        name: &[u8],
        inode: InodeNumber,
        file_type: FileType,
    ) -> Result<()> {
        match self.find(name)? {
            Some(_) => Err(Error::new(ErrorKind::AlreadyExists)),
            None => self.insert_absent(name, inode, file_type),
        }
    }

    /// The same for a name that a search has not found; the directory has not changed since.
    ///
    /// # Errors
    /// As [`insert`](Self::insert), but for `AlreadyExists`.
    pub(crate) fn insert_absent(
        &mut self,
        name: &[u8],
        inode: InodeNumber,
        file_type: FileType,
    ) -> Result<()> {
        check_name(name)?;
        self.check_has_blocks()?;
        let new = NewEntry {
            name,
            inode,
            file_type,
        };
        match self.shape() {
            Shape::Linear => self.insert_linear(&new),
            Shape::Tree => self.insert_hashed(&new),
        }
    }

    fn insert_linear(&mut self, new: &NewEntry<'_>) -> Result<()> {
        let format = self.context.format;
        let mut room = None;
        let blocks = self.blocks.blocks();
        for index in (0..blocks).map(LogicalBlock) {
            let block = self.leaf(index)?;
            let has_room = disk::has_room(&block, &format, new.name.len());
            if has_room.map_err(|error| self.at(index, error))? {
                room = Some(index);
                break;
            }
        }
        self.forget_stale_tree();
        if let Some(index) = room {
            return self.put(index, new);
        }
        if blocks == 1 && self.context.tree.is_some() {
            self.plant()?;
            return self.insert_hashed(new);
        }
        let index = self.append()?;
        self.change(index, BlockKind::Records, |block| {
            assert!(disk::fill(block, &format, [*new]), "a block holds one name");
            Ok(())
        })
    }

    fn insert_hashed(&mut self, new: &NewEntry<'_>) -> Result<()> {
        let root = self.root()?;
        let hash = root.hash(new.name);
        let mut path = self.descend(&root, hash.major)?;
        // A leaf is split once, and on each level a node or none; or the leaf is packed.
        let mut changes_left = self.context.insert_bound().appended_blocks.max(1);
        while !self.put_where_room(path.leaf(), new)? {
            if changes_left == 0 {
                let problem = "a leaf was split, and there is no room";
                return Err(self.corrupt(path.leaf(), problem));
            }
            let leaf = self.leaf(path.leaf())?;
            if self.is_scattered(path.leaf(), &leaf, new.name)? {
                self.pack_leaf(path.leaf(), &leaf)?;
            } else if path.lowest().is_full() {
                self.split_node(&path)?;
            } else {
                self.split_leaf(&root, &path, &leaf)?;
            }
            changes_left -= 1;
            path = self.descend(&self.root()?, hash.major)?;
        }
        Ok(())
    }

    /// Whether compacting a leaf makes room for `name`, which no single record of it has.
    fn is_scattered(&self, index: LogicalBlock, leaf: &[u8], name: &[u8]) -> Result<bool> {
        let format = &self.context.format;
        let mut needed = record_bytes(name.len());
        for entry in disk::entries(leaf, format) {
            let entry = entry.map_err(|error| self.at(index, error))?;
            needed += record_bytes(entry.name.len());
        }
        Ok(needed <= format.records_end())
    }

    /// Writes the entry into a block, if that has room in one place; whether it has.
    fn put_where_room(&mut self, index: LogicalBlock, new: &NewEntry<'_>) -> Result<bool> {
        let format = self.context.format;
        self.leaf(index)?;
        let mut has_room = false;
        self.change(index, BlockKind::Records, |block| {
            has_room = disk::insert(block, &format, new)?.is_some();
            Ok(())
        })?;
        Ok(has_room)
    }

    /// Writes the entry into a block that has room.
    fn put(&mut self, index: LogicalBlock, new: &NewEntry<'_>) -> Result<()> {
        let format = self.context.format;
        self.change(index, BlockKind::Records, |block| {
            let place = disk::insert(block, &format, new)?;
            place.map(|_| ()).ok_or_else(changed_meanwhile)
        })
    }

    /// Without `dir_index` and checksums a tree looks like free records, and is about to be
    /// overwritten. A kernel with `dir_index` must not use it.
    fn forget_stale_tree(&mut self) {
        if self.context.flagged != self.shape() {
            self.context.flagged = Shape::Linear;
            self.blocks.set_shape(Shape::Linear);
        }
    }
}

//! Inserting a name: into the first block with room, or into the leaf that its hash leads to.

use extant_ondisk::ext4::directory::{self as disk, BlockKind, NewEntry, check_name, record_bytes};
use extant_ondisk::ext4::inode::FileType;
use extant_ondisk::ext4::{InodeNumber, LogicalBlock};
use extant_space::{Error, ErrorKind, Result};

use super::blocks::changed_meanwhile;
use super::{Directory, DirectoryBlocksMut, Shape};

/// Room for one more entry in a leaf.
enum Room {
    /// A record has it.
    InOnePlace,
    /// All records have it together.
    Scattered,
    /// There is none.
    None,
}

impl<B: DirectoryBlocksMut> Directory<B> {
    /// Inserts `name`. Changes no more than
    /// [`insert_bound`](super::DirectoryContext::insert_bound) says.
    ///
    /// # Errors
    /// `AlreadyExists`; `NoSpace` from the store, or because the tree is full, as the kernel
    /// has it; `InvalidArgument` for `.`, `..` and what cannot be a name; `Corrupt` with the
    /// block; what the store says. The name is not there then; the tree may have been split for
    /// it.
    pub(crate) fn insert(
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
            if self.find_among(index, &block, new.name)?.is_some() {
                return Err(Error::new(ErrorKind::AlreadyExists));
            }
            let has_room = disk::has_room(&block, &format, new.name.len());
            if room.is_none() && has_room.map_err(|error| self.at(index, error))? {
                room = Some(index);
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
        let mut leaf = self.leaf(path.leaf())?;
        if self.find_from(&path, &leaf, new.name, hash)?.is_some() {
            return Err(Error::new(ErrorKind::AlreadyExists));
        }
        // A leaf is split once, and on each level a node or none.
        let mut splits_left = self.context.insert_bound().appended_blocks;
        loop {
            match self.room_in(path.leaf(), &leaf, new.name)? {
                Room::InOnePlace => break,
                Room::Scattered => {
                    self.pack_leaf(path.leaf(), &leaf)?;
                    break;
                }
                Room::None if splits_left == 0 => {
                    let problem = "a leaf was split, and there is no room";
                    return Err(self.corrupt(path.leaf(), problem));
                }
                Room::None if path.lowest().is_full() => self.split_node(&path)?,
                Room::None => self.split_leaf(&root, &path, &leaf)?,
            }
            splits_left -= 1;
            path = self.descend(&self.root()?, hash.major)?;
            leaf = self.leaf(path.leaf())?;
        }
        // Who holds the old bytes makes the store copy them.
        drop(leaf);
        self.put(path.leaf(), new)
    }

    fn room_in(&self, index: LogicalBlock, leaf: &[u8], name: &[u8]) -> Result<Room> {
        let format = &self.context.format;
        let here = |error| self.at(index, error);
        if disk::has_room(leaf, format, name.len()).map_err(here)? {
            return Ok(Room::InOnePlace);
        }
        let mut needed = record_bytes(name.len());
        for entry in disk::entries(leaf, format) {
            needed += record_bytes(entry.map_err(here)?.name.len());
        }
        match needed <= format.records_end() {
            true => Ok(Room::Scattered),
            false => Ok(Room::None),
        }
    }

    /// Writes the entry into a block that has room.
    fn put(&mut self, index: LogicalBlock, new: &NewEntry<'_>) -> Result<()> {
        let format = self.context.format;
        self.change(index, BlockKind::Records, |block| {
            let place = disk::insert(block, &format, new)?;
            place.map(|_| ()).ok_or_else(changed_meanwhile)
        })
    }

    /// Without `dir_index` and sums a tree looks like free records, and is about to be written
    /// over. A kernel with `dir_index` must not look for it.
    fn forget_stale_tree(&mut self) {
        if self.context.flagged != self.shape() {
            self.context.flagged = Shape::Linear;
            self.blocks.set_shape(Shape::Linear);
        }
    }
}

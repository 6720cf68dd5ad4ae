//! Inode numbers: allocating and freeing.
//!
//! A file is placed in the group of its directory or near it, and so is a directory; a directory of
//! the root is placed in the emptiest of a few groups. Related files are close together, and trees
//! are apart.

use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use extant_ondisk::ext4::bitmap::Bitmap;
use extant_ondisk::ext4::group_descriptor::GroupFlags;
use extant_ondisk::ext4::inode::FileType;
use extant_ondisk::ext4::{GroupNumber, InodeNumber};
use extant_space::{Error, ErrorKind, Result};

use super::{BitmapBytes, Group, Groups};
use crate::transaction::Transaction;

/// Groups that are compared for a directory of the root.
const SPREAD_TRIES: u32 = 64;

/// The purpose of an inode number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewInode {
    /// The directory that will name it.
    pub(crate) parent: InodeNumber,
    pub(crate) file_type: FileType,
}

impl Groups {
    /// Takes an inode number.
    ///
    /// # Errors
    /// `NoSpace` when there is none left.
    pub(crate) fn take_inode(
        &self,
        transaction: &Transaction<'_>,
        new: NewInode,
    ) -> Result<InodeNumber> {
        let layout = self.layout();
        let count = layout.groups();
        let home = self.home_group(new)?;
        for group in (home..count).chain(0..home).map(GroupNumber) {
            if let Some(number) = self.take_inode_in(transaction, group, new.file_type)? {
                return Ok(number);
            }
        }
        Err(Error::new(ErrorKind::NoSpace)
            .detail(format!("all {} inodes are in use", layout.inodes())))
    }

    fn home_group(&self, new: NewInode) -> Result<u32> {
        let layout = self.layout();
        let parent = layout.locate_inode(new.parent)?.group.0;
        if new.file_type != FileType::Directory || new.parent != InodeNumber::ROOT {
            return Ok(parent);
        }
        // Evenly spread candidates; the one with most free blocks among those with free inodes.
        let count = layout.groups();
        let step = count.div_ceil(SPREAD_TRIES);
        let mut best = (parent, 0);
        for group in (0..count).step_by(step as usize) {
            let descriptor = self.descriptor(GroupNumber(group))?;
            let worth = u64::from(descriptor.free_blocks()) * u64::from(descriptor.free_inodes())
                / (u64::from(descriptor.used_directories()) + 1);
            if worth > best.1 {
                best = (group, worth);
            }
        }
        Ok(best.0)
    }

    fn take_inode_in(
        &self,
        transaction: &Transaction<'_>,
        number: GroupNumber,
        file_type: FileType,
    ) -> Result<Option<InodeNumber>> {
        let layout = self.layout();
        if self.group(number)?.descriptor.free_inodes() == 0 {
            return Ok(None);
        }
        // A group with used inodes must have a block bitmap as well.
        let mut group = self.group_with_blocks(number)?;
        self.read_inode_bitmap(&mut group)?;
        let bitmap = group.inode_bitmap.as_ref().expect("just read");
        let first = match number.0 {
            0 => layout.first_inode().0 - 1,
            _ => 0,
        };
        let mut unset = first..layout.inodes_per_group();
        let bit = loop {
            match bitmap.first_unset(unset.clone()) {
                None => return Ok(None),
                Some(bit) if group.freed_inodes.contains(&bit) => unset.start = bit + 1,
                Some(bit) => break bit,
            }
        };
        self.use_bit(transaction, &mut group, bit, file_type);
        Ok(Some(layout.inode_at(number, bit)))
    }

    /// Notes that an inode number is in use from now on.
    ///
    /// # Errors
    /// `Corrupt` when it is already; nothing is changed then.
    pub(crate) fn use_inode(
        &self,
        transaction: &Transaction<'_>,
        inode: InodeNumber,
        file_type: FileType,
    ) -> Result<()> {
        let place = self.layout().locate_inode(inode)?;
        let mut group = self.group_with_blocks(place.group)?;
        self.read_inode_bitmap(&mut group)?;
        let bitmap = group.inode_bitmap.as_ref().expect("just read");
        if bitmap.is_set(place.index) {
            return Err(Error::new(ErrorKind::Corrupt)
                .detail(format!("inode {inode} is in use already"))
                .advice("check the file system"));
        }
        self.use_bit(transaction, &mut group, place.index, file_type);
        Ok(())
    }

    /// Takes an inode of a group whose bitmaps were read.
    fn use_bit(
        &self,
        transaction: &Transaction<'_>,
        group: &mut Group,
        bit: u32,
        file_type: FileType,
    ) {
        let layout = self.layout();
        group.join(transaction, Bitmap::Inodes);
        let bitmap = group.inode_bitmap.as_mut().expect("just read");
        bitmap.set(bit..bit + 1, true);
        let descriptor = &mut group.descriptor;
        descriptor.set_free_inodes(descriptor.free_inodes() - 1);
        if file_type == FileType::Directory {
            descriptor.set_used_directories(descriptor.used_directories() + 1);
        }
        let unused = layout.inodes_per_group() - bit - 1;
        if layout.features().has_group_checksums() && descriptor.unused_inodes() > unused {
            descriptor.set_unused_inodes(unused);
        }
        group.clear_flag(GroupFlags::INODE_UNINIT, layout);
        if group.flags(layout).contains(GroupFlags::BLOCK_UNINIT) {
            group.join(transaction, Bitmap::Blocks);
            group.clear_flag(GroupFlags::BLOCK_UNINIT, layout);
        }
    }

    /// Gives an inode number back.
    ///
    /// # Errors
    /// `Corrupt` when it was not in use; nothing is changed then.
    pub(crate) fn free_inode(
        &self,
        transaction: &Transaction<'_>,
        inode: InodeNumber,
        file_type: Option<FileType>,
    ) -> Result<()> {
        let layout = self.layout();
        let place = layout.locate_inode(inode)?;
        let mut group = self.group(place.group)?;
        self.read_inode_bitmap(&mut group)?;
        let bitmap = group.inode_bitmap.as_ref().expect("just read");
        if !bitmap.is_set(place.index) {
            return Err(Error::new(ErrorKind::Corrupt)
                .detail(format!("inode {inode} is free already"))
                .advice("check the file system"));
        }
        group.join(transaction, Bitmap::Inodes);
        let bitmap = group.inode_bitmap.as_mut().expect("just read");
        bitmap.set(place.index..place.index + 1, false);
        if self.superblock.journal().is_none() && group.freed_inodes.insert(place.index) {
            self.freed_inodes.fetch_add(1, Ordering::Relaxed);
        }
        let descriptor = &mut group.descriptor;
        descriptor.set_free_inodes(descriptor.free_inodes() + 1);
        if file_type == Some(FileType::Directory) {
            let directories = descriptor.used_directories().saturating_sub(1);
            descriptor.set_used_directories(directories);
        }
        Ok(())
    }

    /// Whether an inode number is in use.
    pub(crate) fn is_inode_used(&self, inode: InodeNumber) -> Result<bool> {
        let place = self.layout().locate_inode(inode)?;
        let mut group = self.group(place.group)?;
        self.read_inode_bitmap(&mut group)?;
        let bitmap = group.inode_bitmap.as_ref().expect("just read");
        Ok(bitmap.is_set(place.index))
    }

    /// The current inode bitmap. It is not cached unless the group is in use.
    pub(crate) fn inode_bitmap_now(&self, number: GroupNumber) -> Result<BitmapBytes> {
        let group = self.group(number)?;
        match &group.inode_bitmap {
            Some(bitmap) => Ok(bitmap.clone()),
            None => self.inode_bitmap(&group),
        }
    }

    fn read_inode_bitmap(&self, group: &mut MutexGuard<'_, Group>) -> Result<()> {
        if group.inode_bitmap.is_none() {
            group.inode_bitmap = Some(self.inode_bitmap(group)?);
        }
        Ok(())
    }

    fn inode_bitmap(&self, group: &Group) -> Result<BitmapBytes> {
        let layout = self.layout();
        let (number, inodes) = (group.number, layout.inodes_per_group());
        let bitmap = if group.flags(layout).contains(GroupFlags::INODE_UNINIT) {
            BitmapBytes::unused(layout.block_bytes() as usize, inodes)
        } else {
            let place = group.descriptor.inode_bitmap();
            let block = self.cache.read(place, &|bytes| {
                Bitmap::Inodes.verify(bytes, number, &group.descriptor, &self.superblock)
            })?;
            let mut bitmap = BitmapBytes::from_block(&block);
            // The checksum ends with the inodes.
            bitmap.set(inodes..layout.block_bytes() * 8, true);
            bitmap
        };
        let (free, promised) = (bitmap.count_unset(inodes), group.descriptor.free_inodes());
        if free != promised {
            return Err(Error::new(ErrorKind::Corrupt)
                .detail(format!(
                    "inode bitmap of group {number}: {free} free inodes, where its descriptor says {promised}"
                ))
                .advice("check the file system"));
        }
        Ok(bitmap)
    }
}

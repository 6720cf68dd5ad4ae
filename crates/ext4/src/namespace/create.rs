//! New inodes.

use std::sync::Arc;

use extant_ondisk::ext4::directory::check_name;
use extant_ondisk::ext4::extent::{ExtentKind, LeafEntry};
use extant_ondisk::ext4::fast_commit::NameChange;
use extant_ondisk::ext4::inode::{FileType, InodeFlags, Mode, TimeField};
use extant_ondisk::ext4::{Incompat, Inode, LogicalBlock, PhysicalBlock};
use extant_space::{Error, ErrorKind, Result};

use super::{check_addable, in_directory};
use crate::engine::Engine;
use crate::file::Stamp;
use crate::groups::{self, NewInode};
use crate::inode_cell::{InodeCell, InodeState};
use crate::new_node::{NewKind, NewNode};
use crate::orphan;
use crate::state::FsState;
use crate::sync::{read, write};
use crate::transaction::Transaction;
use crate::tree;
use crate::xattr::{self, InheritedAccess};

/// Bytes of a target that fit into the inode itself, without the terminating zero.
const SHORT_TARGET_MAX: usize = 59;
const SETGID: u16 = 0o2000;

impl Engine {
    /// Creates an inode with a name. The inode has a handle, which the caller must close.
    pub(crate) fn create(
        &self,
        parent: &Arc<InodeCell>,
        name: &[u8],
        new: &NewNode<'_>,
    ) -> Result<Arc<InodeCell>> {
        check_name(name)?;
        let fs = &*self.fs;
        let is_directory = new.kind == NewKind::Directory;
        let alone = write(&parent.operation);
        if fs.find_name(parent, name)?.is_some() {
            return Err(Error::new(ErrorKind::AlreadyExists));
        }
        {
            let state = read(&parent.state);
            check_addable(&state)?;
            if is_directory {
                fs.check_room_for_subdirectory(&state)?;
            }
        }
        fs.check_kind(&new.kind)?;
        let inherited = fs.inherited_access(&read(&parent.state), new)?;
        let credits = self.insert_credits(parent)? + fs.new_inode_credits();
        let transaction = match new.kind {
            NewKind::Regular => self.begin_recorded(credits)?,
            // Other implementations replay these without the content of i_block, or with too few
            // links.
            _ => self.begin(credits)?,
        };
        let cell = fs.make_inode(&transaction, parent, new, &inherited)?;
        let done = fs
            .fill_inode(&transaction, parent, &cell, &new.kind)
            .and_then(|()| fs.inherit_access(&transaction, &cell, &inherited))
            .and_then(|()| {
                let mut directory = fs.directory(parent, Some(&transaction))?;
                let inserted = directory.insert_absent(name, cell.number, new.kind.file_type());
                inserted.map_err(|error| in_directory(error, parent.number))
            });
        if let Err(error) = done {
            fs.give_up_inode(&transaction, &cell);
            drop(transaction);
            drop(alone);
            self.close_handle(&cell);
            return Err(error);
        }
        if is_directory {
            fs.add_subdirectory(&transaction, parent);
        }
        fs.names_changed(&transaction, parent);
        transaction.note_name(NameChange::Create, parent.number, cell.number, name);
        Ok(cell)
    }

    /// Creates a file without a name. Closing its last handle deletes it unless it has a name by
    /// then. It has a handle, which the caller must close.
    pub(crate) fn create_unnamed(
        &self,
        parent: &Arc<InodeCell>,
        new: &NewNode<'_>,
    ) -> Result<Arc<InodeCell>> {
        let fs = &*self.fs;
        if new.kind != NewKind::Regular {
            return Err(Error::new(ErrorKind::InvalidArgument)
                .detail("only regular files can be without a name"));
        }
        fs.check_kind(&new.kind)?;
        check_addable(&read(&parent.state))?;
        // A file of an encrypted directory would have to be encrypted.
        fs.directory(parent, None)?;
        let inherited = fs.inherited_access(&read(&parent.state), new)?;
        let transaction = self.begin(fs.new_inode_credits())?;
        let cell = fs.make_inode(&transaction, parent, new, &inherited)?;
        fs.give_up_inode(&transaction, &cell);
        let done = fs.inherit_access(&transaction, &cell, &inherited);
        drop(transaction);
        if let Err(error) = done {
            self.close_handle(&cell);
            return Err(error);
        }
        Ok(cell)
    }
}

impl FsState {
    /// Refuses attributes that this file system cannot store.
    pub(super) fn check_kind(&self, kind: &NewKind<'_>) -> Result<()> {
        let NewKind::SymbolicLink(target) = kind else {
            return Ok(());
        };
        if target.is_empty() || target.contains(&0) {
            return Err(Error::new(ErrorKind::InvalidArgument)
                .detail("the target of a symbolic link is at least a byte, and none is zero"));
        }
        if target.len() >= self.layout.block_bytes() as usize {
            return Err(Error::new(ErrorKind::NameTooLong).detail(format!(
                "a target of {} bytes, where {} fit",
                target.len(),
                self.layout.block_bytes() - 1
            )));
        }
        Ok(())
    }

    /// Blocks of metadata for a new inode, its first block, its attributes, and noting it as an
    /// orphan.
    pub(super) fn new_inode_credits(&self) -> u32 {
        let first_block = 1 + self.tree_credits_at(0);
        groups::INODE_CREDITS + first_block + 2 + xattr::TAKE_CREDITS + orphan::CREDITS
    }

    /// An inode without a name becomes an orphan, like one that has lost its last name.
    pub(super) fn give_up_inode(&self, transaction: &Transaction<'_>, cell: &Arc<InodeCell>) {
        cell.change(transaction, |state| state.inode.set_links(0));
        self.add_orphan(transaction, cell);
    }

    /// Takes a number and makes an inode of the kind without content; it has a handle.
    pub(super) fn make_inode(
        &self,
        transaction: &Transaction<'_>,
        parent: &Arc<InodeCell>,
        new: &NewNode<'_>,
        inherited: &InheritedAccess,
    ) -> Result<Arc<InodeCell>> {
        let file_type = new.kind.file_type();
        let number = self.groups.take_inode(
            transaction,
            NewInode {
                parent: parent.number,
                file_type,
            },
        )?;
        let inode = {
            let parent = read(&parent.state);
            self.new_inode(&parent, new, inherited.permissions)
        };
        let made = self.inodes.create(number, inode);
        let cell = match made {
            Ok(cell) => cell,
            Err(error) => {
                self.groups
                    .free_inode(transaction, number, Some(file_type))?;
                return Err(error);
            }
        };
        cell.change(transaction, |state| {
            state.handles = 1;
            // A sync of data finds an empty file again as well.
            state.data_changed_in = Some(transaction.epoch());
        });
        Ok(cell)
    }

    fn new_inode(&self, parent: &InodeState, new: &NewNode<'_>, permissions: u16) -> Inode {
        let superblock = self.groups.superblock();
        let mut inode = Inode::zeroed(superblock.extra_isize_for_new_inodes());
        let file_type = new.kind.file_type();
        let is_directory = file_type == FileType::Directory;
        let parent_mode = parent.inode.mode().permissions();
        let (mut permissions, mut gid) = (permissions, new.gid);
        if parent_mode & SETGID != 0 {
            gid = parent.inode.gid();
            if is_directory {
                permissions |= SETGID;
            }
        }
        inode.set_mode(Mode::new(file_type, permissions));
        inode.set_uid(new.uid);
        inode.set_gid(gid);
        inode.set_links(if is_directory { 2 } else { 1 });
        inode.set_generation(fastrand::u32(..));
        let now = self.clock.now();
        for field in [
            TimeField::Access,
            TimeField::Modification,
            TimeField::Change,
            TimeField::Creation,
        ] {
            inode.set_time(field, now);
        }
        let mut flags = parent.inode.flags() & inherited(file_type);
        match new.kind {
            NewKind::Regular | NewKind::Directory => flags |= self.map_flag(),
            NewKind::SymbolicLink(target) if target.len() > SHORT_TARGET_MAX => {
                flags |= self.map_flag();
            }
            NewKind::CharacterDevice(device) | NewKind::BlockDevice(device) => {
                inode.set_device(device);
            }
            _ => {}
        }
        if flags.contains(InodeFlags::EXTENTS) {
            tree::init(inode.block_area_mut());
        }
        inode.set_flags(flags);
        if parent.inode.flags().contains(InodeFlags::PROJINHERIT)
            && let Some(project) = parent.inode.project()
        {
            inode.set_project(project);
        }
        inode
    }

    /// How a new inode maps its blocks: by extents if the file system has them, else by a block
    /// map.
    fn map_flag(&self) -> InodeFlags {
        if self.layout.features().incompat.contains(Incompat::EXTENTS) {
            InodeFlags::EXTENTS
        } else {
            InodeFlags::empty()
        }
    }

    /// Initializes the fields of a new inode that depend on its type.
    fn fill_inode(
        &self,
        transaction: &Transaction<'_>,
        parent: &Arc<InodeCell>,
        cell: &Arc<InodeCell>,
        kind: &NewKind<'_>,
    ) -> Result<()> {
        match *kind {
            NewKind::Directory => {
                let mut directory = self.directory(cell, Some(transaction))?;
                directory.init(cell.number, parent.number)
            }
            NewKind::SymbolicLink(target) if target.len() <= SHORT_TARGET_MAX => {
                cell.change(transaction, |state| {
                    let area = state.inode.block_area_mut();
                    area[..target.len()].copy_from_slice(target);
                    state
                        .inode
                        .set_size_bytes(target.len() as u64, &self.layout);
                });
                Ok(())
            }
            NewKind::SymbolicLink(target) => self.write_target(transaction, cell, target),
            _ => Ok(()),
        }
    }

    /// Writes a target that does not fit into the inode into a block of its own.
    fn write_target(
        &self,
        transaction: &Transaction<'_>,
        cell: &Arc<InodeCell>,
        target: &[u8],
    ) -> Result<()> {
        let first = LogicalBlock(0);
        let position = self.position(cell, first)?;
        let allocation = self.take(cell, &position, 1, Some(transaction))?;
        let physical = PhysicalBlock(allocation.range().start().0);
        self.write_blocks(physical, target, 0)?;
        let extent = LeafEntry {
            logical: first,
            physical,
            blocks: 1,
            kind: ExtentKind::Written,
        };
        let stamp = Stamp::size_at_least(target.len() as u64);
        self.insert_extent(transaction, cell, extent, allocation, stamp)
    }

    /// The target of a symbolic link.
    pub(crate) fn read_target(&self, cell: &InodeCell) -> Result<Vec<u8>> {
        let size = {
            let state = read(&cell.state);
            if state.inode.mode().file_type() != Some(FileType::SymbolicLink) {
                return Err(Error::new(ErrorKind::InvalidArgument).detail("not a symbolic link"));
            }
            state.check_data()?;
            if let Some(target) = state.inode.short_link_target() {
                return Ok(target.to_vec());
            }
            state.inode.size_bytes(&self.layout)
        };
        if size == 0 || size > self.layout.block_bytes().into() {
            return Err(Error::new(ErrorKind::Corrupt).detail(format!(
                "inode {}: a symbolic link of {size} bytes",
                cell.number
            )));
        }
        let mut target = vec![0; size as usize];
        self.read_data(cell, &mut target, 0)?;
        // The kernel ends it with a zero as well.
        let end = target.iter().position(|&byte| byte == 0);
        target.truncate(end.unwrap_or(target.len()));
        Ok(target)
    }
}

/// Flags that a new inode has from its directory.
fn inherited(file_type: FileType) -> InodeFlags {
    let any = InodeFlags::NODUMP | InodeFlags::NOATIME;
    match file_type {
        FileType::Directory => {
            any | InodeFlags::SYNC | InodeFlags::DIRSYNC | InodeFlags::PROJINHERIT
        }
        FileType::Regular => any | InodeFlags::SYNC,
        _ => any,
    }
}

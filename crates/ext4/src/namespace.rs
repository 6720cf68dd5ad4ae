//! Names: the map from names to inodes in the directories of the file system, and its changes.
//!
//! Model: `directory` knows the layout of one directory's blocks. This module provides these blocks
//! from the cache and the running transaction, and the operations on names, each in one
//! transaction: after a crash it was done or it was not.
//!
//! Lock order: `inode.rs`. An operation that needs the operation locks of several directories takes
//! that of an ancestor first, and of unrelated directories that with the lower number. Only a
//! holder of the lock [`FsState::moving`] locks two directories that are not parent and child, so
//! that their ancestry cannot change meanwhile.

mod blocks;
mod create;
mod link;
mod rename;
mod unlink;

use std::ops::ControlFlow;
use std::sync::Arc;

use extant_ondisk::ext4::inode::{FileType, InodeFlags, TimeField};
use extant_ondisk::ext4::{Compat, Inode, InodeNumber, RoCompat, Superblock};
use extant_space::{Error, ErrorKind, Result};

use crate::directory::{After, Directory, DirectoryContext, DirectoryEntry, Listed};
use crate::engine::Engine;
use crate::inode_cell::{InodeCell, InodeState, LINKS_MAX};
use crate::state::FsState;
use crate::sync::read;
use crate::transaction::Transaction;

pub(crate) use blocks::Blocks;
pub(crate) use rename::Name;
pub use rename::RenameMode;

/// An entry of a directory, as listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedName<'a> {
    /// The name, `.` and `..` among them.
    pub name: &'a [u8],
    /// The inode it stands for.
    pub inode: InodeNumber,
    /// Its type, if the directory stores it.
    pub file_type: Option<FileType>,
    /// Position for continuing after it; fits 63 bits.
    pub cookie: u64,
}

impl FsState {
    /// The names of a directory, to be read, or with a transaction to be changed.
    pub(crate) fn directory<'a>(
        &'a self,
        cell: &'a Arc<InodeCell>,
        transaction: Option<&'a Transaction<'a>>,
    ) -> Result<Directory<Blocks<'a>>> {
        self.directory_by(cell, transaction, DirectoryContext::of)
    }

    /// The entries `.` and `..` of any directory, also of one whose names are not offered.
    fn own_entries<'a>(
        &'a self,
        cell: &'a Arc<InodeCell>,
        transaction: Option<&'a Transaction<'a>>,
    ) -> Result<Directory<Blocks<'a>>> {
        self.directory_by(cell, transaction, DirectoryContext::of_own_entries)
    }

    fn directory_by<'a>(
        &'a self,
        cell: &'a Arc<InodeCell>,
        transaction: Option<&'a Transaction<'a>>,
        context_of: fn(&Superblock, InodeNumber, &Inode) -> Result<DirectoryContext>,
    ) -> Result<Directory<Blocks<'a>>> {
        let state = read(&cell.state);
        check_directory(&state)?;
        let context = context_of(self.groups.superblock(), cell.number, &state.inode)?;
        let bytes = state.inode.size_bytes(&self.layout);
        let count = bytes >> self.layout.block_bits();
        let count = u32::try_from(count.min(self.layout.blocks() + 1)).ok();
        let count = count.filter(|&count| u64::from(count) <= self.layout.blocks());
        let count = count.ok_or_else(|| {
            Error::new(ErrorKind::Corrupt).detail(format!("a directory of {bytes} bytes"))
        })?;
        let is_removed = state.inode.links() == 0 && count == 0;
        if is_removed {
            return Err(Error::new(ErrorKind::NotFound).detail("the directory was removed"));
        }
        drop(state);
        Directory::new(context, Blocks::new(self, cell, count, transaction))
            .map_err(|error| in_directory(error, cell.number))
    }

    /// The entry of `name` in a directory whose operation lock is held.
    pub(crate) fn find_name(
        &self,
        cell: &Arc<InodeCell>,
        name: &[u8],
    ) -> Result<Option<DirectoryEntry>> {
        let directory = self.directory(cell, None)?;
        directory
            .lookup(name)
            .map_err(|error| in_directory(error, cell.number))
    }

    /// The entry `..` of a directory whose operation lock is held.
    fn find_parent(&self, cell: &Arc<InodeCell>) -> Result<Option<DirectoryEntry>> {
        let own = self.own_entries(cell, None)?;
        own.lookup(b"..")
            .map_err(|error| in_directory(error, cell.number))
    }

    /// The inode that an entry of a directory refers to.
    pub(crate) fn entry_cell(
        &self,
        entry: DirectoryEntry,
        directory: InodeNumber,
    ) -> Result<Arc<InodeCell>> {
        let number = entry.inode;
        let wrong = |what: &str| {
            Error::new(ErrorKind::Corrupt)
                .detail(format!(
                    "directory inode {directory}: an entry refers to inode {number}, {what}"
                ))
                .advice("check the file system")
        };
        if number < self.layout.first_inode() && number != InodeNumber::ROOT {
            return Err(wrong("which is reserved"));
        }
        match self.inodes.get(number) {
            Err(error) if error.kind() == ErrorKind::NotFound => Err(wrong("which is not in use")),
            found => found,
        }
    }

    /// Gives out names of a directory behind `after`.
    pub(crate) fn list(
        &self,
        cell: &Arc<InodeCell>,
        after: After<'_>,
        visit: &mut dyn FnMut(ListedName<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let _shared = read(&cell.operation);
        let directory = self.directory(cell, None)?;
        let mut give = |listed: Listed<'_>| {
            visit(ListedName {
                name: listed.name,
                inode: listed.entry.inode,
                file_type: listed.entry.file_type,
                cookie: listed.cookie,
            })
        };
        directory
            .for_each(after, &mut give)
            .map_err(|error| in_directory(error, cell.number))
    }

    /// Sets the times of a directory after a change of its names.
    pub(crate) fn names_changed(&self, transaction: &Transaction<'_>, cell: &Arc<InodeCell>) {
        let now = self.clock.now();
        cell.change(transaction, |state| {
            state.inode.set_time(TimeField::Modification, now);
            state.inode.set_time(TimeField::Change, now);
            let version = state.inode.version();
            state
                .inode
                .set_version(version.wrapping_add(1), &self.layout);
            state.data_changed_in = Some(transaction.epoch());
        });
    }

    /// A directory has one more directory in it.
    pub(crate) fn add_subdirectory(&self, transaction: &Transaction<'_>, cell: &Arc<InodeCell>) {
        cell.change(transaction, |state| {
            let links = state.inode.links();
            // Above the maximum count: 1, as the feature defines; `check_room_for_subdirectory` was
            // called before.
            let counted = match links {
                1 => 1,
                links if links >= LINKS_MAX => 1,
                links => links + 1,
            };
            state.inode.set_links(counted);
        });
    }

    /// A directory has one directory less in it.
    pub(crate) fn remove_subdirectory(&self, transaction: &Transaction<'_>, cell: &Arc<InodeCell>) {
        cell.change(transaction, |state| {
            let links = state.inode.links();
            if links > 2 {
                state.inode.set_links(links - 1);
            }
        });
    }

    /// Refuses a directory that cannot count one more directory.
    fn check_room_for_subdirectory(&self, state: &InodeState) -> Result<()> {
        let features = self.layout.features();
        // As the kernel: only hashed directories may stop counting.
        let counts_no_more = features.ro_compat.contains(RoCompat::DIR_NLINK)
            && features.compat.contains(Compat::DIR_INDEX)
            && state.inode.flags().contains(InodeFlags::INDEX);
        if state.inode.links() >= LINKS_MAX && !counts_no_more {
            return Err(Error::new(ErrorKind::TooManyLinks).detail(format!(
                "a directory has at most {} others in it",
                LINKS_MAX - 2
            )));
        }
        Ok(())
    }
}

impl Engine {
    /// Blocks of metadata that inserting a name touches at most, the directory's inode among them.
    fn insert_credits(&self, cell: &Arc<InodeCell>) -> Result<u32> {
        let fs = &*self.fs;
        let context = {
            let state = read(&cell.state);
            DirectoryContext::of(fs.groups.superblock(), cell.number, &state.inode)?
        };
        let bound = context.insert_bound();
        let appended = bound.appended_blocks * fs.append_credits(cell)?;
        Ok(bound.changed_blocks + appended)
    }
}

/// Refuses everything but directories that still have a name.
fn check_directory(state: &InodeState) -> Result<()> {
    if state.inode.mode().file_type() != Some(FileType::Directory) {
        return Err(Error::new(ErrorKind::NotDirectory));
    }
    Ok(())
}

/// Refuses a directory to which no name can be added. An append-only one accepts new names.
fn check_addable(state: &InodeState) -> Result<()> {
    check_directory(state)?;
    if state.inode.links() == 0 {
        return Err(Error::new(ErrorKind::NotFound).detail("the directory was removed"));
    }
    state.check_growable()
}

/// Refuses a directory from which no name can be taken.
fn check_takeable(state: &InodeState) -> Result<()> {
    check_addable(state)?;
    state.check_mutable()
}

fn in_directory(error: Error, number: InodeNumber) -> Error {
    match error.kind() {
        ErrorKind::Corrupt => error.advice(format!(
            "check the file system; the directory is inode {number}"
        )),
        _ => error,
    }
}

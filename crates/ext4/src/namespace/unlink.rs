//! Taking names away.

use std::sync::Arc;

use extant_ondisk::ext4::directory::check_name;
use extant_ondisk::ext4::fast_commit::NameChange;
use extant_ondisk::ext4::inode::{FileType, TimeField};
use extant_space::{Error, ErrorKind, Result};

use super::{check_takeable, in_directory};
use crate::engine::Engine;
use crate::inode_cell::InodeCell;
use crate::orphan;
use crate::state::FsState;
use crate::sync::{read, write};
use crate::transaction::Transaction;

/// A block of the directory, its inode, the inode that loses a name, and noting it as an orphan.
const UNLINK_CREDITS: u32 = 3 + orphan::CREDITS;

impl Engine {
    /// Removes a name of a non-directory.
    pub(crate) fn unlink(&self, parent: &Arc<InodeCell>, name: &[u8]) -> Result<()> {
        check_name(name)?;
        let fs = &*self.fs;
        let alone = write(&parent.operation);
        let victim = self.victim(parent, name)?;
        let done = (|| {
            {
                check_takeable(&read(&parent.state))?;
                let state = read(&victim.state);
                state.check_mutable()?;
                if state.inode.mode().file_type() == Some(FileType::Directory) {
                    return Err(Error::new(ErrorKind::IsDirectory));
                }
            }
            let transaction = self.begin_recorded(UNLINK_CREDITS)?;
            fs.remove_name(&transaction, parent, name)?;
            transaction.note_name(NameChange::Unlink, parent.number, victim.number, name);
            fs.lose_name(&transaction, &victim);
            Ok(())
        })();
        drop(alone);
        self.close_handle(&victim);
        done
    }

    /// Takes away an empty directory.
    pub(crate) fn remove_directory(&self, parent: &Arc<InodeCell>, name: &[u8]) -> Result<()> {
        match name {
            b"." => return Err(Error::new(ErrorKind::InvalidArgument).detail("the name is \".\"")),
            b".." => return Err(Error::new(ErrorKind::NotEmpty)),
            _ => check_name(name)?,
        }
        let fs = &*self.fs;
        let alone = write(&parent.operation);
        let victim = self.victim(parent, name)?;
        let done = (|| {
            if Arc::ptr_eq(&victim, parent) {
                return Err(loops(parent));
            }
            check_takeable(&read(&parent.state))?;
            let _victim_alone = write(&victim.operation);
            fs.check_empty(&victim)?;
            let transaction = self.begin(UNLINK_CREDITS)?;
            fs.remove_name(&transaction, parent, name)?;
            fs.remove_subdirectory(&transaction, parent);
            fs.lose_directory(&transaction, &victim);
            Ok(())
        })();
        drop(alone);
        self.close_handle(&victim);
        done
    }

    /// The inode of a name to be removed, with a handle.
    pub(super) fn victim(&self, parent: &Arc<InodeCell>, name: &[u8]) -> Result<Arc<InodeCell>> {
        let entry = self.fs.find_name(parent, name)?;
        let entry = entry.ok_or_else(|| Error::new(ErrorKind::NotFound))?;
        self.open_entry(entry, parent.number)
    }
}

impl FsState {
    pub(super) fn remove_name(
        &self,
        transaction: &Transaction<'_>,
        parent: &Arc<InodeCell>,
        name: &[u8],
    ) -> Result<()> {
        let mut directory = self.directory(parent, Some(transaction))?;
        directory
            .remove(name)
            .map_err(|error| in_directory(error, parent.number))?;
        self.names_changed(transaction, parent);
        Ok(())
    }

    /// A non-directory loses one name.
    pub(super) fn lose_name(&self, transaction: &Transaction<'_>, victim: &Arc<InodeCell>) {
        let left = victim.change(transaction, |state| {
            let left = state.inode.links().saturating_sub(1);
            state.inode.set_links(left);
            state.inode.set_time(TimeField::Change, self.clock.now());
            left
        });
        if left == 0 {
            self.add_orphan(transaction, victim);
        }
    }

    /// An empty directory has no name any more.
    pub(super) fn lose_directory(&self, transaction: &Transaction<'_>, victim: &Arc<InodeCell>) {
        victim.change(transaction, |state| {
            state.inode.set_links(0);
            state.inode.set_size_bytes(0, &self.layout);
            state.inode.set_time(TimeField::Change, self.clock.now());
            state.data_changed_in = Some(transaction.epoch());
        });
        self.add_orphan(transaction, victim);
    }

    /// Refuses a non-directory, a directory that is not empty, and one that may not be removed. Its
    /// operation lock is held.
    pub(super) fn check_empty(&self, victim: &Arc<InodeCell>) -> Result<()> {
        read(&victim.state).check_mutable()?;
        let directory = self.directory(victim, None)?;
        let is_empty = directory
            .is_empty()
            .map_err(|error| in_directory(error, victim.number))?;
        if is_empty {
            Ok(())
        } else {
            Err(Error::new(ErrorKind::NotEmpty))
        }
    }
}

/// A directory that contains itself or an ancestor.
pub(super) fn loops(cell: &InodeCell) -> Error {
    Error::new(ErrorKind::Corrupt)
        .detail(format!("directory inode {} contains itself", cell.number))
        .advice("check the file system")
}

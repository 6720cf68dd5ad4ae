//! More names for an inode.

use std::sync::Arc;

use extant_ondisk::ext4::directory::check_name;
use extant_ondisk::ext4::fast_commit::NameChange;
use extant_ondisk::ext4::inode::{FileType, TimeField};
use extant_space::{Error, ErrorKind, Result};

use super::{check_addable, in_directory};
use crate::engine::Engine;
use crate::inode_cell::{InodeCell, LINKS_MAX};
use crate::orphan;
use crate::sync::{read, write};

impl Engine {
    /// Gives an inode that is no directory, and has a handle, one more name.
    pub(crate) fn link(
        &self,
        cell: &Arc<InodeCell>,
        parent: &Arc<InodeCell>,
        name: &[u8],
    ) -> Result<()> {
        check_name(name)?;
        let fs = &*self.fs;
        let _alone = write(&parent.operation);
        if fs.find_name(parent, name)?.is_some() {
            return Err(Error::new(ErrorKind::AlreadyExists));
        }
        check_addable(&read(&parent.state))?;
        let file_type = {
            let state = read(&cell.state);
            state.check_mutable()?;
            match state.inode.mode().file_type() {
                None => {
                    return Err(Error::new(ErrorKind::Corrupt).detail("an inode without a type"));
                }
                Some(FileType::Directory) => {
                    return Err(Error::new(ErrorKind::Immutable).detail("a directory has one name"));
                }
                Some(file_type) => file_type,
            }
        };
        // A cut of several transactions ends before: one that is under way needs the orphan's
        // entry. It is no directory, so the order of locks is kept.
        let _uncut = read(&cell.operation);
        let credits = self.insert_credits(parent)? + 1 + orphan::CREDITS;
        let transaction = self.begin_recorded(credits)?;
        // Counted first, so that two names at once cannot exceed the limit.
        let before = cell.change(&transaction, |state| {
            let links = state.inode.links();
            if links < LINKS_MAX {
                state.inode.set_links(links + 1);
            }
            links
        });
        if before >= LINKS_MAX {
            return Err(Error::new(ErrorKind::TooManyLinks));
        }
        let inserted =
            fs.directory(parent, Some(&transaction))?
                .insert_absent(name, cell.number, file_type);
        if let Err(error) = inserted {
            cell.change(&transaction, |state| {
                let links = state.inode.links();
                state.inode.set_links(links - 1);
            });
            return Err(in_directory(error, parent.number));
        }
        if before == 0 {
            // With a name it must not be an orphan: the next opening would remove its blocks.
            if let Err(error) = fs.remove_orphan(&transaction, cell, 0) {
                return Err(self.fail(error));
            }
        }
        cell.change(&transaction, |state| {
            state.inode.set_time(TimeField::Change, fs.clock.now());
        });
        fs.names_changed(&transaction, parent);
        transaction.note_name(NameChange::Link, parent.number, cell.number, name);
        Ok(())
    }
}

//! Freeing an inode that has no name and no open handle.

use std::sync::Arc;

use extant_ondisk::ext4::extent::LOGICAL_END;
use extant_ondisk::ext4::inode::FileType;
use extant_space::Result;

use crate::engine::Engine;
use crate::groups;
use crate::inode_cell::InodeCell;
use crate::orphan;
use crate::sync::{read, write};
use crate::transaction::INODE_CREDITS;
use crate::{time, xattr};

impl Engine {
    /// Frees an orphan without a name: its blocks, its attributes, its number.
    pub(crate) fn delete(&self, cell: &Arc<InodeCell>) -> Result<()> {
        let fs = &*self.fs;
        let _alone = write(&cell.operation);
        let (has_blocks, file_type) = {
            let state = read(&cell.state);
            (state.inode.is_mapped(), state.inode.mode().file_type())
        };
        if has_blocks {
            self.remove_blocks(cell, 0..LOGICAL_END)?;
        }
        cell.release_windows();
        // A bitmap that cannot be read is found while the inode still is an orphan.
        fs.groups.is_inode_used(cell.number)?;
        let credits =
            INODE_CREDITS + orphan::CREDITS + groups::INODE_CREDITS + xattr::RELEASE_CREDITS;
        let transaction = self.begin(credits)?;
        {
            let mut state = write(&cell.state);
            state.join(cell, &transaction);
            fs.release_xattr_block(&transaction, cell, &mut state)?;
        }
        fs.remove_orphan(&transaction, cell, time::last_tick().seconds as u32)?;
        cell.change(&transaction, |state| {
            if file_type != Some(FileType::SymbolicLink) || has_blocks {
                state.inode.set_size_bytes(0, &fs.layout);
            }
        });
        fs.groups.free_inode(&transaction, cell.number, file_type)?;
        Ok(())
    }
}

//! Inodes in use: the interface of the engine.
//!
//! Model: a [`Node`] is a handle. The inode exists as long as a handle does, also after its last
//! name is removed; dropping the last handle of an inode without a name frees it. A [`File`] is a
//! node with data, and the `SpaceFile` of this file system.
//!
//! Structural errors pass through [`Engine::record_corruption`], which records them in the
//! superblock and stops further changes if the file system is configured so.

mod access_time;
mod attributes;
mod file;
mod names;
mod path;
mod privileges;
mod xattr;

use std::fmt;
use std::sync::Arc;

use extant_ondisk::ext4::InodeNumber;
use extant_ondisk::ext4::inode::FileType;
use extant_space::{Error, ErrorKind, Result, SyncMode};

use crate::directory::DirectoryEntry;
use crate::engine::Engine;
use crate::filesystem::Filesystem;
use crate::inode_cell::InodeCell;
use crate::sync::{read, write};

pub use access_time::AccessTime;
pub use attributes::{AttributeChange, Attributes, Times};
pub use file::File;
pub use path::FollowLast;

/// A handle on an inode.
pub struct Node {
    pub(crate) engine: Arc<Engine>,
    pub(crate) cell: Arc<InodeCell>,
}

impl Filesystem {
    /// The root directory.
    ///
    /// # Errors
    /// `Corrupt` when there is none.
    pub fn root(&self) -> Result<Node> {
        let engine = &self.engine;
        engine.record_corruption(engine.fs.check_root())?;
        self.node(InodeNumber::ROOT)
    }

    /// An inode by its number.
    ///
    /// # Errors
    /// `NotFound` when it is not in use; `Corrupt` if the stored inode is invalid.
    pub fn node(&self, number: InodeNumber) -> Result<Node> {
        let engine = &self.engine;
        engine
            .record_corruption(engine.open_inode(number))
            .map(|cell| Node::from_open(engine, cell))
    }
}

impl Node {
    /// A node for a handle that was opened.
    fn from_open(engine: &Arc<Engine>, cell: Arc<InodeCell>) -> Self {
        Self {
            engine: Arc::clone(engine),
            cell,
        }
    }

    /// The inode's number.
    pub fn number(&self) -> InodeNumber {
        self.cell.number
    }

    /// The type of the file.
    pub fn file_type(&self) -> FileType {
        let mode = read(&self.cell.state).inode.mode();
        mode.file_type()
            .expect("an inode without a type is not opened")
    }

    /// Makes it durable: data and size, or everything. Commits only what is needed: nothing for the
    /// data of a file that was overwritten in place.
    ///
    /// # Errors
    /// Errors of the device, including unreported ones of earlier writes.
    pub fn sync(&self, mode: SyncMode) -> Result<()> {
        self.engine
            .record_corruption(self.engine.sync_inode(&self.cell, mode))
    }

    /// Releases the blocks reserved after its data. Dropping the last handle does so too; a program
    /// that keeps nodes for long calls it when the file is no longer written. Later growth
    /// continues at the same blocks unless another file has taken them.
    pub fn release_windows(&self) {
        self.cell.release_windows();
    }
}

impl Clone for Node {
    fn clone(&self) -> Self {
        write(&self.cell.state).handles += 1;
        Self::from_open(&self.engine, Arc::clone(&self.cell))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.engine.close_handle(&self.cell);
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node(inode {})", self.cell.number)
    }
}

impl Engine {
    /// Opens a handle on an inode that has a name, or another handle.
    fn open_inode(&self, number: InodeNumber) -> Result<Arc<InodeCell>> {
        let cell = self.fs.inodes.get(number)?;
        {
            let mut state = write(&cell.state);
            let is_gone = state.inode.links() == 0 && state.handles == 0;
            if is_gone {
                return Err(
                    Error::new(ErrorKind::NotFound).detail(format!("inode {number} is not in use"))
                );
            }
            if state.inode.mode().file_type().is_none() {
                return Err(
                    Error::new(ErrorKind::Corrupt).detail(format!("inode {number} has no type"))
                );
            }
            state.handles += 1;
        }
        Ok(cell)
    }

    /// Opens a handle on the inode of an entry; the operation lock of the directory is held.
    pub(crate) fn open_entry(
        &self,
        entry: DirectoryEntry,
        directory: InodeNumber,
    ) -> Result<Arc<InodeCell>> {
        // Validates the number.
        let cell = self.fs.entry_cell(entry, directory)?;
        match self.open_inode(cell.number) {
            Err(error) if error.kind() == ErrorKind::NotFound => Err(Error::new(
                ErrorKind::Corrupt,
            )
            .detail(format!(
                "directory inode {directory}: an entry refers to inode {}, which is not in use",
                cell.number
            ))
            .advice("check the file system")),
            opened => opened,
        }
    }

    /// Closes a handle. The thread has no transaction open.
    pub(crate) fn close_handle(&self, cell: &Arc<InodeCell>) {
        let (is_last, has_name, has_late_access) = {
            let Ok(mut state) = cell.state.write() else {
                // A thread panicked while it changed the inode, which has stopped the journal.
                return;
            };
            state.handles -= 1;
            (
                state.handles == 0,
                state.inode.links() > 0,
                state.has_late_access,
            )
        };
        if !is_last || self.has_failed() || std::thread::panicking() {
            return;
        }
        cell.release_windows();
        if !has_name {
            // The next opening finds the orphan; a close reports the error.
            if let Err(error) = self.record_corruption(self.delete(cell)) {
                self.fs.orphans.note_failure(cell, &error);
            }
        } else if has_late_access {
            self.keep_late_access(cell);
        }
    }

    /// Makes an inode durable: its metadata by a commit, and its data by a flush if that commit was
    /// made before.
    fn sync_inode(&self, cell: &InodeCell, mode: SyncMode) -> Result<()> {
        let changed_in = {
            let state = read(&cell.state);
            match mode {
                SyncMode::Data => state.data_changed_in,
                SyncMode::All => state.changed(),
            }
        };
        match changed_in {
            Some(epoch) if !self.is_durable(epoch) => {
                // The flush of a running commit may precede the last written data.
                let will_flush = self.is_present(epoch);
                self.wait_durable(epoch)?;
                if will_flush {
                    Ok(())
                } else {
                    self.fs.device.flush()
                }
            }
            _ => self.fs.device.flush(),
        }
    }
}

//! Inspection of a whole file system: for tools that print structures without names.
//!
//! Model: the state is that of the last commit. A file system that is open read-only shows that
//! state, including the changes in its journal; one that is open for changes is committed first,
//! and concurrent changes may be visible or not.
//!
//! Nothing is cached here: a pass over all inodes reads the tables in use once, and needs the
//! memory of one chunk of a table.

mod free;
mod inodes;
mod journal;
mod nodes;

use std::sync::Arc;

use extant_blockdev::Device;
use extant_ondisk::ext4::{GroupDescriptor, GroupNumber, Inode, Superblock};
use extant_space::{Error, ErrorKind, Result};

use crate::filesystem::Filesystem;
use crate::node::Node;
use crate::sync::{lock, read};

pub use inodes::FoundInode;
pub use journal::JournalLook;
pub use nodes::{TreeEntry, TreeNode};

impl Filesystem {
    /// The superblock. Free blocks and inodes are those of the last commit.
    pub fn superblock(&self) -> Superblock {
        lock(&self.engine.fs.superblock).clone()
    }

    /// The device as the file system sees it: read-only, with the contents of the journal as if it
    /// were replayed. No other process may write to it.
    pub fn device(&self) -> Arc<dyn Device> {
        Arc::clone(&self.engine.fs.device)
    }

    /// A descriptor.
    ///
    /// # Errors
    /// `InvalidArgument` when there is no such group; `Corrupt`; those of the device.
    pub fn group_descriptor(&self, group: GroupNumber) -> Result<GroupDescriptor> {
        let fs = &self.engine.fs;
        if group.0 >= fs.layout.groups() {
            return Err(Error::new(ErrorKind::InvalidArgument).detail(format!(
                "there is no group {group}, only {}",
                fs.layout.groups()
            )));
        }
        self.engine.record_corruption(fs.groups.descriptor(group))
    }
}

impl Node {
    /// The fields of the inode.
    pub fn inode(&self) -> Inode {
        read(&self.cell.state).inode
    }
}
